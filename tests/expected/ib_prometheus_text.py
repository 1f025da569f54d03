"""node_exporter's end-to-end fixture: a scrape of its sysfs fixtures."""

from tests.expected._expected import Expected

EXPECTED = {
    "node_exporter_e2e_infiniband.prom": Expected(
        kind="prometheus_text",
        rows={"link_counters": 2, "ports": 3},
        how="grep -E 'infiniband_.*(total|state_id)' | grep -o 'device=.*}' | sort -u: the ports "
        "with counters (mlx4_0 1 and 2), and with a state (i40iw0 1 too)",
    ),
}

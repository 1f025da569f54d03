"""UFM telemetry: a record a port."""

from tests.expected._expected import Expected

EXPECTED = {
    "small_telemetry.json": Expected(
        kind="ufm",
        rows={"link_counters": 6, "ports": 6},
        how="jq '.values | length': 6; jq '[.values[]|[.node_guid,.port_num]]|unique|length': 6",
    ),
}

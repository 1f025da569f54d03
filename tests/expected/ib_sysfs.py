"""sysfs trees: each a single input."""

from tests.expected._expected import Expected

RATES = "find -path '*/ports/*' -name rate | wc -l"
EXPECTED = {
    "gpud_h100_node": Expected(
        kind="ib_sysfs", rows={"ports": 9, "link_counters": 9}, how=f"{RATES}: 9"
    ),
    "node_exporter_fixtures/sys": Expected(
        kind="ib_sysfs",
        rows={"ports": 3, "link_counters": 2},
        rejects=17,
        how=f"{RATES}: 3; grep -rl 'N/A (no PMA)' | wc -l: 17, all that i40iw0 has",
    ),
    "procfs_fixtures/fixtures/sys": Expected(
        kind="ib_sysfs", rows={"ports": 4, "link_counters": 4}, how=f"{RATES}: 4"
    ),
}

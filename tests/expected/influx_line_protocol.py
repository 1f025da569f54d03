"""Telegraf: counters and hw_counters of one port are two lines and one row."""

from tests.expected._expected import Expected

EXPECTED = {
    "telegraf_infiniband.lp": Expected(
        kind="telegraf",
        rows={"link_counters": 1},
        how="cut -d' ' -f1,3 | sort -u | wc -l: 1 port at 1 time",
    ),
}

"""ethtool -S: one device a file; a device is named in one of them."""

from tests.expected._expected import Expected

HOW = "grep -c '^NIC statistics:' is at most 1, and no counter's name stands twice: one device"
EXPECTED = {
    **{
        f"ethq_{driver}.txt": Expected(kind="ethtool", rows={"link_counters": 1}, how=HOW)
        for driver in ("bnx2x", "ena", "ice", "mlx5_core")
    },
    "node_exporter_eth0_statistics.txt": Expected(
        kind="ethtool",
        rows={"link_counters": 1, "ports": 1},
        how="head -1: '# ethtool -S eth0'",
    ),
}

"""mlxlink: one row for the port, one a lane, one of counters; the PCIe side has lanes only."""

from tests.expected._expected import Expected

PORT = {"ports": 1, "link_counters": 1, "link_signal": 5}
LANES = 'jq \'.result.output["Physical Counters and BER Info"]["Raw Physical Errors Per Lane"]'
EXPECTED = {
    "bluefield3_100g_dac_port0.txt": Expected(
        kind="mlxlink",
        rows=PORT,
        how="grep 'Raw Physical Errors Per Lane' | tr -cd , | wc -c: 3, so 4 lanes",
    ),
    **{
        name: Expected(kind="mlxlink", rows=PORT, how=f"{LANES}.values | length': 4")
        for name in (
            "faults-active.json",
            "mft-4.34.1-400g-dr4.json",
            "mft-4.34.1-400g-eye.json",
            "na-fields.json",
        )
    },
    "mft-4.34.1-pcie-eye.json": Expected(
        kind="mlxlink",
        rows={"link_signal": 16},
        how="jq '.result.output[\"EYE Opening Info (PCIe)\"].Lane.values | length': 16",
    ),
}

"""Blocks of perfquery: the extended set, and details of receive errors."""

from tests.expected._expected import Expected

_ONE = Expected(
    kind="perfquery",
    rows={"link_counters": 1},
    how="grep -cE '^# Port.* port [0-9]+': one block, no aggregate (port 255)",
)
EXPECTED = {
    "treydock_0x506b4b03005c2740.out": _ONE,
    "treydock_0x7cfe9003003b4b96.out": _ONE,
    "treydock_0x7cfe9003003b4bde.out": _ONE,
    "treydock_rcverr_0x7cfe9003009ce5b0-1.out": _ONE,
    "treydock_rcverr_0x7cfe9003009ce5b0-2.out": _ONE,
}

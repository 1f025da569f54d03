"""Fabrics as ibnetdiscover prints them, both forms."""

from tests.expected._expected import Expected

EXPECTED = {
    "cyberang3l_k4n3.topo": Expected(
        kind="ibnetdiscover",
        rows={"ports": 768, "topology_links": 768},
        how="grep -cE '^\\[[0-9]+\\]': each cable is listed at both of its ends",
    ),
    "topograph_example.out": Expected(
        kind="ibnetdiscover",
        rows={"ports": 2228, "topology_links": 2228},
        how="grep -cE '^\\[[0-9]+\\]': each cable is listed at both of its ends",
    ),
    "treydock_test.out": Expected(
        kind="ibnetdiscover",
        rows={"ports": 10, "topology_links": 8},
        how="by hand: 3 cables listed twice and 1 once make 8 directions and ends; "
        "grep -vc ' - ' says 2 ports without a cable",
    ),
    "treydock_test2.out": Expected(
        kind="ibnetdiscover",
        rows={"ports": 8, "topology_links": 5},
        how="by hand: 3 cables; two of them end at one adapter port, which leads one way only, "
        "so 5 directions and ends; grep -vc ' - ' says 3 ports without a cable",
    ),
}

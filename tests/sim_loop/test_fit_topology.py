"""Hosts, leaves and ways up from a leaf, from links counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import polars as pl
import pytest

from xtune.sim.fit_topology import _tiers

Cable = tuple[str, str, int]  # two ends, tier


def frame(cables: Sequence[Cable], *, directions: int = 2, seen: int = 1) -> pl.DataFrame:
    """Links as the lake holds them: every port of its own, each direction a row."""
    rows = []
    for port, (a, b, tier) in enumerate(cables):
        for src, dst in ((a, b), (b, a))[:directions]:
            ends = {"src_guid": src, "src_name": src, "dst_guid": dst, "dst_name": dst}
            row = ends | {"src_port": port, "dst_port": port, "rate_gbps": 400.0, "tier": tier}
            rows += [row] * seen
    return pl.DataFrame(rows)


def edge(leaves: int, per_leaf: int) -> list[Cable]:
    return [(f"host{i}", f"leaf{i // per_leaf}", 0) for i in range(leaves * per_leaf)]


def full(lower: Sequence[str], upper: Sequence[str], cables: int, tier: int) -> list[Cable]:
    return [(a, b, tier) for a, b in product(lower, upper) for _ in range(cables)]


LEAVES = [f"leaf{i}" for i in range(4)]
SPINES = ["spine0", "spine1"]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("seen", [1, 3])
@pytest.mark.parametrize("cables", [1, 4])
def test_each_link_up_from_a_leaf_is_a_way(cables: int, seen: int, directions: int) -> None:
    links = frame(edge(4, 3) + full(LEAVES, SPINES, cables, 1), directions=directions, seen=seen)
    found = _tiers(links)
    assert found is not None
    assert found[:3] == (12, 4, 2 * cables)
    assert "(2 switches above)" in found[3] and "left out" not in found[3]


def test_a_leaf_that_lost_a_link_does_not_narrow_the_others() -> None:
    found = _tiers(frame(edge(4, 3) + full(LEAVES, SPINES, 2, 1)[:-1]))
    assert found is not None and found[2] == 4


def test_cores_of_a_third_tier_are_no_spines() -> None:
    """Two pods of two leaves and three switches above them, and five cores above those."""
    pods = [
        full(LEAVES[2 * p : 2 * p + 2], [f"agg{p}{i}" for i in range(3)], 1, 1) for p in (0, 1)
    ]
    cores = full(
        [f"agg{p}{i}" for p in (0, 1) for i in range(3)], [f"core{i}" for i in range(5)], 1, 2
    )
    found = _tiers(frame(edge(4, 3) + pods[0] + pods[1] + cores))
    assert found is not None
    assert found[:3] == (12, 4, 3)
    assert "(6 switches above)" in found[3] and "5 more above those are left out" in found[3]


def test_one_switch_is_a_leaf() -> None:
    found = _tiers(frame(edge(1, 8)))
    assert found is not None and found[:3] == (8, 1, 1)

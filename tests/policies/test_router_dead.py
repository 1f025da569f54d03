"""Flows whose paths are blacklisted: they part, and do not stay where nothing is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from xtune.policies import Policy, Router
from xtune.policies.spec import Routing

PLAIN = Routing(forecast="reading", pairs=1, hold_ns=1000, moves_per_ms=1000.0, stale_ns=50_000)
EIGHT = [[f"p{i}"] for i in range(8)]
FLOWS = [("a", "b", i) for i in range(64)]


def a_router(routing: Routing = PLAIN, paths: list[list[str]] = EIGHT) -> Router:
    return Router({("a", "b"): paths}, Policy(routing=routing), clock=lambda: 0)


def tell(router: Router, at_ns: int, **levels: float) -> None:
    for link, level in levels.items():
        router.observe(link, occupancy=level, at_ns=at_ns)


def lose(router: Router, *links: str, at_ns: int) -> None:
    for link in links * PLAIN.strikes:
        router.observe(link, lost=True, at_ns=at_ns)


def taken(router: Router, at_ns: int) -> list[int]:
    return [router.choose(flow, at_ns=at_ns) for flow in FLOWS]


@pytest.mark.parametrize("order", ["edge_first", "coldest"])
def test_a_dead_primary_is_left_as_a_full_one_is(order: str) -> None:
    """Of idle paths each has some of the flows, though one is a little emptier."""
    levels = {f"p{i}": 0.1 for i in range(8)} | {"p5": 0.09}
    dead, full = (a_router(replace(PLAIN, order=order)) for _ in range(2))
    for router in (dead, full):
        tell(router, 0, **levels)
        assert set(taken(router, 1)) == {0}
    lose(dead, "p0", at_ns=2)
    tell(full, 2, p0=1.0)
    left = taken(dead, 3)
    assert left == taken(full, 3)
    if order == "edge_first":
        # 64 flows over 7 paths by a hash: 4.5 standard deviations either side of 9.1 are 0 to 21.
        counts = Counter(left)
        assert sorted(counts) == list(range(1, 8)) and max(counts.values()) <= 21


@pytest.mark.parametrize("level", [0.5, 0.9, None])
def test_flows_part_where_no_path_is_better_than_another(level: float | None) -> None:
    """All of them warm, warned or unknown."""
    router = a_router()
    if level is not None:
        tell(router, 0, **{f"p{i}": level for i in range(8)})
    lose(router, "p0", at_ns=2)
    counts = Counter(taken(router, 3))
    assert sorted(counts) == list(range(1, 8)) and max(counts.values()) <= 21


def test_a_path_far_beyond_full_is_still_taken_before_an_unknown_one() -> None:
    router = a_router(paths=EIGHT[:3])
    lose(router, "p0", at_ns=0)
    router.weigh("p1", 40.0, at_ns=0)
    assert set(taken(router, 1)) == {1}


def test_a_path_beyond_the_alternatives_is_found() -> None:
    router = a_router(paths=[[f"p{i}"] for i in range(12)])
    lose(router, *(f"p{i}" for i in range(11)), at_ns=0)
    assert set(taken(router, 1)) == {11}


def test_power_of_two_parts_where_both_draws_are_dead() -> None:
    """Over the two paths that live; by draws alone each has nearly a quarter of the flows."""
    router = a_router(replace(PLAIN, mode="power_of_two", pairs=2))
    tell(router, 0, p0=0.1, p1=0.1)
    lose(router, *(f"p{i}" for i in range(2, 8)), at_ns=1)
    counts = Counter(router.choose(("a", "b", i), at_ns=2) for i in range(256))
    # 4.5 standard deviations either side of a half; one for all would have three quarters.
    assert sorted(counts) == [0, 1] and max(counts.values()) <= 164


@pytest.mark.parametrize("mode", ["spray", "power_of_two", "flowlet"])
def test_baselines_part_over_the_detours_where_all_shortest_paths_are_dead(mode: str) -> None:
    detours = [[f"d{i}", f"e{i}"] for i in range(4)]
    router = a_router(replace(PLAIN, mode=mode, pairs=2), [["p0"], ["p1"], *detours])
    tell(router, 0, **{f"{kind}{i}": 0.1 for kind in "pde" for i in range(4)})
    taken(router, 1)
    lose(router, "p0", "p1", at_ns=2)
    counts = Counter(taken(router, 3))
    assert sorted(counts) == [2, 3, 4, 5] and max(counts.values()) <= 31


@pytest.mark.parametrize(("mode", "path"), [
    ("binary", 0), ("spray", 0), ("power_of_two", 0), ("flowlet", None), ("static", 0),
])  # fmt: skip
def test_where_all_are_dead_it_is_the_primary_or_the_first_or_the_path_in_use(
    mode: str, path: int | None
) -> None:
    router = a_router(replace(PLAIN, mode=mode))
    tell(router, 0, **{f"p{i}": 0.1 for i in range(8)})
    before = taken(router, 1)
    lose(router, *(f"p{i}" for i in range(8)), at_ns=2)
    assert taken(router, 3) == (before if path is None else [path] * len(FLOWS))


def test_what_stands_for_a_dead_primary_is_left_where_it_is_no_longer_known() -> None:
    flow, late_ns = FLOWS[0], 100_000
    for hold_ns, moves_per_ms in ((1000, 1000.0), (1000, 0.0), (10**9, 1000.0)):
        router = a_router(replace(PLAIN, hold_ns=hold_ns, moves_per_ms=moves_per_ms), EIGHT[:3])
        tell(router, 0, p0=0.1, p1=0.1, p2=0.5)
        lose(router, "p0", at_ns=1)
        assert router.choose(flow, at_ns=2) == 1
        router.publish(3)
        version = router.bus.routing.version
        tell(router, late_ns, p2=0.4)
        lose(router, "p0", at_ns=late_ns)
        assert router.choose(flow, at_ns=late_ns) == 1  # unknown, and no other is cold
        router.publish(late_ns)
        assert router.bus.routing.version == version  # of which there is nothing to tell
        tell(router, late_ns + 1, p2=0.39)
        assert router.choose(flow, at_ns=late_ns + 1) == 2  # no move had begun a hold
        tell(router, late_ns + 2, p1=0.1, p2=0.9)
        # This one did, and the second of the burst is what is left of the budget.
        assert router.choose(flow, at_ns=late_ns + 1001) == (1 if hold_ns == 1000 else 2)


def test_an_unknown_primary_that_lives_is_not_left() -> None:
    router = a_router(paths=EIGHT[:3])
    tell(router, 0, p1=0.1, p2=0.1)
    assert router.choose(FLOWS[0], at_ns=1) == 0

"""Many choices in one call against the router's, one by one."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from xtune.policies import Policy, Router
from xtune.policies.choice_table import ChoiceTable
from xtune.policies.flow_state import FlowState, PathSet
from xtune.policies.spec import Routing

LINKS = 40
ROUTINGS = {
    "edge first": Routing(forecast="reading", pairs=1, hold_ns=2000, moves_per_ms=300.0),
    "coldest": Routing(forecast="reading", pairs=1, order="coldest", hold_ns=0, moves_per_ms=50.0),
    "no budget": Routing(forecast="reading", pairs=1, hold_ns=0, moves_per_ms=0.0),
    "narrow": Routing(
        forecast="reading", pairs=1, enter_occupancy=0.5, exit_occupancy=0.45,
        cold_occupancy=0.5, hold_ns=500, moves_per_ms=1e6,
    ),
}  # fmt: skip
STALE_NS = 600_000  # one of the steps below, so that readings of just that age occur


def draw_sets(rng: random.Random, count: int) -> list[list[list[int]]]:
    """Path sets as a topology gives them: some as short as the first, then longer ones."""
    sets = []
    for _ in range(count):
        short = rng.randint(1, 2)
        shortest = [rng.sample(range(LINKS), short) for _ in range(rng.randint(1, 4))]
        longer = [rng.sample(range(LINKS), short + 2) for _ in range(rng.randint(0, 2))]
        sets.append(shortest + longer)
    return sets


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_table_chooses_as_the_router_does(name: str, compiled: bool, seed: int) -> None:
    if compiled:
        pytest.importorskip("numba")
    rng, routing = random.Random(seed), replace(ROUTINGS[name], stale_ns=STALE_NS)
    sets = draw_sets(rng, 30)
    ends = [(f"a{i}", f"b{i}") for i in range(len(sets))]
    paths = {
        pair: [[str(x) for x in path] for path in of] for pair, of in zip(ends, sets, strict=True)
    }
    router = Router(paths, Policy(routing=routing), clock=lambda: 0)
    index = router.links.index
    rows = []
    for number, of in enumerate(sets):
        numbered = PathSet(number, [tuple(index[str(x)] for x in path) for path in of])
        state = FlowState(number, numbered, routing, 0)
        rows += [(numbered, pair) for pair in state.pairs]
    table = ChoiceTable(rows, routing, compiled=compiled)
    now_ns, unknown, dead = 0, 0, 0
    for _ in range(150):
        now_ns += rng.choice([1, 400, 3000, STALE_NS])
        # Few links stay unread, most are cold, and all states of a link occur.
        for link in rng.sample(sorted(index), len(index) // 2):
            if rng.random() < 0.2:
                for _ in range(routing.strikes):
                    router.observe(link, lost=True, at_ns=now_ns)
            else:
                level = rng.choice([0.0, 0.2, 0.39, 0.4, 0.5, 0.7, 0.9, 1.0, None])
                for _ in range(routing.readmit_answers):
                    router.observe(link, occupancy=level, at_ns=now_ns)
        reserve = rng.choice([0.0, 0.0, 0.2])
        router.bus.push_compression(
            step=0, ratio=0.0, ratio_cap=1.0, wire_bytes=None, reserve=reserve
        )
        expected = [router.choose((*pair, i), at_ns=now_ns) for i, pair in enumerate(ends)]
        worth = np.array(router.links.worth)
        seen = np.array(router.links.seen_ns)
        taken = table.choose(worth, seen, now_ns, reserve=reserve)
        assert taken.tolist() == expected
        unknown += int(np.isnan(worth).sum())
        dead += int((worth == math.inf).sum())
    assert min(unknown, dead, router.moves) > 20


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
def test_a_worth_below_zero_is_less_than_zero_to_both_forms(compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
    routing = Routing(pairs=1, order="coldest", hold_ns=0)
    paths = PathSet(0, [(0,), (1,), (2,)])
    rows = [(paths, pair) for pair in FlowState(0, paths, routing, 0).pairs]
    table = ChoiceTable(rows, routing, compiled=compiled)
    chosen = table.choose(np.array([0.9, 0.0, -95.0]), np.zeros(3, np.int64), 0)
    assert chosen.tolist() == [2]


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
def test_a_dead_primary_is_left_for_whatever_lives(compiled: bool) -> None:
    """Far beyond full before unknown, and beyond the alternatives that are looked at first."""
    if compiled:
        pytest.importorskip("numba")
    routing = Routing(pairs=1)
    paths = PathSet(0, [(link,) for link in range(12)])
    rows = [(paths, pair) for pair in FlowState(0, paths, routing, 0).pairs]
    for lives, told, expected in (((3, 7), 40.0, 7), ((11,), math.nan, 11), ((), 0.0, 0)):
        worth = np.full(12, math.inf)
        worth[list(lives)] = math.nan
        worth[list(lives)[-1:]] = told
        table = ChoiceTable(rows, routing, compiled=compiled)
        assert table.choose(worth, np.zeros(12, np.int64), 0).tolist() == [expected]


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
def test_a_table_of_no_rows_needs_no_links(compiled: bool) -> None:
    table = ChoiceTable([], Routing(pairs=1), compiled=compiled)
    assert table.choose(np.zeros(0), np.zeros(0, np.int64), 0).shape == (0,)


def test_what_a_table_cannot_do_is_refused() -> None:
    paths = PathSet(0, [(0, 1), (2, 3)])
    routing = Routing(pairs=1)
    rows = [(paths, pair) for pair in FlowState(0, paths, routing, 0).pairs]
    table = ChoiceTable(rows, routing, compiled=False)
    with pytest.raises(ValueError, match="4 links"):
        table.choose(np.zeros(3), np.zeros(3, np.int64), 0)
    with pytest.raises(ValueError, match="yield_ns"):
        ChoiceTable(rows, replace(routing, yield_ns=1))

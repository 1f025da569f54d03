from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import Policy, Router
from xtune.policies.spec import Routing

PATHS = {("a", "b"): [["up0"], ["up1"], ["up2"], ["mid", "far"]]}
GAP_NS = 1000
FLOWLET = Routing(mode="flowlet", forecast="reading", flowlet_gap_ns=GAP_NS)
FLOW = ("a", "b", 7)


def router(*levels: float | None) -> Router:
    made = Router(PATHS, Policy(routing=FLOWLET), clock=lambda: 0)
    for i, level in enumerate(levels):
        if level is not None:
            made.observe(f"up{i}", occupancy=level, at_ns=0)
    return made


def test_a_path_is_kept_without_a_gap_and_left_after_one() -> None:
    made = router(0.5, 0.5, 0.5)
    first = made.choose(FLOW, at_ns=0)
    other = (first + 1) % 3
    made.observe(f"up{other}", occupancy=0.1, at_ns=1)
    assert made.choose(FLOW, at_ns=GAP_NS - 1) == first
    # The gap counts from the unit before, not from the begin of the flowlet.
    assert made.choose(FLOW, at_ns=2 * GAP_NS - 2) == first
    assert made.choose(FLOW, at_ns=3 * GAP_NS - 2) == other
    assert made.moves == 1


def test_the_first_unit_takes_the_least_loaded_shortest_path() -> None:
    made = router(0.5, 0.3, 0.4)
    made.observe("mid", occupancy=0.0, at_ns=0)
    made.observe("far", occupancy=0.0, at_ns=0)
    assert made.choose(FLOW) == 1


def test_flows_begin_on_several_paths_where_all_are_alike() -> None:
    made = router(0.5, 0.5, 0.5)
    assert {made.choose(("a", "b", n), at_ns=0) for n in range(50)} == {0, 1, 2}


@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_an_unknown_path_is_neither_left_nor_taken(unknown: int) -> None:
    levels = [0.9 if i != unknown else None for i in range(3)]
    made = router(*levels)
    started = router(0.5, 0.5, 0.5).choose(FLOW)
    assert made.choose(FLOW) == started


def test_a_path_known_in_part_is_not_taken() -> None:
    paths = {("a", "b"): [["up0", "down0"], ["up1", "down1"]]}
    made = Router(paths, Policy(routing=FLOWLET), clock=lambda: 0)
    first = made.choose(FLOW, at_ns=0)
    for link in (f"up{first}", f"down{first}"):
        made.observe(link, occupancy=0.9, at_ns=0)
    made.observe(f"up{1 - first}", occupancy=0.1, at_ns=0)
    assert made.choose(FLOW, at_ns=GAP_NS) == first
    made.observe(f"down{1 - first}", occupancy=0.1, at_ns=0)
    assert made.choose(FLOW, at_ns=2 * GAP_NS) == 1 - first


def test_a_blacklisted_path_is_left_at_once() -> None:
    made = router(0.5, 0.5, 0.5)
    first = made.choose(FLOW, at_ns=0)
    for _ in range(3):
        made.observe(f"up{first}", lost=True, at_ns=1)
    made.observe(f"up{(first + 2) % 3}", occupancy=0.4, at_ns=1)
    assert made.choose(FLOW, at_ns=2) == (first + 2) % 3
    for i in range(3):
        for _ in range(3):
            made.observe(f"up{i}", lost=True, at_ns=3)
    assert made.choose(FLOW, at_ns=4) == 3  # the unknown detour, before a dead path


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.1, 0.4, 0.9]), st.integers(0, 2000)),
        max_size=60,
    )
)
def test_no_move_without_a_gap_and_each_move_is_to_less_load(
    events: list[tuple[int, float, int]],
) -> None:
    made = router(0.5, 0.5, 0.5)
    levels = {0: 0.5, 1: 0.5, 2: 0.5}
    path, now_ns = made.choose(FLOW, at_ns=0), 0
    for link, level, gap_ns in events:
        now_ns += gap_ns
        for other, known in levels.items():  # none grows stale
            made.observe(f"up{other}", occupancy=known, at_ns=now_ns)
        levels[link] = level
        made.observe(f"up{link}", occupancy=level, at_ns=now_ns)
        taken = made.choose(FLOW, at_ns=now_ns)
        if gap_ns < GAP_NS:
            assert taken == path
        else:
            assert levels[taken] == min(levels.values())
            assert taken == path or levels[taken] < levels[path]
        path = taken

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import Bus, Policy, Router
from xtune.policies.presets import PRESETS, preset, with_probes
from xtune.policies.spec import Routing

# Two shortest paths and a longer one; reading = forecast keeps the arithmetic in view.
PATHS = {("a", "b"): [["up0", "down0"], ["up1", "down1"], ["up2", "mid", "down2"]]}
LINKS = ("up0", "down0", "up1", "down1", "up2", "mid", "down2")
PLAIN = Routing(forecast="reading", pairs=1, hold_ns=1000, moves_per_ms=1000.0)
FLOW = ("a", "b", 7)


def router(routing: Routing = PLAIN, bus: Bus | None = None, **levels: float) -> Router:
    made = Router(PATHS, Policy(routing=routing), bus, clock=lambda: 0)
    for link in LINKS:
        made.observe(link, occupancy=levels.get(link, 0.1), at_ns=0)
    return made


def test_stays_on_a_clear_primary() -> None:
    assert [router().choose(FLOW) for _ in range(5)] == [0] * 5


def test_a_warned_primary_is_left_for_the_longest_cold_path() -> None:
    assert router(up0=0.7).choose(FLOW) == 2
    assert router(up0=0.7, mid=0.39).choose(FLOW) == 2
    assert router(up0=0.7, mid=0.40).choose(FLOW) == 1
    assert router(up0=0.69).choose(FLOW) == 0
    assert router(up0=0.7, mid=0.4, down1=0.4).choose(FLOW) == 0


def test_order_coldest_takes_the_coldest() -> None:
    assert router(replace(PLAIN, order="coldest"), up0=0.7, mid=0.2, up1=0.15).choose(FLOW) == 1


def test_an_unknown_alternative_is_not_cold_and_an_unknown_primary_not_warned() -> None:
    made = Router(PATHS, Policy(routing=PLAIN), clock=lambda: 0)
    assert made.choose(FLOW) == 0
    made.observe("up0", occupancy=0.9, at_ns=0)
    made.observe("up1", occupancy=0.0, at_ns=0)
    assert made.choose(FLOW) == 0  # down1 was never seen
    made.observe("down1", occupancy=0.0, at_ns=0)
    assert made.choose(FLOW) == 1


def test_old_readings_are_unknown() -> None:
    made = router(up0=0.9)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns + 1) == 0
    assert router(up0=0.9).choose(FLOW, at_ns=PLAIN.stale_ns) == 2


def test_an_alternative_last_seen_long_ago_is_not_cold() -> None:
    made = router()
    for link in ("up0", "down0", "up1", "down1", "up2", "down2"):  # not mid
        occupancy = 0.9 if link == "up0" else 0.1
        made.observe(link, occupancy=occupancy, at_ns=PLAIN.stale_ns + 1)
    assert made.choose(FLOW, at_ns=PLAIN.stale_ns + 1) == 1


def test_hysteresis_and_hold() -> None:
    made = router(up0=0.7)
    assert made.choose(FLOW, at_ns=0) == 2
    made.observe("up0", occupancy=0.5, at_ns=1)
    assert made.choose(FLOW, at_ns=5000) == 2  # not below exit
    made.observe("up0", occupancy=0.49, at_ns=2)
    assert made.choose(FLOW, at_ns=6000) == 0
    made.observe("up0", occupancy=0.9, at_ns=3)
    assert made.choose(FLOW, at_ns=6999) == 0  # on hold
    assert made.choose(FLOW, at_ns=7000) == 2


def test_back_to_the_less_warned_primary_when_the_alternative_is_worse() -> None:
    made = router(up0=0.75)
    assert made.choose(FLOW, at_ns=0) == 2
    made.observe("mid", occupancy=0.74, at_ns=1)
    assert made.choose(FLOW, at_ns=2000) == 2
    made.observe("mid", occupancy=0.76, at_ns=2)
    assert made.choose(FLOW, at_ns=4000) == 0


def test_the_move_budget_limits_churn() -> None:
    made = router(replace(PLAIN, hold_ns=0, moves_per_ms=10.0))
    moves = Counter[int]()
    for i in range(3000):  # 3 ms; the primary flips every microsecond
        made.observe("up0", occupancy=0.9 if i % 2 else 0.1, at_ns=1000 * i)
        for link in LINKS[2:]:
            made.observe(link, occupancy=0.1, at_ns=1000 * i)
        moves[made.choose(FLOW, at_ns=1000 * i)] += 1
    assert 28 <= made.moves <= 2 + 30  # the burst, and 10 a millisecond


def test_three_lost_probes_blacklist_and_five_answers_readmit() -> None:
    made = router(up0=0.9)
    for at_ns in (1, 2, 3):
        assert made.choose(FLOW, at_ns=at_ns) == 2
        made.observe("mid", lost=True, at_ns=at_ns)
    assert made.choose(FLOW, at_ns=4) == 1  # the other one at once, without regard to the hold
    for i in range(5):
        made.observe("mid", occupancy=0.1, at_ns=6000 + i)
    made.observe("up1", occupancy=0.95, at_ns=6010)
    assert made.choose(FLOW, at_ns=10_000) == 0
    assert made.choose(FLOW, at_ns=20_000) == 2


def test_a_dead_primary_is_left_for_the_best_and_all_dead_means_primary() -> None:
    made = router(up1=0.5, mid=0.6)
    for _ in range(3):
        made.observe("up0", lost=True, at_ns=1)
    assert made.choose(FLOW, at_ns=2) == 1  # nothing is cold, but it is the best there is
    for link in ("up1", "mid"):
        for _ in range(3):
            made.observe(link, lost=True, at_ns=3)
    assert made.choose(FLOW, at_ns=4) == 0


def lose(made: Router, *links: str, at_ns: int) -> None:
    for link in links * PLAIN.strikes:
        made.observe(link, lost=True, at_ns=at_ns)


def test_what_stands_for_a_dead_primary_is_left_as_a_primary_is() -> None:
    made = router(up1=0.1, mid=0.4)
    lose(made, "up0", at_ns=1)
    assert made.choose(FLOW, at_ns=2) == 1  # the cold one
    made.observe("mid", occupancy=0.2, at_ns=3)
    made.observe("up1", occupancy=0.69, at_ns=3)
    assert made.choose(FLOW, at_ns=4) == 1  # not warned
    made.observe("up1", occupancy=0.7, at_ns=5)
    assert made.choose(FLOW, at_ns=6) == 2  # a blacklisting had begun no hold
    made.observe("up1", occupancy=0.0, at_ns=7)
    made.observe("mid", occupancy=1.0, at_ns=7)
    assert made.choose(FLOW, at_ns=1005) == 2  # but this move did
    assert made.choose(FLOW, at_ns=1006) == 1
    made.observe("up1", occupancy=1.0, at_ns=1007)
    made.observe("mid", occupancy=0.4, at_ns=1007)
    assert made.choose(FLOW, at_ns=9000) == 1  # nothing is cold


def test_what_stands_for_a_dead_primary_is_left_within_the_budget() -> None:
    made = router(replace(PLAIN, hold_ns=0, moves_per_ms=0.0))
    lose(made, "up0", at_ns=1)
    taken = [made.choose(FLOW, at_ns=1)]
    for at_ns in range(2, 12):
        for link, path in (("up1", 1), ("mid", 2)):
            made.observe(link, occupancy=1.0 if taken[-1] == path else 0.0, at_ns=at_ns)
        taken.append(made.choose(FLOW, at_ns=at_ns))
    assert sum(a != b for a, b in pairwise(taken)) == 2  # the burst; nothing refills it


def test_a_dead_alternative_is_left_for_a_cold_one_without_hold_or_budget() -> None:
    made = router(replace(PLAIN, moves_per_ms=0.0), up0=0.9, up1=0.5)
    assert made.choose(FLOW, at_ns=1) == 2
    lose(made, "mid", at_ns=2)
    assert made.choose(FLOW, at_ns=3) == 0  # warned, but nothing is cold
    made.observe("up1", occupancy=0.0, at_ns=1001)
    assert made.choose(FLOW, at_ns=1001) == 1  # 1000 after the first move, by the second of two
    made = router(replace(PLAIN, moves_per_ms=0.0), up0=0.9)
    assert made.choose(FLOW, at_ns=1) == 2
    made.observe("up0", occupancy=0.6, at_ns=2)
    lose(made, "mid", at_ns=2)
    assert made.choose(FLOW, at_ns=3) == 0  # not warned: no way round is wanted


MODES = ("static", "binary", "spray", "power_of_two", "flowlet")


@pytest.mark.parametrize("mode", MODES)
def test_the_bus_hears_that_all_paths_are_dead(mode: str) -> None:
    made = router(replace(PLAIN, mode=mode))
    made.choose(FLOW, at_ns=1)
    made.publish(2)
    assert made.bus.routing.available_share == pytest.approx(0.9)
    lose(made, "down0", "down1", "down2", at_ns=3)
    made.choose(FLOW, at_ns=4)
    made.publish(5)
    told = made.bus.routing
    assert (told.at_ns, told.level, told.available_share) == (5, 3, 0.0)


@pytest.mark.parametrize("mode", MODES[1:])
def test_the_bus_hears_of_the_path_that_is_left(mode: str) -> None:
    made = router(replace(PLAIN, mode=mode))
    lose(made, "up0", "up1", at_ns=1)
    for occupancy in (0.3, 0.8):
        made.observe("mid", occupancy=occupancy, at_ns=2)
        made.choose(FLOW, at_ns=3)  # moves, and stays
        made.publish(4)
        assert made.bus.routing.available_share == pytest.approx(1.0 - occupancy)


def test_a_steep_forecast_of_the_path_that_is_left_is_told_as_full() -> None:
    made = router(replace(PLAIN, forecast="holt"))
    for link in ("up1", "up2"):
        made.observe(link, occupancy=0.9, at_ns=1000)  # 160 ahead of 200 us
    lose(made, "up0", at_ns=1001)
    made.choose(FLOW, at_ns=1002)
    made.publish(1003)
    assert made.bus.routing.available_share == 0.0


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("whole_flows", [None, False, True])
def test_an_idle_fabric_is_clear_with_any_preset(name: str, whole_flows: bool | None) -> None:
    policy = preset(name)
    if whole_flows is not None:
        policy = with_probes(policy, 10_000_000, whole_flows=whole_flows)
    made = Router(PATHS, policy, clock=lambda: 0)
    for at_ns in (0, 10_000_000):
        for link in LINKS:
            made.observe(link, occupancy=0.0, at_ns=at_ns)
        made.choose(FLOW, at_ns=at_ns)
        made.publish(at_ns)
    assert made.bus.routing.level == 0


@pytest.mark.parametrize(("occupancy", "level"), [(0.19, 0), (0.2, 1), (0.4, 2), (0.7, 3)])
def test_levels_of_whole_flows_are_those_of_units(occupancy: float, level: int) -> None:
    for whole_flows in (False, True):
        policy = with_probes(preset("joint"), 10_000_000, whole_flows=whole_flows)
        made = Router({("a", "b"): [["x"]]}, policy, clock=lambda: 0)
        made.observe("x", occupancy=occupancy, at_ns=0)
        made.choose(FLOW, at_ns=0)
        made.publish(1)
        assert made.bus.routing.level == level


def test_a_lossy_link_counts_as_full() -> None:
    made = router()
    made.observe("down0", occupancy=0.0, error_rate=0.001, at_ns=1)
    assert made.choose(FLOW, at_ns=2) == 2
    made.observe("down0", occupancy=0.0, error_rate=0.0, at_ns=3)
    assert made.choose(FLOW, at_ns=5000) == 0


def test_the_reserve_counts_as_occupied() -> None:
    bus = Bus()
    made = router(bus=bus, up0=0.65, mid=0.35)
    assert made.choose(FLOW, at_ns=0) == 0
    bus.push_compression(step=1, ratio=0.5, ratio_cap=1.0, wire_bytes=None, reserve=0.1)
    assert made.choose(FLOW, at_ns=1) == 1  # .65 + .1 warns; .35 + .1 is not cold, .1 + .1 is


def test_units_spread_over_the_pairs_evenly() -> None:
    paths = {("a", "b"): [[f"p{i}"] for i in range(6)]}
    made = Router(paths, Policy(routing=replace(PLAIN, pairs=4)), clock=lambda: 0)
    taken = Counter(made.choose(FLOW) for _ in range(400))
    assert taken == {i: 100 for i in range(4)}


def test_static_and_spray_do_not_look() -> None:
    static = router(replace(PLAIN, mode="static"), up0=0.95, down0=0.95)
    assert {static.choose(FLOW) for _ in range(20)} == {0}
    spray = router(replace(PLAIN, mode="spray"), up0=0.95)
    assert Counter(spray.choose(FLOW) for _ in range(20)) == {0: 10, 1: 10}
    for _ in range(3):
        spray.observe("up0", lost=True, at_ns=0)
    assert {spray.choose(FLOW) for _ in range(20)} == {1}


def test_static_flows_hash_onto_the_first_pairs_as_ecmp_does() -> None:
    paths = {("a", "b"): [[f"p{i}"] for i in range(6)]}
    made = Router(paths, Policy(routing=Routing(mode="static", pairs=4)), clock=lambda: 0)
    taken = Counter(made.choose(("a", "b", i)) for i in range(4000))
    assert sum((taken[i] - 1000) ** 2 / 1000 for i in range(4)) < 16.3  # chi-squared, 0.1 %
    assert made.choose(("a", "b", 5)) == made.choose(("a", "b", 5))


def test_power_of_two_never_takes_the_fullest() -> None:
    paths = {("a", "b"): [[f"p{i}"] for i in range(4)]}
    policy = Policy(routing=replace(PLAIN, mode="power_of_two"))
    made = Router(paths, policy, clock=lambda: 0, rng=random.Random(4))
    for i in range(4):
        made.observe(f"p{i}", occupancy=0.2 * (i + 1), at_ns=0)
    taken = Counter(made.choose(FLOW) for _ in range(6000))
    # Of the 6 pairs of paths, 3 have path 0 as the emptier one, 2 path 1, 1 path 2.
    assert taken[3] == 0
    assert [taken[i] / 1000 for i in range(3)] == pytest.approx([3, 2, 1], abs=0.2)


def test_the_bus_hears_level_and_bandwidth() -> None:
    bus = Bus()
    made = Router(PATHS, Policy(routing=PLAIN), bus, clock=lambda: 0, link_gbps=400.0)
    for link in LINKS:
        made.observe(link, occupancy=0.75, at_ns=0)
    assert bus.routing.level is None
    for _ in range(50):
        made.choose(FLOW, at_ns=10)
    made.publish(20)
    assert bus.routing.level == 2
    assert bus.routing.available_share == pytest.approx(0.25)
    assert bus.routing.available_gbps == pytest.approx(100.0)
    assert bus.routing.version == 1


SHARED = {("a", "b"): [["nic", "up0", "last"], ["nic", "up1", "last"]]}


def test_links_that_all_paths_share_are_no_ground_to_choose_by() -> None:
    bus = Bus()
    made = Router(SHARED, Policy(routing=PLAIN), bus, clock=lambda: 0)
    made.observe("up0", occupancy=0.8, at_ns=0)
    made.observe("up1", occupancy=0.1, at_ns=0)
    made.observe("last", occupancy=0.6, at_ns=0)  # not cold; nobody ever saw the NIC's own link
    assert made.choose(FLOW, at_ns=10) == 1
    for at_ns in range(20, 60):
        assert made.choose(FLOW, at_ns=at_ns) == 1
    made.publish(60)
    assert bus.routing.available_share == pytest.approx(0.4)  # but it is what bounds the flow
    for _ in range(3):
        made.observe("last", lost=True, at_ns=70)
    assert made.choose(FLOW, at_ns=80) == 1
    made.publish(90)
    assert bus.routing.available_share == 0.0


def test_a_path_within_another_is_still_a_path() -> None:
    made = Router({("a", "b"): [["x", "y"], ["x"]]}, Policy(routing=PLAIN), clock=lambda: 0)
    for _ in range(3):
        made.observe("y", lost=True, at_ns=1)
    assert made.choose(FLOW, at_ns=2) == 1


def test_a_single_path_is_taken_and_told() -> None:
    bus = Bus()
    made = Router({("a", "b"): [["x"]]}, Policy(routing=PLAIN), bus, clock=lambda: 0)
    assert made.choose(FLOW, at_ns=1) == 0
    made.publish(2)
    assert bus.routing.available_share is None
    made.observe("x", occupancy=0.25, at_ns=3)
    assert made.choose(FLOW, at_ns=4) == 0
    made.publish(5)
    assert bus.routing.available_share == pytest.approx(0.75)


def test_unknown_names_and_impossible_values_are_counted_not_raised() -> None:
    made = router()
    made.observe("elsewhere", occupancy=0.5, at_ns=1)
    made.observe("up0", occupancy=1.5, error_rate=-1.0, at_ns=1)
    made.observe("up0", occupancy=math.nan, at_ns=1)
    assert made.links.unknown_links == 1
    assert made.links.bad_readings == 2
    assert made.choose(("a", "z", 1)) == 0
    assert made.unknown_flows == 1


def test_a_feed_that_sends_no_numbers_is_counted_not_raised() -> None:
    made = router()
    bad: tuple[Any, ...] = ("0.5", [1], 1 + 0j)
    for value in bad:
        made.observe("up0", occupancy=value, error_rate=value, at_ns=1)
    assert made.links.bad_readings == 6
    assert made.choose(FLOW, at_ns=2) == 0


def test_a_clock_set_back_neither_blinds_nor_binds() -> None:
    bus = Bus()
    made = router(bus=bus)
    late, soon = 10**12, 10**9
    for link in LINKS:
        made.observe(link, occupancy=0.9 if link == "up0" else 0.0, at_ns=late)
    made.observe("up2", error_rate=1.0, at_ns=late)
    assert made.choose(FLOW, at_ns=late) == 1
    for at_ns in (soon, soon + 10):
        for link in LINKS:
            made.observe(link, occupancy=0.0, at_ns=at_ns)
    assert max(made.links.seen_ns) == soon + 10
    assert made.choose(FLOW, at_ns=soon + 20) == 0  # the move lies in the future: no hold
    version = bus.routing.version
    made.observe("up0", occupancy=0.0, at_ns=soon + 2_000_000)
    assert bus.routing.version == version + 1


def test_paths_in_a_wrong_shape_are_refused() -> None:
    wrong: tuple[Any, ...] = (
        {("a", "b"): ["up0", "up1"]},
        {("a", "b", "c"): [["up0"]]},
        {"ab": [["up0"]]},
    )
    for paths in wrong:
        with pytest.raises(ValueError, match=r"text|pair of ends"):
            Router(paths, Policy())
    made: Any = {("a", "b"): (path for path in (["up0"], ["up1"]))}
    assert Router(made, Policy()).links.names == ["up0", "up1"]


def test_an_empty_path_set_is_refused() -> None:
    with pytest.raises(ValueError, match="between a and b"):
        Router({("a", "b"): [[]]}, Policy())


ACTIONS = st.tuples(
    st.sampled_from(LINKS),
    st.one_of(st.none(), st.floats(0, 1)),
    st.booleans(),
    st.integers(0, 40_000),
)


@settings(max_examples=150, deadline=None)
@given(
    mode=st.sampled_from(["static", "binary", "spray", "power_of_two"]),
    pairs=st.integers(1, 4),
    reserve=st.floats(0, 0.5),
    actions=st.lists(ACTIONS, max_size=60),
)
def test_there_is_always_a_path_and_a_live_one_where_one_lives(
    mode: str,
    pairs: int,
    reserve: float,
    actions: list[tuple[str, float | None, bool, int]],
) -> None:
    bus = Bus()
    bus.push_compression(step=0, ratio=0.0, ratio_cap=1.0, wire_bytes=None, reserve=reserve)
    routing = Routing(mode=mode, pairs=pairs, strikes=2, readmit_answers=2)
    made = Router(PATHS, Policy(routing=routing), bus, clock=lambda: 0)
    strikes = dict.fromkeys(LINKS, 0)
    answers = dict.fromkeys(LINKS, 0)
    dead: set[str] = set()
    at_ns = 0
    for link, occupancy, lost, gap in actions:
        at_ns += gap
        made.observe(link, occupancy=occupancy, lost=lost, at_ns=at_ns)
        # A plain model of the blacklist.
        strikes[link] = strikes[link] + 1 if lost else 0
        answers[link] = 0 if lost else answers[link] + 1
        if strikes[link] >= 2:
            dead.add(link)
        elif link in dead and answers[link] >= 2:
            dead.remove(link)
        index = made.choose(FLOW, at_ns=at_ns)
        paths = PATHS["a", "b"]
        assert 0 <= index < len(paths)
        alive = [i for i, path in enumerate(paths) if not dead.intersection(path)]
        if mode != "static":
            assert index in alive or not alive


@settings(max_examples=100, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=60))
def test_the_same_history_gives_the_same_choices(
    actions: list[tuple[str, float | None, bool, int]],
) -> None:
    def play() -> list[int]:
        made = Router(PATHS, Policy(routing=Routing(mode="binary")), clock=lambda: 0)
        taken, at_ns = [], 0
        for link, occupancy, lost, gap in actions:
            at_ns += gap
            made.observe(link, occupancy=occupancy, lost=lost, at_ns=at_ns)
            taken.append(made.choose(FLOW, at_ns=at_ns))
        return taken

    assert play() == play()


def test_the_state_of_many_flows_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xtune.policies.flow_state.MOST_FLOWS", 10)
    made = router()
    for ident in range(100):
        made.choose(("a", "b", ident))
    assert len(made._flows) == 10

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies import DirectedLink, PathFinder, Policy, Router
from xtune.policies.links import DEAD
from xtune.policies.phase_placement import free_share, place
from xtune.policies.router import Flow
from xtune.policies.spec import Routing

Paths = list[list[list[int]]]


def worst_time(paths: Paths, sizes: list[float], free: list[float], chosen: list[int]) -> float:
    """When the last link is done, counted from the answer alone."""
    load = [0.0] * len(free)
    for flow, path in enumerate(chosen):
        for link in paths[flow][path]:
            load[link] += sizes[flow]
    return max(
        (bytes_ / rate if rate else math.inf)
        for bytes_, rate in zip(load, free, strict=True)
        if bytes_
    )


def best_time(paths: Paths, sizes: list[float], free: list[float]) -> float:
    """The optimum, by trying all."""
    every = itertools.product(*(range(len(flow)) for flow in paths))
    return min(worst_time(paths, sizes, free, list(chosen)) for chosen in every)


def leaf_spine(ends: list[tuple[int, int]], leaves: int, spines: int) -> Paths:
    """Paths between leaves, one over each spine."""
    down = leaves * spines
    return [[[a * spines + s, down + s * leaves + b] for s in range(spines)] for a, b in ends]


@st.composite
def leaf_flows(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    leaves, spines = draw(st.integers(2, 6)), draw(st.integers(1, 8))
    leaf = st.integers(0, leaves - 1)
    ends = st.tuples(leaf, leaf).filter(lambda pair: pair[0] != pair[1])
    return leaves, spines, draw(st.lists(ends, min_size=1, max_size=leaves * spines))


@settings(max_examples=150, deadline=None)
@given(leaf_flows(), st.integers(0, 2**31))
def test_flows_of_one_size_are_spread_as_evenly_as_can_be(
    drawn: tuple[int, int, list[tuple[int, int]]], seed: int
) -> None:
    leaves, spines, ends = drawn
    count = len(ends)
    turns = [(seed * (i + 1)) % 2**31 for i in range(count)]
    paths = leaf_spine(ends, leaves, spines)
    chosen = place(paths, [1e6] * count, [50.0] * (2 * leaves * spines), turns)
    used = Counter(link for flow, path in enumerate(chosen) for link in paths[flow][path])
    # Edges of a bipartite graph fall into as many even classes as there are spines (Koenig).
    sent = Counter(a for a, _ in ends)
    received = Counter(b for _, b in ends)
    most = max(*sent.values(), *received.values())
    assert max(used.values()) == math.ceil(most / spines)


@pytest.mark.parametrize("side", [4, 8, 16])
def test_a_permutation_of_a_full_bisection_collides_nowhere(side: int) -> None:
    hosts = side * side
    # To the next leaf; transposed, so that each leaf sends one flow to each leaf; at random.
    shifted = [(n + side) % hosts for n in range(hosts)]
    transposed = [n % side * side + n // side for n in range(hosts)]
    drawn = [random.Random(seed).sample(range(hosts), hosts) for seed in range(4)]
    for to in (shifted, transposed, *drawn):
        pairs = [(n // side, to[n] // side) for n in range(hosts)]
        ends = [pair for pair in pairs if pair[0] != pair[1]]
        paths = leaf_spine(ends, side, side)
        chosen = place(paths, [8e6] * len(ends), [50.0] * (2 * hosts), list(range(len(ends))))
        used = Counter(link for flow, path in enumerate(chosen) for link in paths[flow][path])
        assert set(used.values()) == {1}


@pytest.mark.parametrize("over", [2, 3])
def test_an_oversubscribed_permutation_is_spread_evenly(over: int) -> None:
    for seed in range(4):
        to = random.Random(seed).sample(range(64), 64)
        ends = [(n // 8, to[n] // 8) for n in range(64)]
        ends = [pair for pair in ends if pair[0] != pair[1]]
        spines = 8 // over
        paths = leaf_spine(ends, 8, spines)
        chosen = place(paths, [8e6] * len(ends), [50.0] * (16 * spines), list(range(len(ends))))
        used = Counter(link for flow, path in enumerate(chosen) for link in paths[flow][path])
        most = max(Counter(a for a, _ in ends).values()), max(Counter(b for _, b in ends).values())
        assert max(used.values()) == math.ceil(max(most) / spines)


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[Paths, list[float], list[float]]:
    links = draw(st.integers(2, 6))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)
    paths = draw(st.lists(st.lists(path, min_size=1, max_size=3), min_size=1, max_size=6))
    size = st.integers(1, 20).map(float)
    sizes = draw(st.lists(size, min_size=len(paths), max_size=len(paths)))
    free = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=links, max_size=links))
    return paths, sizes, free


@settings(max_examples=150, deadline=None)
@given(small_cases())
def test_the_optimum_is_never_beaten_and_the_answer_is_a_legal_one(
    case: tuple[Paths, list[float], list[float]],
) -> None:
    paths, sizes, free = case
    chosen = place(paths, sizes, free, list(range(len(sizes))))
    assert all(0 <= path < len(flow) for path, flow in zip(chosen, paths, strict=True))
    found, best = worst_time(paths, sizes, free, chosen), best_time(paths, sizes, free)
    assert found >= best
    # At most all bytes on the slowest link; a flow alone takes no less than its own best.
    assert found <= sum(sizes) / min(free)
    assert chosen == place(paths, sizes, free, list(range(len(sizes))))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 4), st.lists(st.integers(1, 30).map(float), min_size=1, max_size=7))
def test_over_parallel_links_the_bound_of_largest_first_holds(
    links: int, sizes: list[float]
) -> None:
    paths = [[[link] for link in range(links)] for _ in sizes]
    free = [1.0] * links
    found = worst_time(paths, sizes, free, place(paths, sizes, free, [0] * len(sizes)))
    # Graham, 1969: 4/3 - 1/(3 m) for m machines.
    assert found <= best_time(paths, sizes, free) * (4 / 3 - 1 / (3 * links)) * (1 + 1e-9)


def test_a_loaded_a_slow_and_a_dead_link_get_less_or_nothing() -> None:
    paths = [[[0], [1], [2]] for _ in range(9)]
    chosen = place(paths, [1.0] * 9, [1.0, 0.5, 0.0], list(range(9)))
    assert Counter(chosen) == {0: 6, 1: 3}
    assert place(paths, [1.0] * 9, [0.0] * 3, list(range(9))) == [0] * 9


def test_a_flow_with_no_way_out_does_not_keep_others_from_relief() -> None:
    ends = [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    paths = [*leaf_spine(ends, 3, 2), [[12]]]
    chosen = place(paths, [1.0] * 7, [1.0] * 12 + [0.0], [5, 3, 1, 4, 2, 0, 6])
    used = Counter(link for flow, path in enumerate(chosen) for link in paths[flow][path])
    assert max(used.values()) == 1


def test_of_like_paths_the_shorter_is_taken_and_turns_spread_the_rest() -> None:
    assert place([[[0, 1], [2]]], [1.0], [1.0] * 3, [0]) == [1]
    assert {place([[[0], [1], [2]]], [1.0], [1.0] * 3, [turn])[0] for turn in range(3)} == {
        0,
        1,
        2,
    }


FINDER = PathFinder(
    [
        DirectedLink(name=f"{a}>{b}", src=a, dst=b)
        for one, two in [
            *((f"h{n}", f"l{n // 2}") for n in range(8)),
            *((f"l{leaf}", f"s{spine}") for leaf in range(4) for spine in range(2)),
        ]
        for a, b in ((one, two), (two, one))
    ]
)
FLOWS: dict[Flow, float] = {(f"h{n}", f"h{(n + 2) % 8}", n): 1e6 for n in range(8)}


def router(flows: Iterable[Flow] = FLOWS, **fields: object) -> Router:
    """A host's router; which path sets it holds, and in which order, is its own affair."""
    ends = list(dict.fromkeys(flow[:2] for flow in flows))
    routing = Routing(**{"forecast": "reading", "hold_ns": 0, **fields})  # type: ignore[arg-type]
    return Router(FINDER.path_sets(ends), Policy(routing=routing), clock=lambda: 0)


def spines(made: Router, chosen: dict[Flow, int]) -> dict[Flow, str]:
    sets = FINDER.path_sets([flow[:2] for flow in chosen])
    return {flow: sets[flow[:2]][path][1] for flow, path in chosen.items()}


@pytest.mark.parametrize("mode", ["binary", "static"])
def test_placed_flows_keep_apart_and_all_their_units_take_the_path(mode: str) -> None:
    made = router(mode=mode)
    early = [*FLOWS][:4]
    for flow in early:  # known before the placement
        made.choose(flow)
    chosen = made.place(FLOWS)
    assert set(Counter(spines(made, chosen).values()).values()) == {1}
    for flow in FLOWS:
        assert [made.choose(flow) for _ in range(8)] == [chosen[flow]] * 8


def test_a_placed_flow_leaves_a_warned_path_as_any_other() -> None:
    made = router()
    flow = ("h0", "h2", 0)
    sets = FINDER.path_sets([flow[:2]])[flow[:2]]
    placed = made.place(FLOWS)[flow]
    for path in sets:
        for link in path:
            made.observe(link, occupancy=0.9 if link == sets[placed][1] else 0.1, at_ns=0)
    assert made.choose(flow, at_ns=1) != placed


def test_hosts_with_the_same_verdicts_come_to_the_same_placement() -> None:
    verdicts = {f"l{leaf}>s{leaf % 2}": 0.7 for leaf in range(4)}
    answers = []
    for seed in range(6):
        flows = random.Random(seed).sample([*FLOWS], len(FLOWS))
        made = router(flows)
        made.observe(f"l{seed % 4}>s0", occupancy=seed / 10, at_ns=0)  # known to this host alone
        for link, weight in verdicts.items():
            made.weigh(link, weight, at_ns=0)
        answers.append(spines(made, made.place({flow: FLOWS[flow] for flow in flows})))
    assert all(answer == answers[0] for answer in answers)


def test_a_blacklisted_link_and_a_slow_one_get_nothing_or_less() -> None:
    made = router()
    for _ in range(3):
        made.observe("l0>s0", lost=True, at_ns=0)
    taken = spines(made, made.place(FLOWS))
    assert {taken[flow] for flow in FLOWS if flow[0] in ("h0", "h1")} == {"l0>s1"}
    many: dict[Flow, float] = {("h0", "h2", n): 1e6 for n in range(9)}
    slow = Router(
        FINDER.path_sets([("h0", "h2")]),
        Policy(),
        clock=lambda: 0,
        link_gbps={"l0>s0": 200.0, "s0>l1": 200.0, "l0>s1": 400.0, "s1>l1": 400.0},
    )
    assert Counter(spines(slow, slow.place(many)).values()) == {"l0>s1": 6, "l0>s0": 3}


def test_flows_without_a_path_set_are_left_out() -> None:
    assert router().place({("x", "y", 0): 1.0}) == {}


def test_a_full_link_still_carries_something_and_a_dead_one_nothing() -> None:
    shares = [free_share(worth) for worth in (math.nan, 0.0, 0.75, 0.999, 1.0, 7.5, DEAD)]
    assert shares == pytest.approx([1.0, 1.0, 0.25, 0.05, 0.05, 0.05, 0.0])
    # Beside dead links even one that is forecast to be far beyond full is the way to take.
    assert place([[[0], [1]]], [1.0], [free_share(DEAD), free_share(7.5)], [0]) == [1]


@pytest.mark.parametrize("size", [math.nan, -1.0, math.inf, "1e6", None])
def test_a_flow_of_impossible_size_is_named_and_nothing_is_placed(size: object) -> None:
    made = router()
    before = made.place(FLOWS)
    flows = {**dict.fromkeys(FLOWS, 1.0), ("h0", "h2", "odd"): size}
    with pytest.raises(ValueError, match=r"\('h0', 'h2', 'odd'\): .* is not a number of bytes"):
        made.place(flows)  # type: ignore[arg-type]
    assert {flow: made.choose(flow) for flow in FLOWS} == before
    assert made.place({**FLOWS, ("h0", "h2", "none"): 0})  # a flow that has nothing to send yet


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf, "400"])
def test_a_link_rate_that_is_none_is_refused(rate: object) -> None:
    paths = {("a", "b"): [["x"], ["y"]]}
    for rates in (rate, {"x": 400.0, "y": rate}):
        with pytest.raises(ValueError, match=r"link_gbps: .* of link [xy] is not a positive"):
            Router(paths, Policy(), link_gbps=rates)  # type: ignore[arg-type]

"""Sampled phases: what they are held against, and that nobody's order or process matters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec, resolve_name
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_loop.made import made
from xtune.policies.presets import preset
from xtune.policies.spec import Routing
from xtune.sim._state import MODES
from xtune.sim.cache import (
    MAKERS,
    WINDOW_BYTES,
    PhaseCache,
    Phases,
    routing_digest,
    size_bin,
    step_ns,
    window_bytes,
)
from xtune.sim.network import CLEAR, DEEPEST, DRAWS, SAMPLES, Network, State, state_of
from xtune.sim.phase import run_phase

STATIC = Routing(mode="static")
NETWORK = Network.of(made())
LINE_S_PER_BYTE = 8 / 400e9


def phases(routing: Routing = STATIC, network: Network = NETWORK) -> Phases:
    return Phases(network, routing, PhaseCache())


@pytest.mark.parametrize("bytes_", [200_000, 5_000_000, 10**9])
def test_a_clear_ring_takes_its_bytes_at_line_rate(bytes_: int) -> None:
    # One size bin is a quarter octave wide; a run is scaled to the size asked for.
    seconds = phases().seconds("ring", bytes_, CLEAR, 0)
    start = 5e-6  # four links of 500 ns, three switches that store a packet, steps of 1 us
    assert bytes_ * LINE_S_PER_BYTE <= seconds <= bytes_ * LINE_S_PER_BYTE * 1.01 + start


@pytest.mark.parametrize("depth_bin", range(13))
@pytest.mark.parametrize("edge", [False, True])
def test_a_fixed_path_is_slowed_by_the_depth(depth_bin: int, edge: bool) -> None:
    state = State(depth_bin=depth_bin, edge=edge)
    for place in range(SAMPLES):
        seconds = phases().seconds("ring", 10**9, state, place)
        assert seconds / (10**9 * LINE_S_PER_BYTE) == pytest.approx(state.depth, rel=0.06)


@pytest.mark.parametrize("depth", [1.07, 1.5, 3.0, 5.3])
def test_between_two_sampled_depths_it_is_slowed_by_its_own(depth: float) -> None:
    state = state_of(depth, edge=False)
    low, high = state.around
    times = [phases().seconds("ring", 10**9, at, 2) for at in (low, state, high)]
    assert times[0] < times[1] < times[2]
    share = (depth - low.depth) / (high.depth - low.depth)
    assert times[1] == pytest.approx(times[0] + share * (times[2] - times[0]), rel=1e-6)
    assert times[1] / (10**9 * LINE_S_PER_BYTE) == pytest.approx(depth, rel=0.02)


def test_another_path_and_an_upper_lane_avoid_what_they_can() -> None:
    deep = State(depth_bin=8)
    fixed = phases().seconds("ring", 10**9, deep, 0)
    moved = phases(preset("joint").routing).seconds("ring", 10**9, deep, 0)
    assert moved < 0.5 * fixed
    # No path avoids a host's own port. Over two spines the flow comes in by two of five inputs,
    # each of which gets its share: 5 / 2 at best, in place of 4.
    edge = State(depth_bin=8, edge=True)
    stuck = phases(preset("joint").routing).seconds("ring", 10**9, edge, 0)
    assert 2.4 < stuck / (10**9 * LINE_S_PER_BYTE) < 4.1
    # An upper lane helps against traffic of the lower lane alone.
    upper = Routing(mode="static", lanes=2)
    other = phases(upper, Network.of(made(same_lane_share=0.0))).seconds("ring", 10**9, deep, 0)
    same = phases(upper, Network.of(made(same_lane_share=1.0))).seconds("ring", 10**9, deep, 0)
    assert other == pytest.approx(10**9 * LINE_S_PER_BYTE, rel=0.01)
    assert same == pytest.approx(fixed, rel=0.01)


@pytest.mark.parametrize("mode", ["static", "spray"])
def test_a_large_phase_is_extrapolated_as_it_would_run(mode: str) -> None:
    state, size = State(depth_bin=6), 4 * WINDOW_BYTES
    routing, place = Routing(mode=mode), NETWORK.sampled_place(1)
    background, slow = NETWORK.background(state, place)
    whole = run_phase(
        NETWORK.fabric(slow), NETWORK.flows("ring", size, place), routing=routing,
        background=background, seed=place,
    )  # fmt: skip
    assert phases(routing).seconds("ring", size, state, 1) == pytest.approx(
        whole.phase_ns * 1e-9, rel=0.03
    )


def test_bytes_and_hosts_of_an_all_to_all() -> None:
    flows = NETWORK.flows("all_to_all", 7_000_000, seed=0)
    assert len(flows) == 8 * 7
    assert flows.size.tolist() == [1_000_000] * 56
    sent = np.bincount(flows.src, weights=flows.size)
    assert sorted(sent[sent > 0]) == [7_000_000.0] * 8
    with pytest.raises(ValueError, match="collective 'tree'"):
        NETWORK.flows("tree", 1, seed=0)


def test_a_cell_is_kept_for_other_processes(tmp_path: Path) -> None:
    state = state_of(2.0, edge=False)
    first = Phases(NETWORK, STATIC, PhaseCache(tmp_path)).sample("ring", 10**9, state, 3)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 and files[0].suffix == ".json"
    second = Phases(NETWORK, STATIC, PhaseCache(tmp_path)).sample("ring", 10**9, state, 3)
    assert second == first
    files[0].write_text("{ torn")  # a damaged cell is made anew
    third = Phases(NETWORK, STATIC, PhaseCache(tmp_path)).sample("ring", 10**9, state, 3)
    assert third == first
    assert files[0].read_text().startswith('{"schema": 2')


def test_only_places_that_are_asked_for_are_run(tmp_path: Path) -> None:
    """Four are told apart; 64 where a hash draws the paths, but not of an all-to-all."""
    drawn = replace(NETWORK, ecmp_share=1.0)
    assert (drawn.samples("ring"), drawn.samples("all_to_all")) == (DRAWS, SAMPLES) == (64, 4)
    assert NETWORK.samples("ring") == SAMPLES
    for network, told_apart in ((NETWORK, SAMPLES), (drawn, DRAWS)):
        folder = tmp_path / str(told_apart)
        cells = Phases(network, STATIC, PhaseCache(folder))
        for count, place in enumerate((3, 17 * told_apart + 3, 5 * DRAWS + 2)):
            cells.sample("ring", 10**6, CLEAR, place)
            assert len(list(folder.iterdir())) == (1, 1, 2)[count]


def test_drawn_paths_collide_as_often_as_chance_has_it() -> None:
    """Of eight hosts below four leaves, rings of two: each leaf sends two flows up.

    A phase takes one line time where no two flows share a link, which is where the two of each
    leaf, and the two towards each, are on different spines: all eight in two disjoint pairs.
    """
    network = replace(NETWORK, ecmp_share=1.0, rings=2)
    assert (network.leaves, network.job_per_leaf, network.spines) == (4, 2, 2)
    times = np.array([phases(STATIC, network).seconds("ring", 10**8, CLEAR, k) for k in range(64)])
    alone = 10**8 * LINE_S_PER_BYTE
    loads = np.round(times / alone).astype(int)
    assert times / alone == pytest.approx(loads, rel=0.02) and set(loads) == {1, 2}
    # The two flows of a leaf go to the same next leaf: four fair coins must all fall well.
    expected, spread = 64 / 16, np.sqrt(64 / 16 * 15 / 16)
    assert abs((loads == 1).sum() - expected) < 3 * spread


@pytest.mark.parametrize(("collective", "size"), [("ring", 10**7), ("all_to_all", 7 * 2**19)])
def test_longer_steps_on_slower_links_change_little(collective: str, size: int) -> None:
    slow = replace(NETWORK, gbps=100.0)
    state, place = State(depth_bin=5), slow.sampled_place(1)
    background, at = slow.background(state, place)
    flows = slow.flows(collective, size, place)
    fine = run_phase(slow.fabric(at), flows, background=background, seed=place, dt_ns=500)
    coarse = phases(STATIC, slow).run(collective, size, state, place)
    assert 2 * coarse.steps < fine.steps
    assert coarse.phase_ns == pytest.approx(fine.phase_ns, rel=0.05)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("gbps", [100.0, 400.0])
def test_steps_are_short_enough_in_every_mode(mode: str, gbps: float) -> None:
    """A small all-to-all in steps of a cell and of an eighth of it, over draws of paths."""
    routing, network = Routing(mode=mode), replace(NETWORK, gbps=gbps)
    sizes = {4096, 16384, 262144 if mode != "power_of_two" else 4096}  # its draws differ too much
    for size in sizes:
        whole, short = (
            np.mean([
                phases(routing, network)
                .run("all_to_all", 7 * size, CLEAR, k, longest_step_ns=longest)
                .phase_ns
                for k in range(4)
            ])
            for longest in (None, max(20, step_ns(size, gbps, mode) // 8))
        )  # fmt: skip
        assert whole == pytest.approx(short, rel=0.025), (size, whole / short - 1)


def test_steps_by_hand() -> None:
    assert [step_ns(n << 20, 400.0, "static") for n in (1, 64)] == [1000, 1000]
    assert [step_ns(n << 20, 100.0, "static") for n in (1, 64)] == [1500, 1500]
    # 160,000 bytes: 3.2 us at 400 Gb/s, 12.8 us at 100 Gb/s, in 16 steps or in 8.
    assert [step_ns(160_000, rate, "static") for rate in (400.0, 100.0)] == [200, 800]
    assert [step_ns(160_000, rate, "spray", collides=True) for rate in (400.0, 100.0)] == [
        400, 1600,
    ]  # fmt: skip
    assert step_ns(64 << 20, 100.0, "binary", collides=True) == 3000
    # Bounds: 50 ns, 256 bytes, half a packet of 4096 bytes.
    assert step_ns(100, 400.0, "static") == 50
    assert step_ns(100, 10.0, "static") == 205
    assert [step_ns(64 << 20, r, "switch_adaptive") for r in (400.0, 100.0)] == [41, 164]


@given(
    size=st.integers(1, 1 << 34), gbps=st.floats(1.0, 1600.0), mode=st.sampled_from(sorted(MODES)),
    collides=st.booleans(), more=st.floats(1.0, 100.0),
)  # fmt: skip
def test_steps_grow_with_size_and_shrink_with_rate_without_a_jump(
    size: int, gbps: float, mode: str, collides: bool, more: float
) -> None:
    step = step_ns(size, gbps, mode, collides=collides)
    assert step >= 1
    assert step <= step_ns(round(size * more), gbps, mode, collides=collides) <= step * more + 2
    faster = step_ns(size, gbps * more, mode, collides=collides)
    assert step / more - 2 <= faster <= step
    assert step <= step_ns(size, gbps, mode, collides=True)


def test_an_all_to_all_on_colliding_paths_is_carried_on_in_proportion() -> None:
    cells = phases(STATIC, replace(NETWORK, ecmp_share=1.0, gbps=1.0))  # windows of 1 MiB
    last = cells.sample("all_to_all", 2**20, CLEAR, 0)
    beyond = cells.seconds("all_to_all", 10 * 2**20, CLEAR, 0)
    large = cells.sample("all_to_all", 10 * 2**20, CLEAR, 0)
    assert large.s_per_byte == pytest.approx(large.base_s / large.base_bytes, rel=1e-12)
    assert beyond == pytest.approx(10 * last.seconds(2**20), rel=0.01)


def test_what_shares_a_cell() -> None:
    joint = preset("joint").routing
    assert routing_digest(joint) == routing_digest(preset("routing_only").routing)
    assert routing_digest(Routing(mode="static", hold_ns=1)) == routing_digest(STATIC)
    assert routing_digest(Routing(mode="static", lanes=2)) != routing_digest(STATIC)
    assert window_bytes(400.0) == WINDOW_BYTES == 4 * window_bytes(100.0)
    assert window_bytes(400.0, 0.25) == 16 << 20 and window_bytes(1.0) == 1 << 20
    assert size_bin(2**20, WINDOW_BYTES) == 80 and size_bin(2**20, 2**19) == -1
    # Nearest quarter octave: at most an eighth off.
    assert all(
        abs(size_bin(n, WINDOW_BYTES) / 4 - np.log2(n)) <= 1 / 8 for n in range(10**6, 10**7, 9973)
    )


def test_a_large_fabric_is_sliced_and_says_so() -> None:
    large = Network.of(made(job_hosts=1024, leaves=32, spines=32))
    assert large.slice_of == 1024
    assert len(large.job) == 64
    # As many spines for each job host of a leaf as the whole has.
    assert large.spines / large.job_per_leaf == pytest.approx(32 / 32)
    assert NETWORK.slice_of is None and len(NETWORK.job) == 8
    assert DEEPEST == 8.0


def imported(name: str) -> Iterator[str]:
    """Modules that a module's source imports by name, anywhere in it."""
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    package = name if spec.submodule_search_locations else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if base.startswith("xtune") and is_module(whole) else base


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be in is no package
        return False


def test_a_cell_depends_on_all_that_makes_it() -> None:
    # Makes the network, all of which is in the key.
    seen, before = set[str](), {"xtune.sim.calibration"}
    left = ["xtune.sim.cache"]
    while left:
        name = left.pop()
        if name.startswith(("xtune.sim.", "xtune.policies.")) and name not in seen | before:
            seen.add(name)
            left += imported(name)
    assert seen == set(MAKERS)

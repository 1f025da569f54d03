from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies._core import hash31
from xtune.policies.forecast import make_forecaster
from xtune.policies.router import Router
from xtune.policies.spec import Policy, Routing
from xtune.sim import _choices
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import flow_ns
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import build_flows, shift
from xtune.sim.phase import run_phase

STEP_NS = 1000


def make_state(fabric: LeafSpine, routing: Routing) -> State:
    """A state with one flow over all spines in their order, which is never stepped."""
    last = fabric.hosts - 1
    flows = build_flows([0], [last], 1 << 40).with_paths([0], [min(1, fabric.spines - 1)])
    state = State(
        fabric, flows, routing=routing, dt_ns=STEP_NS, seed=0, pfc=Backpressure(),
        limit_ns=10**9,
    )  # fmt: skip
    state.paths[0] = np.arange(state.paths.shape[1])
    return state


def choose(state: State, occupancy: list[float], step: int) -> int:
    """One reading of every path (on its uplink), then the kernel's choice of the next unit."""
    fabric = state.fabric
    assert isinstance(fabric, LeafSpine)
    state.cfg[k.STEP] = step
    for spine, share in enumerate(occupancy):
        state.queued[fabric.uplink(0, spine)] = round(share * fabric.buffer_bytes)
    _choices.probe(
        state.cfg, state.real, state.queued, state.links, state.pending, state.window,
        state.times, state.hist,
    )  # fmt: skip
    _choices.start_unit(
        state.cfg, state.real, state.rng, state.ends, state.flow_u, state.flow_i,
        state.links, state.segments, state.paths, state.pairs, state.budgets, state.route,
        state.extras.down, 0,
    )  # fmt: skip
    return int(state.flow_u[0, k.PATH])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_units_take_the_paths_that_the_engine_would_take(data: st.DataObject) -> None:
    spines = data.draw(st.integers(2, 6))
    exit_at, enter = sorted(data.draw(st.sampled_from([(0.5, 0.7), (0.3, 0.4), (0.1, 0.9)])))
    routing = Routing(
        mode=data.draw(st.sampled_from(["binary", "flowlet"])),
        flowlet_gap_ns=data.draw(st.sampled_from([0, STEP_NS, STEP_NS + 1])),
        forecast=data.draw(st.sampled_from(["reading", "ewma", "slope", "holt"])),
        window_readings=data.draw(st.integers(2, 5)),
        horizon_ns=data.draw(st.sampled_from([0, 5_000, 200_000])),
        enter_occupancy=enter,
        exit_occupancy=exit_at,
        cold_occupancy=data.draw(st.sampled_from([0.1, 0.4])),
        order=data.draw(st.sampled_from(["edge_first", "coldest"])),
        pairs=data.draw(st.integers(1, 4)),
        hold_ns=data.draw(st.sampled_from([0, 2_000, 20_000])),
        moves_per_ms=data.draw(st.sampled_from([10.0, 300.0])),
        probe_interval_ns=STEP_NS,
        decision_delay_ns=0,
    )
    fabric = LeafSpine(4, 2, spines)
    state = make_state(fabric, routing)
    # A flow number whose hash starts the rounds of pairs, of alternatives and of paths at 0.
    around = min(routing.pairs, spines) * (spines - 1) * spines
    ident = next(i for i in range(10_000) if hash31(i, 0) % around == 0)
    names = [[f"up{s}", f"down{s}"] for s in range(spines)]
    router = Router({("a", "b"): names}, Policy(routing=routing), clock=lambda: 0)
    shares = st.integers(0, 64).map(lambda n: n / 64)
    rows = data.draw(st.lists(st.lists(shares, min_size=spines, max_size=spines), max_size=40))
    for step, row in enumerate(rows):
        for spine, share in enumerate(row):
            router.observe(f"up{spine}", occupancy=share, at_ns=step * STEP_NS)
            router.observe(f"down{spine}", occupancy=0.0, at_ns=step * STEP_NS)
        expected = router.choose(("a", "b", ident), at_ns=step * STEP_NS)
        assert choose(state, row, step) == expected
    if routing.mode == "binary":  # of the others the kernel counts what was sent
        assert state.flow_i[0, k.MOVES] == router.moves


@pytest.mark.parametrize("forecast", ["reading", "ewma", "slope", "holt"])
def test_forecasts_are_those_of_the_engine_to_the_last_bit(forecast: str) -> None:
    routing = Routing(
        forecast=forecast, probe_interval_ns=2 * STEP_NS, decision_delay_ns=5 * STEP_NS
    )
    state = make_state(LeafSpine(4, 2, 2), routing)
    engine = make_forecaster(routing)
    readings = np.random.default_rng(2).integers(0, 1_000_000, 50)
    for step in range(100):
        choose(state, [readings[step // 2] / 1_000_000, 0.0], step)
        # A reading of step 2n is seen at step 2n + 5.
        if step >= 5 and step % 2:
            read = (step - 5) // 2
            engine.update(readings[read] / 1_000_000, read * 2 * STEP_NS)
            assert state.links[0, k.PEAK] == engine.peak(routing.horizon_ns)


def test_a_warned_flow_leaves_its_primary_for_a_cold_path() -> None:
    fabric = LeafSpine.square(16)
    job = build_flows([0], [4], 6_000_000).with_paths([1], [3])
    # Two flows that never end hold the job to a third of the uplink.
    other = build_flows([1, 2], [5, 6], 1 << 40).with_paths([1, 1]).in_background()
    static = run_phase(fabric, job, background=other)
    binary = run_phase(fabric, job, background=other, routing=Routing(pairs=1, unit_bytes=250_000))
    assert static.moves[0] == 0
    assert static.phase_ns == pytest.approx(3 * 6_000_000 / 50, rel=0.1)
    assert binary.moves[0] >= 1
    assert binary.phase_ns < 0.6 * static.phase_ns
    assert binary.reorder_bytes[0] > 0 == static.reorder_bytes[0]
    assert binary.moves[1:].tolist() == [0, 0]  # other jobs run no engine


def test_choices_order_the_modes_on_colliding_flows() -> None:
    fabric = LeafSpine.square(64)
    flows = shift(fabric)

    def mean_phase(routing: Routing) -> float:
        return float(
            np.mean([run_phase(fabric, flows, routing=routing, seed=s).phase_ns for s in range(8)])
        )

    static = mean_phase(Routing(mode="static"))
    binary = mean_phase(Routing(mode="binary"))
    two = mean_phase(Routing(mode="power_of_two"))
    spray = mean_phase(Routing(mode="spray"))
    flowlet = mean_phase(Routing(mode="flowlet"))
    rigid = mean_phase(Routing(mode="flowlet", flowlet_gap_ns=10**9))
    alone = flow_ns(fabric, 8_000_000)
    assert binary < 0.7 * static
    assert two < 0.7 * static
    assert flowlet < 0.7 * static
    assert rigid == static  # without a gap there is no flowlet
    assert alone <= spray < 1.1 * alone


def test_a_second_path_that_is_the_first_changes_nothing() -> None:
    fabric = LeafSpine.square(64)
    flows = shift(fabric, 2_000_000)
    spine = np.random.default_rng(0).integers(0, 8, 64).astype(np.int32)
    same = flows.with_paths(spine, spine)
    static = run_phase(fabric, same)
    binary = run_phase(fabric, same, routing=Routing(mode="binary", pairs=1))
    np.testing.assert_array_equal(static.completion_ns, binary.completion_ns)


def test_reordering_of_two_unequal_paths_is_counted_exactly() -> None:
    # Spine 1 is ten times slower. Two units, 100 kB each: the first by the slow path.
    port = LeafSpine(4, 2, 2).uplink(0, 0)
    fabric = LeafSpine(4, 2, 2, slow_ports=((port, 0.1),))
    flows = build_flows([0], [2], 200_000).with_paths([0], [1])
    routing = Routing(mode="binary", pairs=2, unit_bytes=100_000)
    result = run_phase(fabric, flows, routing=routing, dt_ns=1000)
    # Units go round the two pairs. The fast one arrives whole (2 us at 50 B/ns, 2 us later)
    # while the slow one brings 5 kB a step: all 100 kB wait until the last of the slow ones.
    assert result.reorder_bytes[0] == 100_000
    assert result.phase_ns == pytest.approx(100_000 / 5 + 2000 + 3 * 4096 / 50, rel=0.01)

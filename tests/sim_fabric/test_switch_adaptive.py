"""Adaptive routing by the switches: what a leaf knows, and when it acts."""

from __future__ import annotations

import numpy as np
import pytest

from xtune.policies.spec import Routing
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Fault, SharedBuffer
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import build_flows, permutation, shift
from xtune.sim.phase import run_phase

SIZE = 4_000_000
FLOWS = Routing(mode="switch_adaptive", switch_load="flows", flowlet_gap_ns=10**9)
QUEUE = Routing(mode="switch_adaptive", switch_load="queue", flowlet_gap_ns=10**9)


@pytest.mark.parametrize("seed", range(5))
def test_by_flows_the_hosts_of_a_leaf_get_an_uplink_each(seed: int) -> None:
    # Each leaf sends to one other leaf: flows apart on the way up are apart on the way down.
    fabric = LeafSpine.square(64)
    result = run_phase(fabric, shift(fabric, SIZE), routing=FLOWS, seed=seed)
    np.testing.assert_allclose(result.completion_ns, flow_ns(fabric, SIZE), rtol=1e-3)
    assert result.moves.sum() == 0


def test_by_queue_flows_that_start_together_see_empty_queues_alike() -> None:
    # So they choose as a hash does, and meet: the mean of a phase is that of static paths.
    fabric = LeafSpine.square(64)
    flows = shift(fabric, SIZE)
    static = Routing(mode="static")
    phases = np.array(
        [
            [
                run_phase(fabric, flows, routing=each, seed=s).completion_ns.mean()
                for s in range(40)
            ]
            for each in (QUEUE, static)
        ]
    )
    error = phases.std(axis=1).mean() / 40**0.5
    assert abs(phases[0].mean() - phases[1].mean()) < 3 * error


def test_by_queue_a_later_flow_avoids_what_its_leaf_holds() -> None:
    # Two flows of leaf 0 begin together; where they meet on one uplink, its queue stands.
    fabric = LeafSpine(12, 3, 2)
    flows = build_flows([0, 1, 2], [4, 8, 5], [SIZE, SIZE, 1_000_000], start_ns=[0, 0, 20_000])
    met = 0
    for seed in range(20):
        first, _, late = run_phase(fabric, flows, routing=QUEUE, seed=seed).completion_ns
        if first > 1.5 * flow_ns(fabric, SIZE):
            met += 1
            assert late - 20_000 == pytest.approx(flow_ns(fabric, 1_000_000), rel=1e-3)
    assert met >= 5


def test_after_a_gap_a_flow_leaves_a_port_that_holds_more() -> None:
    # Both flows of leaf 0 begin on spines of equal load; where they meet, each is paused for
    # longer than the gap now and then, and one moves to the other, empty uplink.
    fabric = LeafSpine(8, 2, 2)
    flows = build_flows([0, 1, 2], [4, 5, 6], 20_000_000)
    for seed in range(20):
        held = run_phase(fabric, flows, routing=QUEUE, seed=seed)
        moved = run_phase(
            fabric, flows, seed=seed,
            routing=Routing(mode="switch_adaptive", flowlet_gap_ns=2_000),
        )  # fmt: skip
        assert held.moves.sum() == 0
        assert moved.phase_ns <= held.phase_ns * 1.001


def test_a_switch_chooses_for_other_jobs_too() -> None:
    fabric = LeafSpine.square(16)
    flows = shift(fabric, SIZE)
    half = np.arange(16) % 2 == 1
    job = build_flows(flows.src[~half], flows.dst[~half], SIZE)
    other = build_flows(flows.src[half], flows.dst[half], SIZE).in_background(lane=0)
    result = run_phase(fabric, job, background=other, routing=FLOWS, seed=3)
    np.testing.assert_allclose(result.completion_ns[: len(job)], flow_ns(fabric, SIZE), rtol=1e-3)


@pytest.mark.parametrize("load", ["queue", "flows"])
@pytest.mark.parametrize("kind", ["pfc", "none"])
def test_a_switch_takes_none_of_its_ports_that_are_down(kind: str, load: str) -> None:
    fabric = LeafSpine.square(64)
    flows = permutation(fabric, SIZE, seed=1)
    buffer = SharedBuffer(bytes_per_switch=64_000_000, recovery="selective")
    result = run_phase(
        fabric, flows, routing=Routing(mode="switch_adaptive", switch_load=load), dt_ns=500,
        pfc=Backpressure(kind=kind), faults=[Fault(at_ns=0, port=fabric.uplink(0, 3))],
        shared_buffer=buffer if kind == "none" else None, limit_ns=5_000_000,
    )  # fmt: skip
    assert result.finished
    assert result.port_dropped_bytes[fabric.uplink(0, 3)] == 0


def test_a_flow_leaves_a_port_that_goes_down_at_once() -> None:
    # Two steps' bytes are lost: what the port holds, and what its host has sent it before.
    fabric = LeafSpine(4, 2, 2)
    flows = build_flows([0], [2], SIZE)
    moved = 0
    for seed in range(8):
        result = run_phase(
            fabric, flows, routing=QUEUE, pfc=Backpressure(kind="none"), seed=seed,
            shared_buffer=SharedBuffer(bytes_per_switch=64_000_000, recovery="selective"),
            faults=[Fault(at_ns=20_000, port=fabric.uplink(0, 0))], limit_ns=1_000_000,
        )  # fmt: skip
        assert result.finished
        assert result.dropped_bytes <= 2 * 50_000
        moved += int(result.moves[0])
        assert (result.moves[0] == 1) == (result.dropped_bytes > 0)
    assert moved > 0


def test_with_one_spine_the_switch_has_no_choice() -> None:
    fabric = LeafSpine(8, 2, 1)
    flows = permutation(fabric, 500_000)
    static = run_phase(fabric, flows)
    for routing in (FLOWS, QUEUE, Routing(mode="switch_adaptive", flowlet_gap_ns=0)):
        chosen = run_phase(fabric, flows, routing=routing)
        np.testing.assert_array_equal(chosen.completion_ns, static.completion_ns)

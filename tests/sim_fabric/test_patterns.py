"""Trees, pipelines and several jobs, against bounds and against other ways to the same figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim.bounds import (
    all_to_all_bound_ns,
    flow_ns,
    load_bound_ns,
    payload_rate,
    ring_bound_ns,
)
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, all_to_all, build_flows, halving_doubling, ring, ring_steps
from xtune.sim.jobs import Job, job_times, join_jobs
from xtune.sim.patterns import double_tree, one_forward_one_backward, pipeline, tree
from xtune.sim.phase import run_phase

ONE_LEAF = LeafSpine(16, 1, 1)  # nothing collides below one leaf
SIZE = 32 << 20


def depth(parents: list[int], rank: int) -> int:
    steps = 0
    while parents[rank] >= 0:
        rank, steps = parents[rank], steps + 1
        assert steps <= len(parents)
    return steps


@given(st.integers(2, 300))
def test_both_trees_span_all_ranks_and_are_low(ranks: int) -> None:
    for parents in double_tree(ranks):
        assert parents.count(-1) == 1
        children = np.bincount([p for p in parents if p >= 0], minlength=ranks)
        assert children.max() <= 2
        assert max(depth(parents, r) for r in range(ranks)) <= (ranks - 1).bit_length()
    if ranks % 2 == 0:  # who forwards in one tree is a leaf of the other, but the root's child
        inner = [{p for p in parents if p >= 0} for parents in double_tree(ranks)]
        assert not inner[0] & inner[1]


def test_the_trees_of_eight_by_hand() -> None:
    # 0 - 4, 4 - (2, 6), 2 - (1, 3), 6 - (5, 7); mirrored: rank r is 7 - r.
    assert double_tree(8)[0] == [-1, 2, 4, 2, 0, 6, 4, 6]
    assert double_tree(8)[1] == [1, 3, 1, 7, 5, 3, 5, -1]
    # Shifted by one where the number is odd.
    assert double_tree(5)[1] == [1, -1, 3, 0, 3]


@pytest.mark.parametrize("n", [2, 7, 16])
def test_a_tree_sends_the_bytes_up_and_down_once(n: int) -> None:
    hosts = np.random.default_rng(n).permutation(16)[:n].astype(np.int32)
    flows = tree(ONE_LEAF, SIZE, chunks=8, hosts=hosts)
    assert flows.size.sum() == 2 * (n - 1) * SIZE
    arrived = np.bincount(flows.dst, weights=flows.size, minlength=16)
    assert (arrived[[h for h in range(16) if h not in hosts]] == 0).all()
    assert (arrived[hosts] >= SIZE).all()  # the sum reaches every rank


@pytest.mark.parametrize("n", [4, 16])
def test_a_tree_takes_its_busiest_port_and_the_way_through_it(n: int) -> None:
    chunks = 128
    flows = tree(ONE_LEAF, SIZE, chunks=chunks, hosts=range(n))
    result = run_phase(ONE_LEAF, flows, dt_ns=500)
    bound = load_bound_ns(ONE_LEAF, flows)
    # A rank receives from two children in one tree, from its parents in both: 2 * size.
    assert bound == 2 * SIZE / payload_rate(ONE_LEAF)
    hops = 2 * (n - 1).bit_length()  # the last chunk goes up and down beside three others
    fill = hops * 4 * flow_ns(ONE_LEAF, SIZE // (2 * chunks), links=2)
    assert bound <= result.phase_ns <= 1.03 * bound + fill


@pytest.mark.parametrize("n", [2, 6, 9, 16])
def test_a_sum_goes_all_the_way_up_and_down(n: int) -> None:
    flows = tree(ONE_LEAF, 2, chunks=1, hosts=range(n))  # a byte: nothing but the way counts
    hops = 2 * max(depth(parents, r) for parents in double_tree(n) for r in range(n))
    took = run_phase(ONE_LEAF, flows, dt_ns=500).phase_ns
    hop = flow_ns(ONE_LEAF, 1, links=2)
    assert hops * hop <= took <= hops * (hop + 500)


@pytest.mark.parametrize("n", [2, 8, 16])
def test_collectives_of_some_hosts_meet_their_bounds_where_nothing_collides(n: int) -> None:
    hosts = np.random.default_rng(1).permutation(16)[:n].tolist()
    bound = ring_bound_ns(ONE_LEAF, SIZE, n)
    whole, steps, halves = (
        ring(ONE_LEAF, SIZE, hosts=hosts),
        ring_steps(ONE_LEAF, SIZE, hosts=hosts, wait_for_data=True, release_ns=0),
        halving_doubling(ONE_LEAF, SIZE, hosts=hosts, release_ns=0),
    )
    for flows, waits in ((whole, 1), (steps, 2 * (n - 1)), (halves, 2 * (n - 1).bit_length())):
        assert set(flows.src) == set(flows.dst) == set(hosts)
        took = run_phase(ONE_LEAF, flows, dt_ns=500).phase_ns
        latency = waits * (ONE_LEAF.latency_ns(2) + 500)
        assert bound <= took <= 1.03 * bound + latency
    pairs = all_to_all(ONE_LEAF, n, 1 << 20, hosts=hosts, release_ns=0)
    took, bound = run_phase(ONE_LEAF, pairs).phase_ns, all_to_all_bound_ns(ONE_LEAF, n, 1 << 20)
    assert bound <= took <= 1.03 * bound + 2 * ONE_LEAF.latency_ns(2) + 2000


def by_recursion(
    stages: int, micro_batches: int, forward: float, backward: float, hop: float
) -> float:
    """When the first stage has the last gradient, pass by pass without any flows."""
    schedules = [one_forward_one_backward(s, stages, micro_batches) for s in range(stages)]
    free, at = [0.0] * stages, [0] * stages
    arrived = {("forward", 0, k): 0.0 for k in range(micro_batches)}
    arrived |= {("backward", stages - 1, k): 0.0 for k in range(micro_batches)}
    while any(at[s] < len(schedules[s]) for s in range(stages)):
        for s in range(stages):
            while at[s] < len(schedules[s]):
                kind, k = schedules[s][at[s]]
                if (kind, s, k) not in arrived:
                    break
                end = max(free[s], arrived[kind, s, k])
                end += forward if kind == "forward" else backward
                to = s + 1 if kind == "forward" else s - 1
                if 0 <= to < stages:
                    end += hop
                    arrived[kind, to, k] = end
                free[s], at[s] = end, at[s] + 1
    return max(arrived.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 400), st.integers(0, 400))
def test_a_pipeline_takes_what_its_passes_and_hops_take(
    stages: int, micro_batches: int, forward_us: int, backward_us: int
) -> None:
    size = 500_000
    flows = pipeline(
        ONE_LEAF, range(3, 3 + stages), micro_batches, size, forward_ns=1000 * forward_us,
        backward_ns=1000 * backward_us,
    )  # fmt: skip
    assert len(flows) == 2 * (stages - 1) * micro_batches
    result = run_phase(ONE_LEAF, flows)
    hop = flow_ns(ONE_LEAF, size, links=2)
    least, most = (
        by_recursion(stages, micro_batches, 1e3 * forward_us, 1e3 * backward_us, k * hop)
        for k in (1, 2)
    )
    ticks = 2000 * 2 * (stages + micro_batches)  # a hop of the longest way begins on a step
    assert least - 1000 <= result.phase_ns
    # Where a stage has two neighbours, what they send may meet at its port: half the rate each.
    assert result.phase_ns <= (least if stages == 2 else most) + ticks


def test_the_schedule_of_four_stages_by_hand() -> None:
    text = ["".join(k[0] + str(i) for k, i in one_forward_one_backward(s, 4, 4)) for s in (0, 3)]
    assert text == ["f0f1f2f3b0b1b2b3", "f0b0f1b1f2b2f3b3"]


def straight(flows: Flows) -> Flows:
    """Each flow through the spine of its source's place: two leaves' hosts never collide."""
    return flows.with_paths(flows.src % 4)


def test_jobs_that_share_nothing_are_as_fast_as_alone() -> None:
    fabric = LeafSpine.square(16)
    first = straight(ring(fabric, 4 << 20, hosts=[0, 4, 8, 12]))
    other = straight(ring(fabric, 1 << 20, hosts=[1, 5, 9, 13]))
    alone = [run_phase(fabric, f).phase_ns for f in (first, other)]
    jobs = [Job(name="a", flows=first), Job(name="b", flows=other, start_ns=50_000)]
    times = job_times(jobs, run_phase(fabric, join_jobs(jobs)))
    assert [t.name for t in times] == ["a", "b"]
    assert [t.span_ns for t in times] == pytest.approx(alone, abs=1)
    assert times[1].p50_ns == times[1].p99_ns == pytest.approx(alone[1], abs=1)


def test_jobs_on_one_uplink_share_it_while_both_send() -> None:
    fabric = LeafSpine.square(16)
    paths = Routing(mode="static", lanes=2)
    flows = [
        build_flows([h], [h + 4], size).with_paths([0]) for h, size in ((0, 4 << 20), (1, 1 << 20))
    ]
    jobs = [Job(name=str(i), flows=f) for i, f in enumerate(flows)]
    long, short = job_times(jobs, run_phase(fabric, join_jobs(jobs)))
    assert short.span_ns == pytest.approx(flow_ns(fabric, 2 << 20), rel=0.03)
    assert long.span_ns == pytest.approx(flow_ns(fabric, 5 << 20), rel=0.03)
    # In the lower lane, the long job waits for the short one.
    jobs = [replace(jobs[0], lane=1), jobs[1]]
    long, short = job_times(jobs, run_phase(fabric, join_jobs(jobs), routing=paths))
    assert short.span_ns == pytest.approx(flow_ns(fabric, 1 << 20), rel=0.05)


def test_a_job_that_does_not_finish_has_no_time() -> None:
    jobs = [Job(name="a", flows=ring(ONE_LEAF, SIZE))]
    times = job_times(jobs, run_phase(ONE_LEAF, join_jobs(jobs), limit_ns=10_000))
    assert np.isnan(times[0].span_ns) and np.isnan(times[0].p99_ns)


def test_what_no_job_can_be() -> None:
    for bad in ([3], [1, 1]):
        with pytest.raises(UsageError, match="two hosts or more"):
            ring(ONE_LEAF, SIZE, hosts=bad)
    with pytest.raises(UsageError, match="0 chunks"):
        tree(ONE_LEAF, SIZE, chunks=0)
    with pytest.raises(UsageError, match="0 micro-batches"):
        pipeline(ONE_LEAF, [0, 1], 0, SIZE, forward_ns=1, backward_ns=1)
    with pytest.raises(UsageError, match="no job"):
        join_jobs([])

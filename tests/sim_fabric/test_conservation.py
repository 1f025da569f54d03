from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from xtune.policies.spec import Routing
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import load_bound_ns, way_ns
from xtune.sim.fabric import Backpressure, Fabric, LeafSpine
from xtune.sim.flows import Flows, all_to_all, build_flows
from xtune.sim.phase import PhaseResult, run_phase

MODES = ("static", "binary", "spray", "power_of_two", "flowlet", "switch_adaptive")


@st.composite
def fabrics(draw: st.DrawFn) -> LeafSpine:
    leaves, spines = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    hosts = leaves * draw(st.integers(1, 5))
    ports = 2 * hosts + 2 * leaves * spines
    slow = draw(st.lists(st.tuples(st.integers(0, ports - 1), st.floats(0.1, 1.0)), max_size=2))
    return LeafSpine(
        max(hosts, 2) if leaves == 1 else hosts,
        leaves,
        spines,
        draw(st.sampled_from([25.0, 100.0, 400.0])),
        draw(st.sampled_from([0, 100, 500])),
        draw(st.sampled_from([None, 50.0, 800.0])),
        draw(st.sampled_from([0, 64])),
        slow_ports=tuple((p, s) for p, s in slow if p < ports),
    )


@st.composite
def traffic(draw: st.DrawFn, fabric: Fabric) -> Flows:
    n = draw(st.integers(1, 25))
    host = st.integers(0, fabric.hosts - 1)
    src = draw(st.lists(host, min_size=n, max_size=n))
    hop = draw(st.lists(st.integers(1, fabric.hosts - 1), min_size=n, max_size=n))
    size = draw(st.lists(st.integers(1, 600_000), min_size=n, max_size=n))
    # Edges go from a lower to a higher number, so that there is no circle.
    edge = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1])
    after = draw(st.lists(edge, max_size=10)) if n > 1 else []
    flows = build_flows(
        src, [(s + h) % fabric.hosts for s, h in zip(src, hop, strict=True)], size,
        start_ns=draw(st.lists(st.integers(0, 30_000), min_size=n, max_size=n)),
        after=after, release_ns=draw(st.integers(0, 5_000)), lane=draw(st.integers(0, 1)),
    )  # fmt: skip
    if draw(st.booleans()):
        path = np.array(draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)), dtype=np.int32)
        count = fabric.routes(flows.src, flows.dst).count.astype(np.int32)
        return flows.with_paths(path % count)
    return flows


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    return Routing(
        mode=draw(st.sampled_from(MODES)),
        forecast=draw(st.sampled_from(["reading", "ewma", "slope", "holt"])),
        enter_occupancy=0.2,
        exit_occupancy=0.05,
        cold_occupancy=draw(st.sampled_from([0.1, 0.2])),
        hold_ns=0,
        moves_per_ms=10_000.0,
        pairs=draw(st.integers(1, 6)),
        order=draw(st.sampled_from(["edge_first", "coldest"])),
        probe_interval_ns=draw(st.sampled_from([1_000, 7_000])),
        decision_delay_ns=draw(st.sampled_from([0, 3_000, 20_000])),
        unit_bytes=draw(st.sampled_from([4_096, 50_000, 1_000_000])),
        lanes=draw(st.integers(1, 2)),
        switch_load=draw(st.sampled_from(["queue", "flows"])),
        flowlet_gap_ns=draw(st.sampled_from([0, 5_000])),
    )


def queues_hold(state: State, inside: NDArray[np.int64]) -> None:
    """The fragments in the queues are those bytes of each flow, and all there are."""
    by_flow = np.zeros_like(inside)
    live = 0
    for queue in range(len(state.head)):
        node, length = int(state.head[queue]), 0
        while node != int(k.NIL):
            by_flow[state.nodes[node + int(k.FLOW)]] += state.nodes[node + int(k.BYTES)]
            length += int(state.nodes[node + int(k.BYTES)])
            live += 1
            node = int(state.nodes[node + int(k.NEXT)])
        assert length == state.queued[queue]
    np.testing.assert_array_equal(by_flow, inside)
    assert live == state.cfg[k.LIVE]


def accounts_balance(state: State) -> None:
    """Bytes by flow, by queue, by link and by fragment agree."""
    sent = state.flows.size - state.flow_i[:, k.TO_SEND]
    inside = sent - state.flow_i[:, k.DELIVERED]
    assert (inside >= 0).all()
    assert (state.queued >= 0).all()
    assert (state.resident >= 0).all()
    assert inside.sum() == state.queued.sum() == state.resident.sum()
    queues_hold(state, inside)


def run_in_balance(state: State) -> None:
    """Run until the end, a few steps at a time, and check the accounts after each."""
    for _ in range(100_000):
        state.cfg[k.LIMIT_STEP] = state.cfg[k.STEP] + 1 + state.cfg[k.STEP] // 40
        state.run()
        accounts_balance(state)
        if state.cfg[k.LEFT] == 0:
            break


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_byte_is_lost_or_made_at_any_step(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    flows = data.draw(traffic(fabric))
    kind = data.draw(st.sampled_from(["pfc", "credit", "none"]))
    state = State(
        fabric, flows, routing=data.draw(routings()),
        dt_ns=data.draw(st.sampled_from([300, 500, 1000])), seed=data.draw(st.integers(0, 99)),
        pfc=Backpressure(kind=kind, xoff_bytes=80_000, xon_bytes=60_000), limit_ns=10**9,
    )  # fmt: skip
    run_in_balance(state)
    result = PhaseResult(**state.figures())
    assert result.finished
    np.testing.assert_array_equal(result.delivered_bytes, flows.size)
    assert result.in_fabric_bytes == 0
    assert state.paused.sum() == 0


def port_bounds_hold(fabric: Fabric, flows: Flows, result: PhaseResult) -> None:
    """No port beats its line: bytes released from any time on need their time and their way.

    For each port and each release time t, the flows on it released at t or later end no earlier
    than t, plus their bytes over the rate, plus the shortest way among them.
    """
    way = [fabric.path(*ends) for ends in zip(flows.src, flows.dst, flows.spine, strict=True)]
    rates = fabric.payload_rates()
    for port in {port for ports in way for port in ports}:
        on = np.array([i for i, ports in enumerate(way) if port in ports])
        for first in np.unique(result.released_ns[on]):
            late = on[result.released_ns[on] >= first]
            least = min(way_ns(fabric, flows.size[i], len(way[i])) for i in late)
            bound = first + flows.size[late].sum() / rates[port] + least
            assert result.completion_ns[late].max() >= bound * (1 - 1e-9)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_no_flow_and_no_port_is_faster_than_its_link(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    flows = data.draw(traffic(fabric))
    spine = st.integers(0, fabric.spines - 1)
    flows = flows.with_paths(data.draw(st.lists(spine, min_size=len(flows), max_size=len(flows))))
    if data.draw(st.booleans()):  # few receivers: near and far flows meet at one port
        flows = replace(flows, dst=np.where(flows.src == 0, flows.dst, 0).astype(np.int32))
    dt = data.draw(st.sampled_from([100, 300, 500, 1000, 3000]))
    result = run_phase(fabric, flows, dt_ns=dt)
    assert result.phase_ns >= load_bound_ns(fabric, flows)
    port_bounds_hold(fabric, flows, result)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_receivers_line_is_beaten_by_near_and_far_flows_together(data: st.DataObject) -> None:
    dt, gbps = (
        data.draw(st.sampled_from([100, 500, 1000])),
        data.draw(st.sampled_from([25.0, 400])),
    )
    fabric = LeafSpine(6, 2, 1, gbps, data.draw(st.sampled_from([0, 100, 2000])))
    step = int(fabric.step_bytes(dt)[0])
    src = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=2, max_size=5))
    size = data.draw(st.lists(st.integers(1, 8 * step), min_size=len(src), max_size=len(src)))
    flows = build_flows(src, [0] * len(src), size).with_paths([0] * len(src))
    port_bounds_hold(fabric, flows, run_phase(fabric, flows, dt_ns=dt))


def test_near_and_far_flows_together_keep_to_the_receivers_line() -> None:
    # 12.5 B/ns: the near flow's first packet is there after one packet's time, and from then on
    # the line of host 4 is never idle.
    fabric = LeafSpine(6, 2, 1, 100.0, 0)
    flows = build_flows([2, 5], [4, 4], [47_651, 12_498])
    result = run_phase(fabric, flows, dt_ns=500)
    assert result.phase_ns == pytest.approx((4096 + 47_651 + 12_498) / 12.5, abs=500 * k.TICK)


def test_a_full_node_pool_grows_without_a_trace() -> None:
    fabric = LeafSpine.square(64)
    flows = all_to_all(fabric, bytes_per_pair=20_000, chains=63)
    state = State(
        fabric, flows, routing=Routing(mode="static"), dt_ns=1000, seed=2,
        pfc=Backpressure(kind="none"), limit_ns=10**9,
    )  # fmt: skip
    large = run_phase(fabric, flows, seed=2, pfc=Backpressure(kind="none"))
    state.nodes = np.empty(8 * k.NODE_SIZE, dtype=np.uint32)
    state.run()
    assert len(state.nodes) > 8 * k.NODE_SIZE
    np.testing.assert_array_equal(state.figures()["completion_ns"], large.completion_ns)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_where_it_stops_does_not_show(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    flows = data.draw(traffic(fabric))
    routing = data.draw(routings())
    whole = run_phase(fabric, flows, routing=routing)
    stop = data.draw(st.integers(1, max(1, whole.steps - 1))) * 1000
    part = run_phase(fabric, flows, routing=routing, limit_ns=stop)
    done = ~np.isnan(part.completion_ns)
    np.testing.assert_array_equal(part.completion_ns[done], whole.completion_ns[done])
    assert part.sent_bytes.sum() == part.delivered_bytes.sum() + part.in_fabric_bytes

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.sim_fabric.test_conservation import fabrics, queues_hold, routings, traffic
from tests.sim_fabric.test_up_down import all_joined, trees
from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Dcqcn, Fault, SharedBuffer
from xtune.sim.fabric import Backpressure, Fabric, LeafSpine
from xtune.sim.flows import Flows, build_flows, incast, join_flows
from xtune.sim.phase import PhaseResult, run_phase

LOSSY = Backpressure(kind="none")
STATIC = Routing(mode="static")
STEP = 50_000  # bytes of a port at 400 Gb/s and 1 us


def lossy_state(
    fabric: LeafSpine,
    flows: Flows,
    buffer: SharedBuffer,
    routing: Routing = STATIC,
    dt_ns: int = 100,
) -> State:
    """In steps of little more than a packet, if not told otherwise."""
    return State(
        fabric, flows, routing=routing, dt_ns=dt_ns, seed=1, pfc=LOSSY, limit_ns=10**9,
        shared_buffer=buffer,
    )  # fmt: skip


def run_to(state: State, step: int) -> None:
    state.cfg[k.LIMIT_STEP] = step
    state.run()


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("overloaded", [1, 3])
def test_overloaded_queues_hold_the_shares_of_choudhury_and_hahne(
    overloaded: int, alpha: float
) -> None:
    # Two senders for each of some receivers below one leaf; all leave by its switch.
    fabric = LeafSpine(3 * overloaded, 1, 1)
    senders = np.arange(2 * overloaded, dtype=np.int32)
    receivers = (2 * overloaded + senders // 2).astype(np.int32)
    pool = 3_000_000
    state = lossy_state(
        fabric, build_flows(senders, receivers, 1 << 30),
        SharedBuffer(bytes_per_switch=pool, alpha=alpha, recovery="selective"),
    )  # fmt: skip
    run_to(state, 4000)
    held = state.queued[[fabric.delivery(h) for h in np.unique(receivers)]]
    share = alpha * pool / (1 + overloaded * alpha)
    # By whole packets; and who comes first in a step finds what the others served in it free.
    np.testing.assert_allclose(held, share, atol=4096 + (overloaded - 1) * alpha * 5000)
    assert state.extras.used[0] == held.sum()


@pytest.mark.parametrize("alpha", [0.5, 4.0])
def test_each_byte_that_is_taken_lowers_the_threshold(alpha: float) -> None:
    # In large steps, pieces of many packets meet the threshold at once.
    fabric, pool = LeafSpine(3, 1, 1), 1_000_000
    state = lossy_state(
        fabric, build_flows([0, 1], [2, 2], 1 << 30),
        SharedBuffer(bytes_per_switch=pool, alpha=alpha, recovery="selective"), dt_ns=1000,
    )  # fmt: skip
    run_to(state, 200)
    share = alpha * pool / (1 + alpha)
    assert share - 4096 < state.queued[fabric.delivery(2)] <= share


def test_lanes_of_one_port_have_a_threshold_each() -> None:
    fabric = LeafSpine(5, 1, 1)
    flows = join_flows(
        build_flows([0, 1], [4, 4], 1 << 30, lane=0), build_flows([2, 3], [4, 4], 1 << 30, lane=1)
    )
    pool = 2_000_000
    buffer = SharedBuffer(bytes_per_switch=pool, alpha=1.0, recovery="selective")
    state = lossy_state(fabric, flows, buffer, Routing(mode="static", lanes=2))
    run_to(state, 3000)
    held = state.queued[[fabric.delivery(4), fabric.ports + fabric.delivery(4)]]
    # The lower lane is never served, so it fills by two rates while the upper one fills by one:
    # it meets its threshold at q = 2 r t = B - 3 r t, two fifths of the pool, and stays there. The
    # upper one fills on to what is then free: q = B - 2/5 B - q.
    np.testing.assert_allclose(held, [0.3 * pool, 0.4 * pool], atol=2 * 4096)


def test_only_the_lane_that_overflows_loses() -> None:
    fabric = LeafSpine(3, 1, 1)
    flows = join_flows(
        build_flows([0], [2], 4_000_000, lane=0), build_flows([1], [2], 4_000_000, lane=1)
    )
    result = run_phase(
        fabric, flows, routing=Routing(mode="static", lanes=2), pfc=LOSSY,
        shared_buffer=SharedBuffer(bytes_per_switch=1_000_000, recovery="selective"),
    )  # fmt: skip
    assert result.completion_ns[0] == pytest.approx(flow_ns(fabric, 4_000_000, 2), abs=2)
    assert result.retransmitted_bytes[0] == 0
    assert result.retransmitted_bytes[1] > 0


def one_path(down_from: int, down_until: int, recovery: str, size: int) -> PhaseResult:
    """A flow of two leaves whose uplink loses all it carries for some steps."""
    fabric = LeafSpine.square(16)
    fault = Fault(at_ns=1000 * down_from, port=fabric.uplink(0, 2), until_ns=1000 * down_until)
    buffer = SharedBuffer(bytes_per_switch=1 << 30, recovery=recovery, timeout_ns=100_000)
    return run_phase(
        fabric, build_flows([0], [15], size).with_paths([2]), pfc=LOSSY, shared_buffer=buffer,
        faults=[fault],
    )  # fmt: skip


def test_go_back_n_sends_a_gap_and_all_that_was_under_way_again() -> None:
    size = 100 * STEP
    result = one_path(20, 30, "go_back_n", size)
    # The uplink serves in step s + 1 what the host sent in step s: lost are steps 19..28. The
    # next fragment, of step 29, comes three hops later and is out of order; the receiver's word
    # takes four links of 500 ns, two steps. So step 19 is sent again as step 34.
    late = (29 + 3 + 2) - 19
    assert result.phase_ns == pytest.approx(
        flow_ns(LeafSpine.square(16), size) + 1000 * late, abs=2
    )
    assert result.dropped_bytes == 10 * STEP
    assert result.discarded_bytes == (34 - 29) * STEP
    assert result.retransmitted_bytes.tolist() == [late * STEP]


def test_a_selective_sender_sends_what_was_lost_alone() -> None:
    size = 100 * STEP
    result = one_path(20, 30, "selective", size)
    assert result.phase_ns == pytest.approx(flow_ns(LeafSpine.square(16), size) + 10_000, abs=2)
    assert result.dropped_bytes == 10 * STEP
    assert result.discarded_bytes == 0
    assert result.retransmitted_bytes.tolist() == [10 * STEP]


def test_pieces_that_ports_make_of_a_flow_are_in_order() -> None:
    # Uplinks of an odd rate split what two hosts send; nothing is lost, so nothing is sent again.
    fabric = LeafSpine(16, 4, 4, uplink_gbps=130.0)
    flows = build_flows([0, 1], [15, 14], [3_000_001, 2_000_003]).with_paths([2, 2])
    result = run_phase(
        fabric, flows, pfc=LOSSY, shared_buffer=SharedBuffer(bytes_per_switch=1 << 30)
    )
    assert result.discarded_bytes == 0
    assert result.sent_bytes.tolist() == flows.size.tolist()
    assert result.phase_ns == pytest.approx(5_000_004 / (130 / 8), rel=0.02)


def test_a_lost_tail_waits_for_the_timeout() -> None:
    # The last two of five fragments are lost; nothing after them tells the receiver. The timer
    # runs from the last acknowledgement: delivery of the third in step 5, and two steps back.
    result = one_path(4, 20, "go_back_n", 5 * STEP)
    again = 5 + 2 + 100
    rest = flow_ns(LeafSpine.square(16), 2 * STEP)
    assert result.phase_ns == pytest.approx(1000 * again + rest, abs=2)
    assert result.discarded_bytes == 0
    assert result.retransmitted_bytes.tolist() == [2 * STEP]


def test_a_timeout_too_short_sends_twice_what_came_once() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows([0], [15], 100 * STEP)
    buffer = SharedBuffer(bytes_per_switch=1 << 30, timeout_ns=2_000)
    result = run_phase(fabric, flows, pfc=LOSSY, shared_buffer=buffer)
    assert result.finished
    assert result.dropped_bytes == 0
    assert 0 < result.discarded_bytes <= result.retransmitted_bytes.sum()


def test_an_incast_loses_what_the_pool_does_not_hold() -> None:
    fabric, fan, size = LeafSpine(9, 1, 1), 8, 4 << 20
    flows = incast(fabric, fan, size)
    roomy = SharedBuffer(bytes_per_switch=2 * fan * size, alpha=1.0)
    tight = SharedBuffer(bytes_per_switch=930_000, alpha=1.0)  # pieces are cut
    fits, lost = (run_phase(fabric, flows, pfc=LOSSY, shared_buffer=b) for b in (roomy, tight))
    assert fits.dropped_bytes == 0
    assert fits.phase_ns == pytest.approx(fan * size / 50, rel=0.01)
    # The port is never idle before the last timeout, and nothing is faster than its line.
    assert lost.finished
    assert lost.dropped_bytes > 0
    assert lost.phase_ns > fits.phase_ns
    np.testing.assert_array_equal(lost.retransmitted_bytes, lost.sent_bytes - size)
    assert lost.port_dropped_bytes[fabric.delivery(0)] == lost.dropped_bytes


def victim_ns(pfc: str, buffer: SharedBuffer, rates: Dcqcn | None = None) -> float:
    """Time of 1 MB that shares uplink and downlink with one of eight senders to a neighbour."""
    fabric = LeafSpine.square(64)
    senders = [8, 16, 24, 32, 40, 48, 56, 57]
    flows = build_flows(
        [*senders, 9], [0] * 8 + [1], [8_000_000] * 8 + [1_000_000], start_ns=[0] * 8 + [100_000]
    ).with_paths([*range(8), 0])
    result = run_phase(
        fabric, flows, pfc=Backpressure(kind=pfc), shared_buffer=buffer, rate_control=rates,
        limit_ns=3_000_000,
    )  # fmt: skip
    return float(result.completion_ns[-1]) - 100_000


def test_a_victim_of_an_incast_is_slowed_by_pauses_and_not_by_drops() -> None:
    alone = flow_ns(LeafSpine.square(64), 1_000_000)
    paused = victim_ns("pfc", SharedBuffer(bytes_per_switch=8_000_000))
    # Beside a sender that still sends at line rate it has half of uplink and downlink.
    dropped = victim_ns("none", SharedBuffer(bytes_per_switch=8_000_000))
    assert dropped <= 2.1 * alone
    assert paused > 4 * alone
    # Marks slow the sender that shares its way, so that fewer pauses reach the victim.
    marks = Dcqcn.for_link(400)
    assert victim_ns("pfc", SharedBuffer(bytes_per_switch=8_000_000), marks) < paused


def test_pauses_by_a_shared_pool_lose_nothing_and_keep_within_it() -> None:
    fabric = LeafSpine.square(64)
    flows = incast(fabric, 40, 1 << 20)
    pool = 3_000_000
    state = State(
        fabric, flows, routing=STATIC, dt_ns=500, seed=1, pfc=Backpressure(), limit_ns=10**9,
        shared_buffer=SharedBuffer(bytes_per_switch=pool, alpha=0.5),
    )  # fmt: skip
    most = 0
    while state.cfg[k.LEFT]:
        run_to(state, int(state.cfg[k.STEP]) + 1)
        most = max(most, int(state.extras.used[:-1].max()))
    result = PhaseResult(**state.figures())
    assert result.dropped_bytes == 0
    assert result.pauses.sum() > 0
    assert 0.3 * pool < most <= pool
    np.testing.assert_allclose(result.phase_ns, 40 * (1 << 20) / 50, rtol=0.01)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("dt_ns", [200, 1000])
def test_a_phase_without_loss_always_ends(alpha: float, dt_ns: int) -> None:
    # Headroom in use beyond the pool: a host that comes then, with nothing in the switch, has to
    # be let in again.
    fabric = LeafSpine.square(16)
    late = build_flows([1, 2, 3, 5], [4, 5, 6, 1], 500_000, start_ns=30_000)
    flows = join_flows(incast(fabric, 12, 2_000_000, dst=0), late)
    for rates in (None, Dcqcn.for_link(400.0)):
        result = run_phase(
            fabric, flows, dt_ns=dt_ns, rate_control=rates, limit_ns=20_000_000,
            shared_buffer=SharedBuffer(bytes_per_switch=1_000_000, alpha=alpha),
            faults=[
                Fault(at_ns=20_000, port=fabric.nic(host), until_ns=100_000)
                for host in (1, 2, 3, 5)
            ],
        )  # fmt: skip
        assert result.finished
        assert result.dropped_bytes == 0


def test_an_input_is_paused_at_its_share_of_the_pool() -> None:
    # One of two senders to a receiver below one leaf: its input holds alpha (B - used) at most,
    # and both hold the same: alpha B / (1 + 2 alpha), and what one step adds.
    fabric, pool, alpha = LeafSpine(3, 1, 1), 4_000_000, 0.5
    buffer = SharedBuffer(bytes_per_switch=pool, alpha=alpha, headroom_bytes=0)
    state = State(
        fabric, build_flows([0, 1], [2, 2], 1 << 30), routing=STATIC, dt_ns=1000, seed=1,
        pfc=Backpressure(), limit_ns=10**9, shared_buffer=buffer,
    )  # fmt: skip
    held = []
    for step in range(100, 400):
        run_to(state, step)
        held.append(state.resident[:2].sum())
    share = 2 * alpha * pool / (1 + 2 * alpha)
    hysteresis = 2 * 20 * 4096
    assert share - hysteresis - 2 * STEP <= min(held) <= max(held) <= share + 2 * STEP


def crowded(seed: int) -> State:
    """An incast over several leaves that loses, marks and fails."""
    fabric = LeafSpine.square(16)
    return State(
        fabric, incast(fabric, 12, 500_000), routing=STATIC, dt_ns=500, seed=seed, pfc=LOSSY,
        limit_ns=10**8, shared_buffer=SharedBuffer(bytes_per_switch=400_000, timeout_ns=50_000),
        rate_control=Dcqcn.for_link(400.0), faults=[Fault(at_ns=5_000, port=20, share=0.3)],
    )  # fmt: skip


def test_neither_stops_nor_a_full_pool_of_nodes_show() -> None:
    whole, steps, small, other = (crowded(seed) for seed in (7, 7, 7, 8))
    whole.run()
    while steps.cfg[k.LEFT]:
        run_to(steps, int(steps.cfg[k.STEP]) + 1)
        accounts_balance(steps)
    small.nodes = small.nodes[: 8 * k.NODE_SIZE].copy()
    small.extras = small.extras._replace(notes=small.extras.notes[:8].copy())
    small.run()
    other.run()
    assert len(small.nodes) > 8 * k.NODE_SIZE
    want = PhaseResult(**whole.figures())
    assert want.finished
    assert want.dropped_bytes > 0 < want.marked_bytes.sum()
    for state in (steps, small):
        got = PhaseResult(**state.figures())
        np.testing.assert_array_equal(got.completion_ns, want.completion_ns)
        np.testing.assert_array_equal(got.retransmitted_bytes, want.retransmitted_bytes)
        np.testing.assert_array_equal(got.marked_bytes, want.marked_bytes)
    assert not np.array_equal(other.figures()["completion_ns"], want.completion_ns)


@pytest.mark.parametrize(
    ("buffer", "pfc", "mode", "text"),
    [
        (SharedBuffer(bytes_per_switch=1 << 20), "credit", "static", "credits reserve"),
        (SharedBuffer(bytes_per_switch=1 << 20), "none", "binary", "bytes in order"),
        (SharedBuffer(bytes_per_switch=1 << 20), "pfc", "static", "headroom"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(
    buffer: SharedBuffer, pfc: str, mode: str, text: str
) -> None:
    fabric = LeafSpine.square(64)
    with pytest.raises(UsageError, match=text):
        run_phase(
            fabric, incast(fabric, 4), routing=Routing(mode=mode), pfc=Backpressure(kind=pfc),
            shared_buffer=buffer,
        )  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_switch": 0},
        {"bytes_per_switch": 1, "alpha": 0.0},
        {"bytes_per_switch": 1, "recovery": "none"},
        {"bytes_per_switch": 1, "timeout_ns": 0},
        {"bytes_per_switch": 1, "headroom_bytes": -1},
    ],
)
def test_values_that_make_no_buffer_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SharedBuffer(**wrong)  # type: ignore[arg-type]


@st.composite
def some_faults(draw: st.DrawFn, fabric: Fabric) -> list[Fault]:
    found = []
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, 40_000))
        found.append(
            Fault(
                at_ns=at,
                port=draw(st.integers(0, fabric.ports - 1)),
                share=draw(st.sampled_from([0.0, 0.0, 0.3])),
                until_ns=at + draw(st.integers(1_000, 60_000)),
            )
        )
    return found


def accounts_balance(state: State) -> None:
    """Bytes by flow, by queue, by switch, by link and by fragment agree."""
    flow = state.extras.flow
    delivered = state.flow_i[:, k.DELIVERED]
    inside = flow[:, x.SENT] - delivered - flow[:, x.DROPPED] - flow[:, x.DISCARDED]
    assert (inside >= 0).all()
    assert inside.sum() == state.queued.sum() == state.resident.sum()
    assert (state.resident >= 0).all()
    queues_hold(state, inside)
    used = np.zeros_like(state.extras.used)
    lanes = int(state.cfg[k.LANES])
    np.add.at(used, np.tile(state.extras.owner, lanes), state.queued)
    np.testing.assert_array_equal(used, state.extras.used)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_byte_is_somewhere_at_any_step(data: st.DataObject) -> None:
    every_byte_is_somewhere(data.draw(fabrics()), data)


@pytest.mark.slow  # another kernel is compiled for these fabrics
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_byte_is_somewhere_in_fat_trees_too(data: st.DataObject) -> None:
    fabric = data.draw(trees())
    assume(all_joined(fabric))
    every_byte_is_somewhere(fabric, data)


def every_byte_is_somewhere(fabric: Fabric, data: st.DataObject) -> None:
    flows = data.draw(traffic(fabric))
    kind = data.draw(st.sampled_from(["pfc", "none", "none"]))
    routing = data.draw(routings())
    in_order = routing.mode in ("static", "spray") and data.draw(st.booleans())
    buffer = SharedBuffer(
        bytes_per_switch=data.draw(st.sampled_from([60_000, 400_000])) + (kind == "pfc") * 10**7,
        alpha=data.draw(st.sampled_from([0.5, 2.0])),
        recovery="go_back_n" if in_order else "selective",
        timeout_ns=data.draw(st.sampled_from([5_000, 300_000])),
    )
    rates = data.draw(st.sampled_from([None, Dcqcn(kmin_bytes=1000, kmax_bytes=50_000)]))
    state = State(
        fabric, flows, routing=routing, dt_ns=data.draw(st.sampled_from([300, 500, 1000])),
        seed=data.draw(st.integers(0, 99)), pfc=Backpressure(kind=kind), limit_ns=10**9,
        shared_buffer=buffer, rate_control=rates, faults=data.draw(some_faults(fabric)),
    )  # fmt: skip
    for _ in range(400):
        run_to(state, int(state.cfg[k.STEP]) + 1 + int(state.cfg[k.STEP]) // 20)
        accounts_balance(state)
        if state.cfg[k.LEFT] == 0:
            break
    result = PhaseResult(**state.figures())
    if kind == "pfc":
        assert result.finished
        assert result.dropped_bytes == 0
    if result.finished:
        np.testing.assert_array_equal(result.delivered_bytes, flows.size)
        np.testing.assert_array_equal(result.retransmitted_bytes, result.sent_bytes - flows.size)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_never_happens_changes_nothing(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    flows = data.draw(traffic(fabric))
    routing, kind = data.draw(routings()), data.draw(st.sampled_from(["pfc", "credit", "none"]))
    plain, other = (
        run_phase(
            fabric, flows, routing=routing, pfc=Backpressure(kind=kind), seed=3,
            rate_control=rates, faults=faults,
        )
        for rates, faults in (
            (None, []),
            (Dcqcn(kmin_bytes=1 << 40, kmax_bytes=1 << 41), [Fault(at_ns=10**9, port=0)]),
        )
    )  # fmt: skip
    for name in ("completion_ns", "sent_bytes", "pauses", "moves", "reorder_bytes"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(other, name))
    np.testing.assert_array_equal(plain.occupancy_p99, other.occupancy_p99)

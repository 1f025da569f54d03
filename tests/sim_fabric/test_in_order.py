"""Receivers that take bytes in order alone, over a fabric that loses nothing."""

from __future__ import annotations

import pytest

from xtune.policies.spec import Routing
from xtune.sim import _buffers
from xtune.sim import _extras as x
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.fabric import PACKET_BYTES, Backpressure, LeafSpine
from xtune.sim.flows import build_flows
from xtune.sim.phase import run_phase

FABRIC = LeafSpine(8, 2, 2)
SWITCH = Routing(mode="switch_adaptive", flowlet_gap_ns=2_000)


def refusing(dt_ns: int = 250) -> State:
    """A flow from below one leaf to another, whose receiver refuses what comes too early."""
    return State(
        FABRIC, build_flows([0], [4], 4_000_000), routing=SWITCH, dt_ns=dt_ns, seed=0,
        pfc=Backpressure(), limit_ns=10**8, in_order=True,
    )  # fmt: skip


def test_a_moved_flow_is_sent_again() -> None:
    flows = build_flows([0, 1, 2], [4, 5, 6], 20_000_000)
    again = 0
    for seed in range(10):
        result = run_phase(FABRIC, flows, routing=SWITCH, seed=seed, in_order=True)
        assert result.finished
        sent = result.sent_bytes.sum()
        whole = result.delivered_bytes.sum() + result.discarded_bytes + result.in_fabric_bytes
        assert sent == whole
        assert (result.discarded_bytes > 0) <= bool(result.moves.sum())
        again += result.discarded_bytes > 0
    assert again > 0


def refuse(state: State, step: int, taken: int) -> None:
    """At a step the receiver, that has taken so much, refuses bytes."""
    state.cfg[k.STEP], state.flow_i[0, k.DELIVERED] = step, taken
    _buffers._tell_refused.py_func(
        state.cfg, state.extras, state.queued, state.rate, state.ends, state.flow_u,
        state.flow_i, 0,
    )  # fmt: skip


def test_a_refusal_stands_in_the_queues_of_its_way_back() -> None:
    state = refusing()
    fabric, ex = FABRIC, state.extras
    back = int(ex.flow[0, x.BACK])
    assert back == 4 * 500 // 250
    refuse(state, 100, 0)
    assert ex.flow[0, x.TOLD] == 100 + back
    # Flow 0 has spine 0: the port up from its receiver's leaf, down to its own, and out of that.
    way = (fabric.uplink(1, 0), fabric.downlink(0, 0), fabric.delivery(0))
    for port, steps in zip(way, (7, 3, 2), strict=True):
        state.queued[port] = steps * int(state.rate[port])
    state.queued[fabric.uplink(1, 1)] = 10**6  # of another way
    refuse(state, 101, 0)
    assert ex.flow[0, x.TOLD] == 101 + back + 7 + 3 + 2
    # What comes later stays behind, though the queues are gone.
    state.queued[:] = 0
    refuse(state, 102, 0)
    assert ex.flow[0, x.TOLD] == 101 + back + 12


def test_the_sender_goes_back_with_each_refusal_to_what_that_one_knew() -> None:
    # Ten steps of refusals, in each of which one packet came in order by another way.
    state = refusing()
    ex, cfg, packet = state.extras, state.cfg, PACKET_BYTES
    back = int(ex.flow[0, x.BACK])
    for step in range(10):
        refuse(state, 20 + step, step * packet)
    heard = []
    for step in range(20, 20 + back + 12):
        cfg[k.STEP] = step
        state.flow_i[0, k.TO_SEND] = 4_000_000 - 100 * packet  # it has gone on by much
        ex.flow[0, x.FURTHEST] = 100 * packet
        _buffers.begin_step.py_func(
            cfg, state.rate, state.ends, state.flow_u, state.flow_i, state.active,
            state.counts, ex,
        )  # fmt: skip
        gone_back = 100 * packet - (4_000_000 - state.flow_i[0, k.TO_SEND])
        if gone_back:
            heard.append((step, 100 - gone_back / packet))
            assert ex.flow[0, x.OWED] == gone_back
    assert heard == [(20 + back + i, i) for i in range(10)]
    assert (ex.notices == x.NONE).all()


@pytest.mark.parametrize("dt_ns", [82, 250])
def test_a_pause_is_a_gap_from_packet_to_packet(dt_ns: int) -> None:
    # Held for n whole steps, a flow's packets lie those and one packet apart.
    state = refusing(dt_ns)
    held, packet_ns = 20, PACKET_BYTES * dt_ns // int(state.rate.max())
    for gap_ns, asks in ((held * dt_ns + packet_ns, True), (held * dt_ns + packet_ns + 1, False)):
        state = refusing(dt_ns)
        state.cfg[k.GAP] = gap_ns
        state.cfg[k.LIMIT_STEP] = 40
        state.run()
        state.paused[0] = 1
        state.cfg[k.LIMIT_STEP] = 40 + held
        state.run()
        state.paused[0] = 0
        before = [state.rng.copy(), int(state.flow_i[0, k.UNITS])]
        state.cfg[k.LIMIT_STEP] = 41 + held
        state.run()
        tossed = bool((state.rng != before[0]).any())
        assert tossed == asks

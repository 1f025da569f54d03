"""Flows that meet in a queue are warned together and do not all leave it at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies import Router, preset
from xtune.policies._fields import PolicyError
from xtune.policies.presets import with_probes
from xtune.policies.router import Flow
from xtune.policies.spec import Policy

MS = 1_000_000
SLOT_NS, HOLD_NS = 60 * MS, 100 * MS


def a_policy(**changes: object) -> Policy:
    policy = with_probes(preset("routing_only"), 10 * MS, whole_flows=True)
    routing = replace(policy.routing, forecast="reading", hold_ns=HOLD_NS, **changes)  # type: ignore[arg-type]
    return replace(policy, routing=routing)


class Host:
    """One host with its own router and one flow; both paths are named by their spine."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.flow: Flow = (name, "far", 0)
        self.router = Router({(name, "far"): [["one"], ["two"]]}, policy, clock=lambda: 0)

    def turn(self, at_ns: int, one: float, two: float) -> int:
        """What it chooses when it has just seen both."""
        self.router.observe("one", occupancy=one, at_ns=at_ns)
        self.router.observe("two", occupancy=two, at_ns=at_ns)
        return self.router.choose(self.flow, at_ns=at_ns)


def leaving(host: Host, begun_ns: int, warned_ns: int, end_ns: int) -> int | None:
    """When it leaves a path that is warned from a time on and stays so."""
    for at_ns in range(begun_ns, end_ns, MS):
        if host.turn(at_ns, 0.9 if at_ns >= warned_ns else 0.0, 0.0):
            return at_ns
    return None


def test_who_came_last_moves_at_once_and_the_others_in_their_slots() -> None:
    waits = []
    for i in range(60):
        host = Host(f"host{i}", a_policy())
        at_ns = leaving(host, 0, HOLD_NS, HOLD_NS + 4 * SLOT_NS)
        assert at_ns is not None
        waits.append((at_ns - HOLD_NS) / SLOT_NS)
    assert set(waits) == {1.0, 2.0, 3.0}
    assert all(waits.count(slot) >= 8 for slot in (1.0, 2.0, 3.0))  # 20 each in the mean
    late = Host("late", a_policy())
    assert leaving(late, HOLD_NS, HOLD_NS + 20 * MS, HOLD_NS + 10 * SLOT_NS) == HOLD_NS + 20 * MS


@pytest.mark.parametrize("warned_ns", [HOLD_NS, HOLD_NS // 2])
def test_flows_that_a_dead_primary_sent_to_one_path_leave_it_in_their_slots(
    warned_ns: int,
) -> None:
    """Also those that began a moment ago: they came to that path all at once."""
    waits = set()
    for i in range(20):
        flow, paths = (f"host{i}", "far", 0), [["one"], ["two"], ["three"]]
        router = Router({flow[:2]: paths}, a_policy(), clock=lambda: 0)
        for at_ns in range(0, warned_ns + 4 * SLOT_NS, MS):
            router.observe("one", lost=True, at_ns=at_ns)
            warned = at_ns >= warned_ns
            router.observe("two", occupancy=0.9 if warned else 0.0, at_ns=at_ns)
            router.observe("three", occupancy=0.1 if warned else 0.4, at_ns=at_ns)
            if router.choose(flow, at_ns=at_ns) == 2:
                waits.add((at_ns - warned_ns) / SLOT_NS)
                break
    assert waits == {1.0, 2.0, 3.0}


def test_a_flow_stays_where_the_warning_has_passed_meanwhile() -> None:
    host = Host("host", a_policy())
    waits = [host.turn(at, 0.9 if at >= 200 * MS else 0.0, 0.0) for at in range(0, 220 * MS, MS)]
    assert not any(waits)
    assert host.turn(221 * MS, 0.3, 0.0) == 0
    # The next warning has its own wait from the beginning.
    assert leaving(host, 222 * MS, 222 * MS, 222 * MS + SLOT_NS) is None
    assert host.router.moves == 0


def test_a_clock_set_back_begins_the_wait_anew() -> None:
    """Else a flow that waits would do so until the clock is where it was."""
    host, back_ns = Host("host", a_policy()), 10_000 * MS
    for at_ns in range(back_ns, back_ns + HOLD_NS + 5 * MS, MS):
        assert host.turn(at_ns, 0.9 if at_ns >= back_ns + HOLD_NS else 0.0, 0.0) == 0
    assert host.turn(0, 0.9, 0.0) == 0
    left_ns = leaving(host, 0, 0, 4 * SLOT_NS)
    assert left_ns is not None and left_ns % SLOT_NS == 0


def test_without_it_all_leave_at_once_and_a_dead_path_is_left_at_once_with_it() -> None:
    hosts = [Host(f"host{i}", a_policy(yield_ns=0)) for i in range(5)]
    assert {leaving(h, 0, HOLD_NS, HOLD_NS + SLOT_NS) for h in hosts} == {HOLD_NS}
    host = Host("host", a_policy())
    host.turn(0, 0.0, 0.0)
    for strike in range(3):
        host.router.observe("one", lost=True, at_ns=200 * MS + strike)
    assert host.router.choose(host.flow, at_ns=201 * MS) == 1


class Queues:
    """Two queues by arithmetic: two flows fill one in 33 ms, one flow lets it drain in 100 ms."""

    def __init__(self) -> None:
        self.fill = [0.0, 0.0]

    def pass_by(self, chosen: list[int], ms: int) -> None:
        for path in (0, 1):
            change = {0: -0.05, 1: -0.01, 2: 0.03}[chosen.count(path)]
            self.fill[path] = min(1.0, max(0.0, self.fill[path] + change * ms))


@given(name=st.integers(0, 2**20), late_ms=st.integers(0, 1000), phase_ms=st.integers(0, 9))
def test_two_hosts_that_share_a_queue_come_apart_and_stay_so(
    name: int, late_ms: int, phase_ms: int
) -> None:
    hosts = [Host(f"a{name}", a_policy()), Host(f"b{name}", a_policy())]
    queues, chosen = Queues(), [0, 1 if late_ms else 0]  # until the second one comes
    together_ms = []
    for at_ms in range(6000):
        queues.pass_by(chosen, 1)
        if at_ms % 10 == 0:
            chosen[0] = hosts[0].turn(at_ms * MS, *queues.fill)
        if at_ms % 10 == phase_ms and at_ms >= late_ms:
            chosen[1] = hosts[1].turn(at_ms * MS, *queues.fill)
        if at_ms >= late_ms and chosen[0] == chosen[1]:
            together_ms.append(at_ms)
    moves = sum(host.router.moves for host in hosts)
    # Who comes while another is there moves once; newcomers may leave together, and do so again
    # where their slots are equal, one time in three.
    if late_ms > 200:
        assert moves == 1
    assert moves <= 16
    assert together_ms[-1] < 3000


@pytest.mark.parametrize("fall", [0.01, 0.002])
def test_a_queue_that_drains_slowly_is_left_by_nobody_else(fall: float) -> None:
    """From full to the threshold it takes up to 250 ms, longer than all slots."""
    for i in range(20):
        host = Host(f"host{i}", a_policy())
        for at_ms in range(0, 900, 10):
            fill = 0.0 if at_ms < 200 else max(0.0, 1.0 - fall * (at_ms - 200))
            assert host.turn(at_ms * MS, fill, 0.0) == 0


def test_values_for_probes_are_in_proportion_to_their_interval() -> None:
    base = preset("joint")
    slow, fast = (with_probes(base, interval).routing for interval in (10 * MS, MS))
    for name in ("stale_ns", "hold_ns", "horizon_ns", "yield_ns", "probe_interval_ns"):
        assert getattr(slow, name) == 10 * getattr(fast, name)
    assert slow.moves_per_ms * slow.hold_ns == pytest.approx(1e6)
    assert (slow.pairs, slow.order) == (base.routing.pairs, base.routing.order)
    assert with_probes(base, MS).compression == base.compression
    for interval in (999, 500_000_001):
        with pytest.raises(PolicyError, match="interval_ns"):
            with_probes(base, interval)
    with_probes(base, 1_000)
    with_probes(base, 500_000_000, whole_flows=True)

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
SLOT_NS, HOLD_NS = 30 * MS, 100 * MS


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


def test_a_flow_stays_where_the_warning_has_passed_meanwhile() -> None:
    host = Host("host", a_policy())
    waits = [host.turn(at, 0.9 if at >= 200 * MS else 0.0, 0.0) for at in range(0, 220 * MS, MS)]
    assert not any(waits)
    assert host.turn(221 * MS, 0.3, 0.0) == 0
    # The next warning has its own wait from the beginning.
    assert leaving(host, 222 * MS, 222 * MS, 222 * MS + SLOT_NS) is None
    assert host.router.moves == 0


def test_without_it_all_leave_at_once_and_a_dead_path_is_left_at_once_with_it() -> None:
    hosts = [Host(f"host{i}", a_policy(yield_ns=0)) for i in range(5)]
    assert {leaving(h, 0, HOLD_NS, HOLD_NS + SLOT_NS) for h in hosts} == {HOLD_NS}
    host = Host("host", a_policy())
    host.turn(0, 0.0, 0.0)
    for strike in range(3):
        host.router.observe("one", lost=True, at_ns=200 * MS + strike)
    assert host.router.choose(host.flow, at_ns=201 * MS) == 1


@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_two_hosts_that_share_a_queue_come_apart(first: int, second: int) -> None:
    """A queue that holds two flows grows; one flow alone leaves it empty at once."""
    names = [f"a{first}", f"b{second}"]
    hosts = [Host(name, a_policy()) for name in names]
    chosen = [0, 0]
    apart_ns = None
    for at_ns in range(0, 3000 * MS, 10 * MS):
        load = [0.9 if chosen.count(path) == 2 else 0.0 for path in (0, 1)]
        chosen = [host.turn(at_ns, load[0], load[1]) for host in hosts]
        if chosen[0] != chosen[1]:
            apart_ns = at_ns if apart_ns is None else apart_ns
        elif apart_ns is not None:
            raise AssertionError("they met again")
    # Both are newcomers and move together once; then equal slots, one time in three, repeat it.
    assert apart_ns is not None


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

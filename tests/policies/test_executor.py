"""The executor: the router's choices arrive at actuators, once for each change."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from tests.actuators.namespaces import DEVICES, GATEWAYS, HOST, OWN, Fabric, run
from xtune.policies import Router, preset, replace_fields
from xtune.policies.actuators.base import Actuator, Refused
from xtune.policies.actuators.nexthop import Gateway, NexthopGroup
from xtune.policies.actuators.process_groups import StripedGroups
from xtune.policies.actuators.rails import Rail
from xtune.policies.actuators.simulated import Simulated
from xtune.policies.decisions import DecisionLog
from xtune.policies.executor import RETRY_NS, Executor, unit_shares
from xtune.policies.router import Flow
from xtune.proofs.emulated.namespaces import inside

FLOW = ("a", "b", 0)
PATHS = {("a", "b"): [["one"], ["two"]]}
MS = 1_000_000


class Readings:
    """A feed by hand: what is put in is handed on at the next poll."""

    alive = True

    def __init__(self, router: Router) -> None:
        self.router = router
        self.waiting: list[tuple[str, float, int]] = []

    def poll(self) -> int:
        waiting, self.waiting = self.waiting, []
        for link, occupancy, at_ns in waiting:
            self.router.observe(link, occupancy=occupancy, at_ns=at_ns)
        return len(waiting)


class Failing(Simulated):
    """Raises where it is told to what no actuator should."""

    def __init__(self, *where: str) -> None:
        super().__init__([0.5, 0.5])
        self.where = set(where)
        self.undone = False

    def check(self) -> str | None:
        self._fail("check")
        return super().check()

    def apply(self, shares: Sequence[float]) -> None:
        self._fail("apply")
        super().apply(shares)

    def renew(self) -> bool:
        self._fail("renew")
        return super().renew()

    def undo(self) -> None:
        self._fail("undo")
        self.undone = True

    def _fail(self, where: str) -> None:
        if where in self.where:
            raise RuntimeError(f"{where}: connection\nclosed")


class Stubborn(Simulated):
    """Refuses as often as it is told to; notes what it was asked."""

    def __init__(self, refusals: int, paths: int = 2) -> None:
        super().__init__([1.0] * paths)
        self.refusals = refusals
        self.asked: list[list[float]] = []

    def apply(self, shares: Sequence[float]) -> None:
        self.asked.append(list(shares))
        if len(self.asked) <= self.refusals:
            raise Refused("not today")
        super().apply(shares)


def a_router(pairs: int = 1, paths: int = 2, mode: str = "binary") -> Router:
    changes = {
        "routing.pairs": pairs, "routing.forecast": "reading", "routing.stale_ns": 50 * MS,
        "routing.hold_ns": 0, "routing.mode": mode,
    }  # fmt: skip
    sets = {("a", "b"): [[f"link{i}"] for i in range(paths)]} if paths != 2 else PATHS
    return Router(sets, replace_fields(preset("joint"), changes), clock=lambda: 0)


def test_one_change_for_each_move_and_all_is_undone(tmp_path: Path) -> None:
    router = a_router()
    feed = Readings(router)
    actuator = Simulated([0.5, 0.5])
    log = DecisionLog(tmp_path / "log")
    with Executor(router, [feed], {FLOW: actuator}, log=log) as executor:
        feed.waiting = [("one", 0.1, 0), ("two", 0.1, 0)]
        assert executor.turn(0) == 1
        assert actuator.shares == executor.shares(FLOW) == [1.0, 0.0]
        assert executor.turn(1) == 0
        feed.waiting = [("one", 0.9, 10 * MS), ("two", 0.1, 10 * MS)]
        assert executor.turn(10 * MS) == 1
        assert actuator.shares == [0.0, 1.0]
        feed.waiting = [("one", 0.1, 20 * MS), ("two", 0.1, 20 * MS)]
        assert [executor.turn(20 * MS + i) for i in range(5)] == [1, 0, 0, 0, 0]
        assert (executor.applied, executor.refused, router.moves) == (3, 0, 2)
    log.close()
    assert actuator.shares == [0.5, 0.5]
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    shares = [(x["before"], x["after"]) for x in lines if x["kind"] == "shares"]
    assert shares == [(None, "1/0"), ("1/0", "0/1"), ("0/1", "1/0")]


@given(pairs=st.integers(1, 5), paths=st.integers(3, 6), units=st.integers(1, 40),
       mode=st.sampled_from(["binary", "spray", "static"]))  # fmt: skip
def test_shares_are_those_of_the_choices_and_a_quiet_fabric_changes_nothing(
    pairs: int, paths: int, units: int, mode: str
) -> None:
    router, twin = a_router(pairs, paths, mode), a_router(pairs, paths, mode)
    actuator = Stubborn(0, paths)
    executor = Executor(router, [Readings(router)], {FLOW: actuator}, units=units)
    executor.turn(0)
    chosen = [twin.choose(FLOW, at_ns=0) for _ in range(units)]
    (shares,) = actuator.asked
    assert [round(share * units) for share in shares] == [chosen.count(i) for i in range(paths)]
    assert sum(shares) == pytest.approx(1.0)
    if units >= 2 * paths:  # else a path's only unit may come and go with the remainder
        assert [executor.turn(i) for i in range(1, 12)] == [0] * 11


def test_a_path_that_gets_its_only_unit_or_loses_it_is_a_change() -> None:
    router = a_router(pairs=2)
    actuator = Stubborn(0)
    executor = Executor(router, [Readings(router)], {FLOW: actuator}, units=3)
    executor.turn(0)
    first = actuator.asked[0]
    assert sorted(first) == pytest.approx([1 / 3, 2 / 3])
    lone = ("one", "two")[first.index(min(first))]
    for i in range(3):
        router.observe(lone, lost=True, at_ns=i + 1)
    assert executor.turn(10) == 1
    assert sorted(actuator.asked[-1]) == [0.0, 1.0]


def test_a_refusal_is_said_once_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    router = a_router()
    actuator = Stubborn(2)
    executor = Executor(router, [Readings(router)], {FLOW: actuator})
    with caplog.at_level(logging.WARNING, "xtune"):
        assert executor.turn(0) == 0
        assert executor.turn(RETRY_NS - 1) == 0
        assert len(actuator.asked) == 1
        assert executor.turn(RETRY_NS) == 0
        assert executor.turn(2 * RETRY_NS) == 1
    assert (executor.refused, executor.applied, len(actuator.asked)) == (2, 1, 3)
    assert executor.shares(FLOW) == [1.0, 0.0]
    (record,) = caplog.records
    assert "not today" in record.message


@pytest.mark.parametrize("where", ["check", "apply", "renew", "undo", "poll"])
def test_whatever_fails_is_said_once_and_stops_nobody(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = a_router()
    bad, good = Failing(where), Failing()
    feeds = [Readings(router), Readings(router)]
    if where == "poll":
        feeds[0].router = None  # type: ignore[assignment]
        feeds[0].waiting = [("one", 0.9, 0)]
    actuators: dict[Flow, Actuator] = {("a", "b", 0): bad, ("a", "b", 1): good}
    with caplog.at_level(logging.WARNING, "xtune"), Executor(router, feeds, actuators) as executor:
        for turn in range(3):
            now_ns = turn * RETRY_NS
            feeds[1].waiting = [("one", 0.9, now_ns), ("two", 0.1, now_ns)]
            executor.turn(now_ns)
        assert good.shares == [0.0, 1.0]
        applies = where not in ("check", "apply")
        assert bad.shares == ([0.0, 1.0] if applies else [0.5, 0.5])
        assert executor.shares(("a", "b", 0)) == ([0.0, 1.0] if applies else None)
        assert executor.refused == (0 if applies else 3)
        assert executor.applied == (2 if applies else 1)
    # The renewal is tried in each turn; the poll lost its only reading in the first.
    assert executor.failed == {"renew": 3, "undo": 1, "poll": 1}.get(where, 0)
    assert good.undone and bad.undone is (where != "undo")
    (record,) = caplog.records
    said = record.getMessage()
    assert "\n" not in said
    if where == "poll":
        assert said.startswith("xtune: Readings brings no readings: AttributeError")
    else:
        assert said.endswith(f"RuntimeError: {where}: connection closed")


def test_shares_that_were_lost_are_not_in_force_and_are_set_up_again() -> None:
    router = a_router()
    actuator = Stubborn(0)
    executor = Executor(router, [Readings(router)], {FLOW: actuator})
    executor.turn(0)
    holds = [False]
    actuator.renew = lambda: holds[0]  # type: ignore[method-assign]
    actuator.refusals = 2  # as long as the link is down
    assert executor.turn(1) == 0 and executor.shares(FLOW) is None
    assert executor.turn(RETRY_NS) == 0 and len(actuator.asked) == 2
    assert executor.turn(RETRY_NS + 1) == 1 and executor.shares(FLOW) == [1.0, 0.0]
    holds[0] = True
    assert executor.turn(RETRY_NS + 2) == 0


@pytest.mark.parametrize(("error", "left"), [(Refused, [1.0, 0.0]), (OSError, None)])
def test_a_refusal_leaves_the_shares_in_force_and_a_failure_nobody_knows_what(
    error: type[Exception], left: list[float] | None
) -> None:
    router = a_router()
    feed, actuator = Readings(router), Simulated([0.5, 0.5])
    executor = Executor(router, [feed], {FLOW: actuator})
    executor.turn(0)

    def fails(shares: Sequence[float]) -> None:
        raise error("not now")

    apply, actuator.apply = actuator.apply, fails  # type: ignore[method-assign]
    feed.waiting = [("one", 0.9, 1), ("two", 0.1, 1)]
    assert executor.turn(1) == 0 and executor.shares(FLOW) == left
    actuator.apply = apply  # type: ignore[method-assign]
    feed.waiting = [("one", 0.1, 2), ("two", 0.1, 2)]  # as it was before
    executor.turn(RETRY_NS + 1)
    assert executor.shares(FLOW) == [1.0, 0.0]


def test_what_cannot_be_executed_is_refused_at_once() -> None:
    router = a_router()
    feed = Readings(router)
    with pytest.raises(ValueError, match="no path from a to c"):
        Executor(router, [feed], {("a", "c", 0): Simulated([1.0])})
    with pytest.raises(ValueError, match="too few"):
        Executor(router, [feed], {FLOW: Simulated([1.0, 1.0])}, units=0)
    with pytest.raises(ValueError, match="a to b flow 0: 2 paths, of which simulated has 3"):
        Executor(router, [feed], {FLOW: Simulated([1.0, 1.0, 1.0])})
    one = NexthopGroup("198.19.0.0/16", [Gateway(address="198.18.0.1", device="up1")])
    with pytest.raises(ValueError, match="2 paths, of which nexthop group has 1"):
        Executor(router, [feed], {FLOW: one})
    rails = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
    groups = StripedGroups(HashStore(), 0, 1, rails, control=rails[0])
    with pytest.raises(ValueError, match="process groups: waits for all ranks"):
        Executor(router, [feed], {FLOW: groups})
    with pytest.raises(KeyError, match="another"):
        Executor(router, [feed], {FLOW: Simulated([1.0, 1.0])}).shares(("a", "b", "another"))
    assert unit_shares(router, FLOW, 4, 2, at_ns=0) == [1.0, 0.0]


def test_real_packets_move_with_the_readings_and_after_a_lost_lease() -> None:
    fabric = Fabric()
    try:
        inside(fabric.leaf1, lambda: _moves_packets(fabric))
    finally:
        fabric.close()


def _moves_packets(fabric: Fabric) -> None:
    router = a_router()
    feed = Readings(router)
    ports = list(range(50000, 50020))
    paths = [Gateway(address=a, device=d) for a, d in zip(GATEWAYS, DEVICES, strict=True)]
    actuator = NexthopGroup(f"{HOST}/32", paths, lease_s=120.0)
    before = fabric.state()

    def sent() -> list[int]:
        was = fabric.forwarded()
        fabric.send(ports)
        return [a - b for a, b in zip(fabric.forwarded(), was, strict=True)]

    with Executor(router, [feed], {FLOW: actuator}) as executor:
        assert executor.turn(0) == 1
        assert sent() == [20, 0]
        feed.waiting = [("one", 0.9, 10 * MS), ("two", 0.1, 10 * MS)]
        assert executor.turn(10 * MS) == 1
        assert sent() == [0, 20]
        assert actuator._lease is not None
        os.kill(actuator._lease.pid, signal.SIGKILL)  # as if the watcher had undone it
        while actuator.renew():
            time.sleep(0.001)
        run(fabric.leaf1, f"route replace {HOST}/32 via {GATEWAYS[0]} src {OWN} metric 7")
        assert sent() == [20, 0]
        assert executor.turn(11 * MS) == 1  # the same shares, set up anew
        assert sent() == [0, 20]
        assert actuator.expired == 1
    assert fabric.state() == before

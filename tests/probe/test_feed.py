"""From the table to a router: each outcome once and in order."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xtune.policies import Router, preset, replace_fields
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.following import REOPEN_NS
from xtune.policies.probe.packet import CONGESTED, UNKNOWN, Packet, Signal
from xtune.policies.probe.readings import ReadingsWriter
from xtune.policies.probe.tally import Tally

STALE_NS = 500


class Recorder:
    """What a router would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def observe(self, link: str, **values: Any) -> None:
        self.told.append((link, values))

    def losses(self, link: str) -> list[bool]:
        return [values["lost"] for name, values in self.told if name == link]


class Table:
    """An agent's table whose clock is set by hand."""

    def __init__(self, path: Path, names: tuple[str, ...] = ("x", "y")) -> None:
        self.path = path
        self.now = 1_000_000
        self.names = names
        self.begin()

    def begin(self) -> None:
        self.writer = ReadingsWriter(self.path, self.names, clock=lambda: self.now)
        self.tallies = [Tally(10) for _ in self.names]
        self.sent = 0

    def probe(self, index: int, lost: bool, signal: Signal = UNKNOWN, ecn: int = 0) -> None:
        """A probe that ends now."""
        tally = self.tallies[index]
        self.sent += 1
        tally.sent(self.sent, self.sent, self.now - (11 if lost else 1))
        if lost:
            tally.expire(self.now)
        else:
            packet = Packet(True, self.sent, index, self.sent, signal, ecn)
            tally.answered(packet, UNKNOWN, self.now)
        self.writer.publish(index, tally.reading())
        self.writer.beat()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "table")
    yield made
    made.writer.close()


def feed_of(table: Table, router: Any, **options: Any) -> Feed:
    return Feed(table.path, router, clock=lambda: table.now, stale_ns=STALE_NS, **options)


def test_the_newest_answer_brings_the_values_at_its_own_time(table: Table) -> None:
    recorder = Recorder()
    feed = feed_of(table, recorder)
    table.probe(0, False, Signal(0.5, 0.5, None))
    table.probe(0, False, Signal(0.25, 0.125, None), ecn=CONGESTED)
    table.now += 5
    table.probe(0, True)
    assert feed.poll() == 3
    nothing = {"occupancy": None, "error_rate": None, "marks": None, "at_ns": table.now}
    values = {"occupancy": 0.25, "error_rate": 0.125, "marks": 1.0}
    values |= {"at_ns": table.now - 5, "lost": False}
    assert recorder.told == [
        ("x", nothing | {"lost": False}), ("x", values), ("x", nothing | {"lost": True}),
    ]  # fmt: skip
    assert feed.poll() == 0
    feed.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.booleans(), max_size=90), max_size=5))
def test_every_outcome_is_handed_on_once_and_in_order(
    tmp_path: Path, rounds: list[list[bool]]
) -> None:
    table, recorder = Table(tmp_path / "t"), Recorder()
    feed = feed_of(table, recorder, links={"y": ("l1", "l2")})
    expected: list[bool] = []
    skipped = 0
    for outcomes in rounds:
        for lost in outcomes:
            table.now += 1
            table.probe(1, lost, Signal(0.5))
        assert feed.poll() == min(64, len(outcomes))
        expected += outcomes[-64:]
        skipped += max(0, len(outcomes) - 64)
    assert recorder.losses("l1") == recorder.losses("l2") == expected
    assert recorder.losses("x") == [] and feed.skipped == skipped
    table.writer.close()
    feed.close()


def test_an_entry_that_could_not_be_read_is_read_the_next_time(table: Table) -> None:
    recorder = Recorder()
    feed = feed_of(table, recorder)
    table.probe(0, True)
    table.probe(1, True)
    at = table.path.read_bytes().index(struct.pack("=QQ", 1, 1)) - 8
    with table.path.open("r+b", buffering=0) as file:
        lock = os.pread(file.fileno(), 8, at)
        os.pwrite(file.fileno(), struct.pack("=Q", 5), at)
        assert feed.poll() == 1
        os.pwrite(file.fileno(), lock, at)
    assert feed.poll() == 1 and feed.poll() == 0
    assert recorder.losses("x") == recorder.losses("y") == [True]
    feed.close()


def test_a_dead_agent_brings_nothing_and_its_successor_is_found(table: Table) -> None:
    recorder = Recorder()
    feed = feed_of(table, recorder)
    table.probe(0, False)
    table.probe(0, True)
    assert feed.poll() == 2 and feed.alive
    table.now += STALE_NS
    assert not feed.alive and feed.poll() == 0
    table.writer.close()
    table.begin()
    table.probe(1, True)
    assert feed.poll() == 0  # looked a moment ago
    table.now += REOPEN_NS
    table.writer.beat()
    assert feed.poll() == 1
    table.probe(0, False)
    assert feed.poll() == 1  # fewer in all than its predecessor's
    assert recorder.losses("x") == [False, True, False] and recorder.losses("y") == [True]
    feed.close()


def test_an_agent_that_only_paused_is_not_told_twice(table: Table) -> None:
    recorder = Recorder()
    feed = feed_of(table, recorder)
    table.probe(0, True)
    assert feed.poll() == 1
    table.now += REOPEN_NS
    assert feed.poll() == 0
    table.probe(0, False)
    assert feed.poll() == 1
    assert recorder.losses("x") == [True, False]
    feed.close()


def test_without_a_table_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "none", Recorder())
    assert feed.poll() == 0 and not feed.alive
    (tmp_path / "none").write_bytes(b"nonsense")
    feed = Feed(tmp_path / "none", Recorder())
    assert feed.poll() == 0 and not feed.alive
    feed.close()


def test_a_router_leaves_a_warm_path_and_returns_when_the_agent_dies(table: Table) -> None:
    policy = replace_fields(preset("joint"), {"routing.hold_ns": 0, "routing.pairs": 1})
    router = Router({("a", "b"): [["x"], ["y"]]}, policy, clock=lambda: table.now)
    feed = feed_of(table, router)
    flow = ("a", "b", 0)
    assert router.choose(flow) == 0
    for _ in range(3):
        table.now += 1000
        table.probe(0, False, Signal(0.9))
        table.probe(1, False, Signal(0.1))
        feed.poll()
    assert router.choose(flow) == 1
    table.now += policy.routing.stale_ns + 1
    assert feed.poll() == 0
    assert router.choose(flow) == 0
    feed.close()


def test_three_losses_blacklist_and_five_answers_readmit(table: Table) -> None:
    policy = replace_fields(preset("joint"), {"routing.hold_ns": 0, "routing.pairs": 1})
    router = Router({("a", "b"): [["x"], ["y"]]}, policy, clock=lambda: table.now)
    feed = feed_of(table, router)
    flow = ("a", "b", 0)
    chosen = []
    for lost in (True, True, False, True, True, True, *[False] * 5):
        table.now += 100
        table.probe(0, lost, Signal(0.0))
        table.probe(1, False, Signal(0.0))
        feed.poll()
        chosen.append(router.choose(flow))
    assert chosen == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]
    feed.close()

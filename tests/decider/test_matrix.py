"""The matrix: its weights by another route, and the verdict where reporters disagree."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probe.helpers import KEY
from xtune.policies import preset
from xtune.policies.decider import matrix as matrix_module
from xtune.policies.decider.matrix import Full, Late, Matrix
from xtune.policies.decider.packet import (
    MOST_BODY_BYTES,
    Entry,
    Record,
    Report,
    Wire,
    pack_body,
    unpack_body,
)
from xtune.policies.decisions import DecisionLog
from xtune.policies.links import LinkTable
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.packet import ends
from xtune.policies.probe.readings import Reading, ReadingsWriter
from xtune.policies.spec import Policy, Routing, replace_fields

MS = 1_000_000
STALE_NS = 100 * MS
NEVER = 10**15
OUT = ends(("10.0.0.1", 40000), ("10.0.0.9", 4791))


def routing(forecast: str = "reading") -> Routing:
    changes = {"routing.stale_ns": STALE_NS, "routing.forecast": forecast}
    policy: Policy = replace_fields(preset("joint"), changes)
    return policy.routing


def made(forecast: str = "reading") -> Matrix:
    return Matrix(routing(forecast), DecisionLog())


def verdict(matrix: Matrix, link: str, now_ns: int) -> Entry:
    (found,) = (
        entry
        for block in range(len(matrix.blocks))
        for entry in matrix.entries(block, now_ns)
        if entry.link == link
    )
    return found


def answered(link: str, finished: int, occupancy: float | None = None, age_ns: int = 0) -> Record:
    return Record(0, link, finished, 0, age_ns, age_ns, occupancy)


def lost(link: str, finished: int, in_a_row: int, age_ns: int = 0) -> Record:
    return Record(0, link, finished, (1 << in_a_row) - 1, age_ns, None)


def same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


class OneLink:
    """What a feed hands to a host's own table."""

    def __init__(self, forecast: str) -> None:
        self.table = LinkTable(["a>b"], routing(forecast), DecisionLog())

    def observe(
        self,
        link: str,
        *,
        occupancy: float | None = None,
        error_rate: float | None = None,
        at_ns: int | None = None,
        lost: bool = False,
        marks: float | None = None,
    ) -> None:
        assert at_ns is not None
        self.table.observe(link, at_ns, occupancy, error_rate, lost, marks)


shares = st.none() | st.floats(0.0, 1.0)
steps = st.tuples(
    st.integers(1, 2 * STALE_NS),  # time since the last outcome
    st.booleans(),  # the probe is lost
    shares,
    shares,
    shares,
    st.booleans(),  # what is known is read and reported after it
)


@settings(deadline=None)
@given(st.sampled_from(["reading", "ewma", "slope", "holt"]), st.lists(steps, max_size=12))
def test_weights_are_those_of_a_hosts_own_table_fed_with_the_same_readings(
    forecast: str, outcomes: list[tuple[int, bool, float | None, float | None, float | None, bool]]
) -> None:
    """One way by shared memory and feed, the other by report, matrix and snapshot."""
    wire, matrix, host = Wire(KEY), made(forecast), OneLink(forecast)
    now_ns, reading, log = 10 * STALE_NS, Reading(), (0, 0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer = ReadingsWriter(Path(folder) / "t", ["a>b"])
        feed = Feed(Path(folder) / "t", host, stale_ns=NEVER)
        for dt_ns, is_lost, occupancy, error_rate, marks, told in outcomes:
            now_ns += dt_ns
            log = (log[0] + 1, log[1] << 1 | is_lost)
            reading = reading._replace(finished=log[0], history=log[1], finished_ns=now_ns)
            if not is_lost:
                reading = reading._replace(
                    answered_ns=now_ns, occupancy=occupancy, error_rate=error_rate, marks=marks
                )
            if not told:
                continue
            writer.publish(0, reading)
            feed.poll()
            record = Record(
                0, "a>b", log[0], log[1], 0,
                None if reading.answered_ns is None else now_ns - reading.answered_ns,
                reading.occupancy, reading.error_rate, None, reading.marks,
            )  # fmt: skip
            sent = wire.pack_report(Report(1, 2, 3, 4, "h0", (record,)), OUT)
            report = wire.unpack_report(sent, OUT)
            assert isinstance(report, Report)
            matrix.take("h0", "h0", report.records[0], now_ns)
            (found,) = unpack_body(pack_body(matrix.entries(0, now_ns))) or []
            worth, seen_ns = host.table.worth[0], host.table.seen_ns[0]
            if worth == worth and worth != math.inf and now_ns - seen_ns > STALE_NS:
                worth = math.nan  # the probes answer, and its occupancy is of long ago
            expected = max(0.0, worth) if worth == worth else worth
            assert same(found.weight, expected)
            if worth == worth and worth != math.inf:
                assert found.age_us == math.ceil((now_ns - seen_ns) / 1000)
        feed.close()
        writer.close()


events = st.tuples(
    st.integers(0, 3),  # reporter
    st.integers(0, STALE_NS),  # time since the last event
    st.sampled_from(["answer", "silent answer", "losses", "gone"]),
    st.floats(0.0, 1.0),
)


@settings(deadline=None)
@given(st.lists(events, max_size=30))
def test_verdict_is_the_worst_of_living_fresh_reporters(
    told: list[tuple[int, int, str, float]],
) -> None:
    """Against a table of what each said last, kept by hand."""
    matrix, now_ns = made(), 10 * STALE_NS
    heard: dict[int, tuple[int, bool]] = {}  # when, and whether it was answered
    shares: dict[int, tuple[int, float]] = {}  # when, and how full
    count: dict[int, int] = {}
    for reporter, dt_ns, what, share in told:
        now_ns += dt_ns
        if what == "gone":
            matrix.drop(reporter)
            for table in (heard, shares, count):
                table.pop(reporter, None)
        else:
            count[reporter] = count.get(reporter, 0) + 5
            heard[reporter] = now_ns, what != "losses"
            record = lost("x", count[reporter], 5)
            if what != "losses":  # five answers in a row re-admit what was blacklisted
                record = answered("x", count[reporter], share if what == "answer" else None)
            if what == "answer":
                shares[reporter] = now_ns, share
            matrix.take(reporter, "h", record, now_ns)
        if not matrix.blocks:
            continue
        oldest_ns = now_ns - STALE_NS
        fresh = [r for r, (at_ns, _) in heard.items() if at_ns >= oldest_ns]
        living = [r for r in fresh if heard[r][1]]
        known = [shares[r] for r in living if r in shares and shares[r][0] >= oldest_ns]
        found = verdict(matrix, "x", now_ns)
        assert found.reporters == len(living or fresh)
        assert (found.age_us is None) == (not fresh)
        if fresh and not living:
            assert found.weight == math.inf
        else:
            assert same(found.weight, max((share for _, share in known), default=math.nan))


def test_two_hosts_of_one_link() -> None:
    matrix = made()
    matrix.take("h0", "h0", answered("x", 1, 0.2), 1 * STALE_NS)
    matrix.take("h1", "h1", answered("x", 1, 0.6, age_ns=MS), 1 * STALE_NS)
    at_ns = STALE_NS + 2 * MS
    assert verdict(matrix, "x", at_ns) == Entry("x", 0.6, 3000, 2)
    # Of the two, the fuller reading grows stale first.
    at_ns = 2 * STALE_NS
    assert verdict(matrix, "x", at_ns) == Entry("x", 0.2, STALE_NS // 1000, 1)
    assert verdict(matrix, "x", at_ns + 1)[2:] == (None, 0)
    assert matrix.counts() == {"links": 1, "cells": 2} and len(matrix.blocks) == 1


def test_a_link_is_blacklisted_where_nobody_is_answered_over_it() -> None:
    matrix = made()
    matrix.take("h0", "h0", lost("x", 3, 3), MS)
    assert verdict(matrix, "x", MS) == Entry("x", math.inf, 0, 1)
    matrix.take("h1", "h1", answered("x", 1, 0.25), MS)  # lost elsewhere on h0's path
    assert verdict(matrix, "x", MS) == Entry("x", 0.25, 0, 1)
    matrix.take("h1", "h1", lost("x", 4, 3), 2 * MS)
    assert verdict(matrix, "x", 2 * MS) == Entry("x", math.inf, 0, 2)
    matrix.take("h1", "h1", answered("x", 9), 3 * MS)  # five answers, and nothing about its queue
    found = verdict(matrix, "x", 3 * MS)
    assert found.weight == 0.25 and found.age_us == 2000  # h1's of before is still fresh


def test_a_forecast_below_an_empty_queue_is_an_empty_queue() -> None:
    matrix = made("holt")
    for step, share in enumerate((1.0, 0.0, 0.0), 1):  # the line falls on
        matrix.take("h0", "h0", answered("x", step, share), step * MS)
    assert verdict(matrix, "x", 3 * MS).weight == 0.0


def test_answers_without_occupancy_are_told_as_that() -> None:
    matrix = made()
    matrix.take("h0", "h0", lost("x", 3, 3), MS)
    matrix.take("h0", "h0", answered("x", 8), 2 * MS)
    found = verdict(matrix, "x", 3 * MS)
    assert math.isnan(found.weight) and found[2:] == (1000, 1)


def test_an_occupancy_of_long_ago_is_unknown_though_probes_are_answered() -> None:
    matrix = made()
    matrix.take("h0", "h0", answered("x", 1, 0.5), MS)
    for step in range(1, 4):
        matrix.take("h0", "h0", answered("x", 1 + step), MS + step * STALE_NS // 2)
    found = verdict(matrix, "x", MS + 3 * STALE_NS // 2)
    assert math.isnan(found.weight) and found.age_us == 0


def test_a_path_that_measures_another_link_now_says_nothing_of_the_first() -> None:
    matrix = made()
    matrix.take("h0", "h0", answered("x", 1, 0.5), MS)
    matrix.take("h0", "h0", answered("y", 2, 0.75), MS)
    assert verdict(matrix, "x", MS).age_us is None
    assert verdict(matrix, "y", MS).weight == 0.75
    assert matrix.counts() == {"links": 2, "cells": 1}


def test_the_least_margin_of_a_reporter_and_its_link() -> None:
    matrix = made()
    assert matrix.least_margin("h0") is None
    for path, margin in enumerate((None, 2.5, -1.25, 3.0)):
        record = answered(f"link-{path}", 1)._replace(path=path, margin=margin)
        matrix.take("h0", "h0", record, MS)
    matrix.take("h1", "h1", answered("x", 1), MS)
    assert matrix.least_margin("h0") == (-1.25, "link-2") and matrix.least_margin("h1") is None
    matrix.take("h0", "h0", answered("link-2", 2)._replace(path=2), MS)
    assert matrix.least_margin("h0") == (2.5, "link-1")


def test_outcomes_that_came_too_many_at_once_are_counted_but_not_at_first() -> None:
    matrix = made()
    assert matrix.take("h0", "h0", answered("x", 1000), MS) == 0  # of before this decider
    assert matrix.take("h0", "h0", answered("x", 1064), MS) == 0
    assert matrix.take("h0", "h0", answered("x", 1129), MS) == 1
    with pytest.raises(Late):
        matrix.take("h0", "h0", answered("x", 1129 + 2**31), MS)
    for finished in (1128 + 2**31, 2**32 - 1):  # as far ahead as counts can tell
        assert matrix.take("h0", "h0", answered("x", finished), MS) > 0
    assert matrix.take("h0", "h0", answered("x", 3), MS) == 0  # counted modulo 2**32


turned = st.lists(st.integers(1, 6), min_size=1, max_size=10).flatmap(
    lambda steps: st.tuples(st.just(steps), st.permutations(range(len(steps))))
)


@settings(deadline=None)
@given(turned, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_reports_in_any_order_tell_what_they_tell_in_order(
    told: tuple[list[int], list[int]], first: int, outcomes: int
) -> None:
    """Each but the first to come tells all outcomes since the one before it."""
    steps, order = told
    counts = [first + sum(steps[: place + 1]) for place in range(len(steps))]
    records = [
        lost("x", count % 2**32, 0)._replace(history=outcomes >> (counts[-1] - count))
        for count in counts
    ]
    mixed, straight, newest = made(), made(), order[0]
    for place in order:
        if place >= newest:
            assert mixed.take("h", "h", records[place], MS) == 0
            newest = place
            continue
        mixed.dirty.clear()
        with pytest.raises(Late):
            mixed.take("h", "h", records[place], 2 * MS)
        assert not mixed.dirty
    for record in records[order[0] :]:
        straight.take("h", "h", record, MS)
    assert verdict(mixed, "x", MS) == verdict(straight, "x", MS)


def test_an_overtaken_report_neither_blacklists_nor_counts() -> None:
    matrix = made()
    for finished in (100, 115):
        matrix.take("h0", "h0", answered("x", finished, 0.5), MS)
    with pytest.raises(Late):
        matrix.take("h0", "h0", lost("x", 114, 3)._replace(margin=1.0), 2 * MS)
    assert verdict(matrix, "x", MS) == Entry("x", 0.5, 0, 1)
    assert matrix.least_margin("h0") is None


def test_news_are_of_blocks_that_were_told_of() -> None:
    matrix = made()
    for number in range(100):
        matrix.take("h0", "h0", answered(f"link-{number:08}", 1)._replace(path=number), MS)
    assert matrix.dirty == set(range(len(matrix.blocks))) and len(matrix.blocks) > 1
    matrix.dirty.clear()
    matrix.take("h0", "h0", answered("link-00000000", 2), MS)
    assert matrix.dirty == {0}
    matrix.dirty.clear()
    matrix.drop("h0")
    assert matrix.dirty == set(range(len(matrix.blocks)))
    assert matrix.counts() == {"links": 100, "cells": 0}


@settings(deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=255), unique=True, max_size=60),
    st.integers(1, 255),
)
def test_every_block_fits_a_datagram_and_no_link_moves(names: list[str], width: int) -> None:
    matrix = made()
    names += [f"{number}".rjust(width, "-") for number in range(60)]  # some blocks full of one
    for number, name in enumerate(names):
        before = [[link.name for link in block] for block in matrix.blocks]
        matrix.take("h0", "h0", answered(name, 1)._replace(path=number), MS)
        after = [[link.name for link in block] for block in matrix.blocks]
        flat = [name for block in after for name in block]
        assert flat == names[: number + 1]
        assert all(a[: len(b)] == b for a, b in zip(after, before, strict=False))
    for block in range(len(matrix.blocks)):
        assert len(pack_body(matrix.entries(block, MS))) <= MOST_BODY_BYTES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Matrix]:
    monkeypatch.setattr(matrix_module, "MOST_LINKS", 2)
    monkeypatch.setattr(matrix_module, "MOST_CELLS", 3)
    yield made()


def test_what_there_is_no_room_for_is_refused_and_changes_nothing(small: Matrix) -> None:
    small.take("h0", "h0", answered("x", 1, 0.5), MS)
    small.take("h0", "h0", answered("y", 1)._replace(path=1), MS)
    with pytest.raises(Full):
        small.take("h0", "h0", answered("z", 1)._replace(path=2), MS)
    small.take("h1", "h1", answered("x", 1), MS)
    with pytest.raises(Full):
        small.take("h2", "h2", answered("x", 1), MS)
    assert small.counts() == {"links": 2, "cells": 3}
    small.drop("h1")
    small.take("h2", "h2", answered("x", 1), MS)
    assert verdict(small, "x", MS).weight == 0.5


def test_blacklisting_is_logged_with_who_saw_it(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    matrix = Matrix(routing(), log)
    matrix.take("h0", "h0", lost("x", 3, 3), MS)
    log.close()
    assert "x as h0 sees it: 3 probes lost in a row" in (tmp_path / "log").read_text()

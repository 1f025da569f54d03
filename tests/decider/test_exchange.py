"""Reports there and snapshots back, over loopback, with clocks set by hand."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from tests.decider.helpers import (
    MS,
    RECORD,
    Centre,
    Clocks,
    Host,
    S,
    Stranger,
    free_port,
    meet,
)
from tests.probe.helpers import KEY
from xtune.policies.decider.packet import Record
from xtune.policies.decider.weights import WeightsReader
from xtune.policies.probe.agent import _reporter
from xtune.policies.probe.config import make_config as probe_config
from xtune.policies.probe.readings import Reading


def test_a_reading_of_one_host_is_a_weight_at_all(centre: Centre, host: Host, other: Host) -> None:
    meet(centre, host, other)
    host.clocks.now += 7 * MS
    host.answer(0, 0.5)
    host.turn(3 * MS)  # it is 3 ms old when it is sent
    centre.turn(20 * MS)
    for one in (host, other):
        one.hear()
        (found,) = one.links().values()
        assert found.link == "a>b" and found.weight == 0.5 and found.reporters == 1
    # The clocks here stand still between arrival and push, so the age is what it had there.
    assert centre.links()["a>b"].age_us == pytest.approx(3000, abs=1)
    reader = WeightsReader(other.weights)
    (block,) = reader.blocks()
    held_ns = other.clocks.now - block.at_ns
    assert 0 <= held_ns <= 2000  # rounded up to whole microseconds
    reader.close()


def test_ages_go_on_growing_while_a_report_waits(centre: Centre, host: Host) -> None:
    meet(centre, host)
    host.clocks.now += 7 * MS
    host.answer(0, 0.5)
    host.turn(3 * MS)
    centre.turn(0)  # arrives, and no push is due
    assert centre.count("records") == 1
    centre.turn(40 * MS)
    host.hear()
    assert host.links()["a>b"].age_us in (43_000, 43_001)


def test_only_news_are_reported_and_signs_of_life_without_any(centre: Centre, host: Host) -> None:
    meet(centre, host)
    counts = host.reporter.counts
    host.answer(0, 0.5)
    host.turn()
    assert (counts["reports"], counts["records"]) == (3, 1)
    for _ in range(9):
        host.turn()
    assert counts["reports"] == 3
    host.turn()
    assert (counts["reports"], counts["records"]) == (4, 1)  # 100 ms after the last
    host.answer(1, 0.25)
    host.turn(5 * MS)
    assert counts["records"] == 1  # not sooner than the interval
    host.turn(5 * MS)
    assert counts["records"] == 2
    host.turn(S)  # after a pause no report is made up for
    host.answer(1, 0.25)
    host.turn(5 * MS)
    assert counts["records"] == 2


def test_latency_is_from_the_report_to_the_table_on_the_agents_clock(
    centre: Centre, host: Host
) -> None:
    meet(centre, host)
    assert host.reporter.latency_us(0.5) is None
    for step in range(1, 5):
        host.answer(0, 0.5)
        host.turn()
        centre.turn(20 * MS)
        host.clocks.now += step * MS
        host.hear()
    assert [host.reporter.latency_us(q) for q in (0.0, 0.5, 0.99)] == [1000, 3000, 4000]


def test_a_report_that_a_snapshot_does_not_contain_waits_for_the_next(
    centre: Centre, host: Host
) -> None:
    meet(centre, host)
    host.answer(0, 0.5)
    host.turn()
    centre.turn(20 * MS)
    host.answer(0, 0.75)
    host.turn()
    host.hear()
    assert host.reporter.pending == 1 and host.links()["a>b"].weight == 0.5
    centre.turn(20 * MS)
    host.hear()
    assert host.reporter.pending == 0 and host.links()["a>b"].weight == 0.75


def test_news_that_could_not_be_sent_are_tried_again_with_the_next_report(
    centre: Centre, host: Host
) -> None:
    meet(centre, host)
    host.reporter.socket.shutdown(socket.SHUT_WR)  # every send fails from here on
    host.answer(0, 0.5)
    for tries in range(1, 4):
        host.turn()
        assert host.reporter.counts["unsent"] == tries


def test_a_decider_that_begins_anew_knows_all_again_by_one_report(
    centre: Centre, host: Host, other: Host
) -> None:
    meet(centre, host, other)
    host.answer(0, 0.5)
    host.answer(1, 0.75)
    host.turn()
    other.answer(0, 0.6)
    other.turn()
    centre.turn(20 * MS)
    host.hear()
    before = centre.links()
    assert {link: e.weight for link, e in before.items()} == {"a>b": 0.6, "a>c": 0.75}
    centre.decider.close()
    centre.clocks.now += S
    centre.begin()
    assert centre.links() == {}
    for one in (host, other):  # a sign of life, without any news
        one.turn(100 * MS)
    assert centre.count("records") == 0
    centre.turn(20 * MS)
    for one in (host, other):
        one.hear()
        assert one.links() == {}  # what the one before said is gone
        one.turn(0)
    centre.turn(0)
    assert centre.count("records") == 3 and centre.count("other_epoch") == 2
    centre.turn(20 * MS)
    assert {link: e.age_us is None for link, e in centre.links().items()} == {
        "a>b": True, "a>c": True,  # 100 ms is too old for a verdict
    }  # fmt: skip
    assert host.reporter.counts["epochs"] == 2


def test_an_agent_that_begins_anew_is_counted_anew(tmp_path: Path, centre: Centre) -> None:
    host = Host(tmp_path, "h0", centre.port, ("a>b", "a>c"))
    meet(centre, host)
    for path in (0, 1):
        host.answer(path, 0.5)
    host.turn()
    centre.turn(20 * MS)
    own_port = host.reporter.socket.getsockname()[1]
    host.reporter.close()
    again = Host(tmp_path, "h0", centre.port, ("z",), own_port, host.clocks.now + S)
    meet(centre, again)
    again.answer(0, 0.25)
    again.turn()
    centre.turn(20 * MS)
    again.hear()
    # What the first one said is gone; a table of the second has both links' places.
    assert {link: e.reporters for link, e in again.links().items()} == {
        "a>b": 0, "a>c": 0, "z": 1,
    }  # fmt: skip
    assert centre.count("hosts") == 1 and centre.count("cells") == 1
    again.reporter.close()


def test_snapshots_come_no_faster_than_they_may(tmp_path: Path) -> None:
    centre = Centre(tmp_path, datagrams_hz=100, push_interval_s=0.001, keepalive_s=0.25)
    stranger = Stranger(centre)
    records = [Record(n, f"link-{n:040}", 1, 0, 0, 0, 0.5) for n in range(12)]
    for first in range(0, 96, 12):
        some = [r._replace(path=first + r.path, link=f"{first}-{r.link}") for r in records]
        stranger.channel.send(stranger.report(*some, epoch=centre.count("epoch")))
    centre.turn(MS)
    blocks = len(centre.decider._matrix.blocks)
    assert centre.count("pushed") == blocks > 3
    stranger.channel.send(stranger.report(RECORD, epoch=centre.count("epoch")))
    for step in range(1, blocks + 1):  # 10 ms for each datagram
        assert centre.count("pushed") == blocks
        centre.turn(10 * MS if step < blocks else 11 * MS)
    assert centre.count("pushed") == blocks + 1
    centre.decider.close()
    stranger.channel.close()


def test_pushes_follow_the_policy_and_reports_the_probes(
    tmp_path: Path,
) -> None:
    """With probes each millisecond: a reading is stale after 20."""
    fast = Centre(tmp_path, routing={"stale_ns": 20 * MS})
    stranger = Stranger(fast)
    for dt_ms, pushed in ((5, 1), (4, 1), (1, 2), (5, 3)):
        stranger.channel.send(stranger.report(RECORD, epoch=fast.count("epoch")))
        fast.turn(dt_ms * MS)
        assert fast.count("pushed") == pushed
    stranger.channel.close()
    fast.decider.close()
    said = {"readings": str(tmp_path / "agent"), "rate_hz": 1000, "decider": "127.0.0.1:1"}
    clocks = Clocks()
    reporter = _reporter(probe_config(said), KEY, clocks.clock, clocks.wall)
    assert reporter is not None
    before = reporter.due_ns
    reporter.turn(lambda path: Reading())
    assert reporter.due_ns - before == 5 * MS
    reporter.close()


def test_readings_that_come_too_old_are_counted_and_said_once(
    centre: Centre, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    epoch, old = centre.count("epoch"), RECORD._replace(finished_age_ns=101 * MS)
    with caplog.at_level(logging.WARNING):
        for record in (RECORD._replace(finished_age_ns=100 * MS), old, old):
            stranger.channel.send(stranger.report(record, epoch=epoch))
            centre.turn()
    assert (centre.count("records"), centre.count("records_stale")) == (3, 2)
    assert caplog.text.count("older than routing.stale_ns (100 ms)") == 1
    assert centre.links()["x"].age_us is None


def test_without_a_decider_reports_are_counted_and_nothing_else_happens(tmp_path: Path) -> None:
    host = Host(tmp_path, "h0", free_port(), ("a>b",))
    for _ in range(20):
        host.answer(0, 0.5)
        host.turn(100 * MS)
        host.reporter.receive()
    assert host.reporter.counts["unsent"] + host.reporter.counts["receive_failed"] > 0
    assert host.links() == {}
    host.reporter.close()


def test_a_long_name_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than 255 bytes"):
        Host(tmp_path, "h0", free_port(), ("x" * 256,))
    assert list(tmp_path.iterdir()) == []

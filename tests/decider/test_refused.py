"""What is refused on either side, each by its name, and what two deciders come to."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decider.helpers import MS, RECORD, WIRE, Centre, Host, S, Stranger, snapshot
from tests.probe.helpers import KEY, until
from xtune.policies.decider import matrix, server
from xtune.policies.decider.packet import (
    NO_BLOCK,
    Entry,
    Report,
    Snapshot,
    Wire,
    pack_body,
)
from xtune.policies.decider.reporter import SILENT_NS
from xtune.policies.decider.weights import WeightsReader
from xtune.policies.probe.packet import Codec, Packet


def test_every_datagram_is_taken_or_counted_by_name(centre: Centre, stranger: Stranger) -> None:
    epoch = centre.count("epoch")
    good = stranger.report(RECORD, epoch=epoch)
    cases = {
        "reports": [good, stranger.report(RECORD, epoch=epoch)],
        "other_epoch": [stranger.report(RECORD, epoch=epoch - 1)],
        "truncated": [b"", good[:-1]],
        "foreign": [good + b"x", bytes(60), Codec(KEY).pack(Packet(False, 1, 1, 1), stranger.out)],
        "other_version": [good[:2] + b"\x02" + good[3:]],
        "forged": [good[:-1] + bytes([good[-1] ^ 1]),
                   Wire(bytes(16)).pack_report(Report(1, 2, 3, 4, "h"), stranger.out),
                   WIRE.pack_report(Report(1, 2, 3, 4, "h"), stranger.back)],
        "misdirected": [WIRE.pack_snapshot(Snapshot(1, 2, 3, 4, 5), stranger.out)],
        "replayed": [good],
    }  # fmt: skip
    for payloads in cases.values():
        for payload in payloads:
            stranger.channel.send(payload)
    centre.turn(0)
    counted = centre.decider.counters()
    assert {name: counted[name] for name in cases} == {n: len(p) for n, p in cases.items()}
    assert counted["records"] == 2
    assert set(centre.links()) <= {"x"}


def test_what_a_full_buffer_drops_is_counted_too(centre: Centre, stranger: Stranger) -> None:
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        sent += count
        for _ in range(count):
            stranger.channel.send(bytes(1400))

    def all_counted() -> bool:
        send(1)  # the kernel tells what it dropped with the next one that it takes
        centre.turn(0)
        return centre.count("foreign") + centre.count("overflowed") == sent

    send(6000)
    until(all_counted, "every datagram")
    assert centre.count("overflowed") > 0


def test_what_was_recorded_before_a_decider_began_is_never_taken(
    centre: Centre, stranger: Stranger
) -> None:
    recorded = stranger.report(RECORD, epoch=centre.count("epoch"))
    stranger.channel.send(recorded)
    centre.turn(0)
    assert centre.count("records") == 1
    centre.decider.close()
    centre.clocks.now += S
    centre.begin()
    stranger.channel.send(recorded)
    centre.turn(0)
    assert centre.count("records") == 0 and centre.count("other_epoch") == 1


def test_a_host_that_was_forgotten_cannot_be_replayed(centre: Centre, stranger: Stranger) -> None:
    recorded = stranger.report(RECORD, epoch=centre.count("epoch"))
    stranger.channel.send(recorded)
    centre.turn(0)
    centre.turn(4 * S)
    assert (centre.count("hosts"), centre.count("hosts_lost"), centre.count("cells")) == (0, 1, 0)
    stranger.channel.send(recorded)
    centre.turn(0)
    assert centre.count("records") == 1 and centre.count("replayed") == 1


def test_two_reports_that_change_places_on_the_way_are_one_late_one(
    centre: Centre, stranger: Stranger
) -> None:
    epoch = centre.count("epoch")
    told = [
        stranger.report(RECORD._replace(finished=finished, history=history), epoch=epoch)
        for finished, history in ((100, 0), (113, 7 << 10), (114, 7 << 11), (115, 7 << 12))
    ]
    for place in (0, 1, 3, 2):
        stranger.channel.send(told[place])
    centre.turn(0)
    counts = centre.decider.counters()
    expected = {
        "reports": 4,
        "records": 3,
        "records_late": 1,
        "outcomes_skipped": 0,
        "replayed": 0,
    }
    assert {name: counts[name] for name in expected} == expected
    assert centre.links()["x"].weight == 0.5


def test_an_agent_that_began_before_the_one_heard_of_is_not_taken(
    centre: Centre, stranger: Stranger
) -> None:
    epoch = centre.count("epoch")
    for born_ns, link in ((2, "y"), (1, "x"), (2, "z")):  # later and later by number and stamp
        record = RECORD._replace(path=born_ns, link=link)
        stranger.channel.send(stranger.report(record, epoch=epoch, born_ns=born_ns))
    centre.turn(0)
    assert (centre.count("records"), centre.count("replayed")) == (2, 1)
    assert set(centre.links()) == {"y", "z"}


def test_of_those_who_left_the_first_is_forgotten_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that begin anew from new ports use up no room for good."""
    monkeypatch.setattr(server, "MOST_WINDOWS", 3)
    centre = Centre(tmp_path)
    staying, first, last, new = strangers = [Stranger(centre) for _ in range(4)]
    epoch = centre.count("epoch")
    recorded = {one: one.report(RECORD, epoch=epoch) for one in strangers}

    def hear(*payloads: tuple[Stranger, bytes], dt_ns: int = 0) -> None:
        for one, payload in payloads:
            one.channel.send(payload)
        centre.turn(dt_ns)

    for one in (staying, last, first):  # who leaves first was heard of last
        hear((one, recorded[one]))
    for alive in ((staying, last), (staying,), (staying,)):
        hear(*((one, one.report(epoch=epoch)) for one in alive), dt_ns=2 * S)
    assert (centre.count("hosts"), centre.count("hosts_lost")) == (1, 2)
    hear((new, recorded[new]))
    assert (centre.count("forgotten"), centre.count("hosts_refused")) == (1, 0)
    hear(*((one, recorded[one]) for one in (staying, last, new)))
    assert (centre.count("records"), centre.count("replayed")) == (4, 3)
    centre.decider.close()
    for one in strangers:
        one.channel.close()


def test_no_more_hosts_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "MOST_HOSTS", 2)
    centre = Centre(tmp_path)
    strangers = [Stranger(centre) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for one in (*strangers, strangers[2]):
            one.channel.send(one.report(RECORD, epoch=centre.count("epoch")))
        centre.turn(0)
    assert (centre.count("hosts"), centre.count("hosts_refused")) == (2, 2)
    assert caplog.text.count("no room for s, beside 2 hosts") == 1
    centre.turn(4 * S)  # the first two are silent, and forgotten
    strangers[2].channel.send(strangers[2].report(RECORD, epoch=centre.count("epoch")))
    centre.turn(0)
    assert (centre.count("hosts"), centre.count("hosts_refused")) == (1, 2)
    centre.decider.close()
    for one in strangers:
        one.channel.close()


def test_the_later_epoch_holds_and_versions_only_rise(
    forger: tuple[socket.socket, Host], caplog: pytest.LogCaptureFixture
) -> None:
    channel, host = forger
    told = [
        (1, 10, 5, 0.05, None),
        (2, 10, 6, 0.06, None),
        (3, 10, 6, 0.06, "older_version"),
        (4, 10, 4, 0.06, "older_version"),
        (4, 10, 9, 0.06, "replayed"),
        (1, 20, 1, 0.01, None),  # another decider, which began later
        (5, 10, 99, 0.01, "older_epoch"),
        (6, 10, 99, 0.01, "older_epoch"),
        (2, 20, 2, 0.02, None),
    ]
    with caplog.at_level(logging.WARNING):
        for sequence, epoch, version, weight, counted in told:
            before = dict(host.reporter.counts)
            channel.send(snapshot(host, sequence, epoch, version))
            host.hear()
            assert host.links()["a>b"].weight == weight
            if counted is not None:
                assert host.reporter.counts[counted] == before[counted] + 1
    assert caplog.text.count("an earlier decider still sends") == 1
    assert host.reporter.counts["snapshots"] == 6 and host.reporter.counts["epochs"] == 2


def test_an_earlier_decider_is_followed_where_the_later_one_has_gone(
    forger: tuple[socket.socket, Host],
) -> None:
    channel, host = forger
    recorded = snapshot(host, 2, 10, 7)  # of a time when the earlier one was followed
    later = snapshot(host, 2, 20, 7)
    told: list[tuple[bytes, float]] = [
        (snapshot(host, 1, 10, 5), 0.05),
        (snapshot(host, 1, 20, 1), 0.01),
    ]
    for payload, weight in told:
        channel.send(payload)
        host.hear()
        assert host.links()["a>b"].weight == weight
    host.turn(SILENT_NS - MS)
    channel.send(snapshot(host, 3, 10, 8))
    host.hear()
    assert host.reporter.epoch == 20  # not silent for long enough
    host.turn(MS)
    channel.send(recorded)
    host.hear()
    assert host.reporter.epoch == 20 and host.reporter.counts["older_epoch"] == 2
    channel.send(snapshot(host, 4, 10, 9))
    host.hear()
    assert host.reporter.epoch == 10 and host.links()["a>b"].weight == 0.09
    for old in (recorded, later):
        channel.send(old)
        host.hear()
        assert host.links()["a>b"].weight == 0.09
    assert host.reporter.counts["replayed"] == 2
    channel.send(snapshot(host, 2, 20, 2))  # it was only held up
    host.hear()
    assert host.reporter.epoch == 20 and host.links()["a>b"].weight == 0.02


def test_a_snapshot_of_before_an_agent_began_is_not_taken(
    forger: tuple[socket.socket, Host],
) -> None:
    channel, host = forger
    for echo_ns in (0, host.clocks.wall() - S):
        channel.send(snapshot(host, 1, 10, 1, echo_ns=echo_ns))
        host.hear()
    assert host.reporter.counts["replayed"] == 2 and host.links() == {}


def test_every_snapshot_is_taken_or_counted_by_name(forger: tuple[socket.socket, Host]) -> None:
    channel, host = forger
    good = snapshot(host, 1, 10, 1)
    into, back = host.ends()
    cases = {
        "truncated": [b"", good[:-1]],
        "foreign": [good + b"x", bytes(60), snapshot(host, 3, 10, 1, block=NO_BLOCK - 1)],
        "other_version": [good[:2] + b"\x02" + good[3:]],
        "forged": [good[:-1] + bytes([good[-1] ^ 1]), snapshot(host, 9, 9, 9, between=back)],
        "misdirected": [WIRE.pack_report(Report(1, 2, 3, 4, "h"), into)],
        "snapshots": [good, snapshot(host, 2, 10, 2, block=NO_BLOCK, body=b"")],
        "replayed": [good],
    }  # fmt: skip
    for payloads in cases.values():
        for payload in payloads:
            channel.send(payload)
    host.hear(sum(len(payloads) for payloads in cases.values()))
    counts = host.reporter.counts
    assert {name: counts[name] for name in cases} == {n: len(p) for n, p in cases.items()}


told_snapshots = st.lists(
    st.tuples(
        st.integers(1, 3),  # epoch
        st.integers(1, 5),  # version
        st.sampled_from([0, 1, NO_BLOCK]),
        st.booleans(),  # made before the agent began
    ),
    max_size=25,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told_snapshots, st.data())
def test_whatever_comes_in_whatever_order_no_block_goes_back(
    forger: tuple[socket.socket, Host],
    told: list[tuple[int, int, int, bool]],
    data: st.DataObject,
) -> None:
    """Deciders that each send rising versions; the network repeats and turns what they send."""
    channel, host = forger
    first = host.reporter.epoch + 1  # later than those of the example before
    before = dict(host.reporter.counts)
    sent = []
    for sequence, (epoch, version, block, early) in enumerate(sorted(told), 1):
        echo_ns = host.clocks.wall() - (S if early else 0)
        body = b"" if block == NO_BLOCK else pack_body([Entry(f"{block}", version, 0, 1)])
        more: dict[str, Any] = {"block": block, "body": body, "echo_ns": echo_ns}
        sent.append(snapshot(host, sequence, first + epoch, version, **more))
    sent = data.draw(st.permutations(sent + sent[::2]))
    newest: dict[int, tuple[int, int]] = {}
    epochs = []
    reader = WeightsReader(host.weights)
    for payload in sent:
        channel.send(payload)
        host.hear()
        blocks = [b for b in reader.blocks() if b.epoch >= first]
        assert len({block.epoch for block in blocks}) <= 1
        epochs += [block.epoch for block in blocks]
        for known in blocks:
            number = int(known.entries()[0].link)
            assert (known.epoch, known.version) >= newest.get(number, (0, 0))
            newest[number] = known.epoch, known.version
    reader.close()
    assert epochs == sorted(epochs)
    after = host.reporter.counts
    grown = {name: after[name] - before[name] for name in ("snapshots", "replayed", "older_epoch")}
    assert sum(grown.values()) == len(sent)
    fresh = [key for key in told if not key[3]]
    if fresh:  # the latest decider of all was followed
        assert host.reporter.epoch == first + max(epoch for epoch, *_ in fresh)


def test_readings_that_there_is_no_room_for_are_said_once_and_counted(
    centre: Centre,
    stranger: Stranger,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix, "MOST_LINKS", 1)
    epoch = centre.count("epoch")
    records = [RECORD._replace(path=place, link=f"{place}") for place in range(3)]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            stranger.channel.send(stranger.report(*records, epoch=epoch))
            centre.turn(0)
    assert caplog.text.count("no room for all readings of s, beside 1 links of 1 paths") == 1
    assert (centre.count("records"), centre.count("records_refused")) == (2, 4)


def test_a_decider_that_hosts_left_for_a_later_one_says_so_once(
    centre: Centre, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            stranger.channel.send(stranger.report(RECORD, epoch=centre.count("epoch") + 1))
            centre.turn()
    assert caplog.text.count("began later") == 1
    assert centre.count("outranked") == 3 and centre.count("records") == 0

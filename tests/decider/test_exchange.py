"""Reports there and snapshots back, over loopback, with clocks set by hand."""

from __future__ import annotations

import logging
import math
import socket
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decider.helpers import MS, WIRE, Centre, Host, S, free_port, meet
from tests.probe.helpers import KEY, until
from xtune.policies import dumps, preset
from xtune.policies.decider import server
from xtune.policies.decider.config import make_config
from xtune.policies.decider.packet import (
    NO_BLOCK,
    Entry,
    Record,
    Report,
    Snapshot,
    Wire,
    pack_body,
)
from xtune.policies.decider.weights import WeightsReader
from xtune.policies.presets import with_probes
from xtune.policies.probe.config import make_config as probe_config
from xtune.policies.probe.fields import ConfigError
from xtune.policies.probe.packet import Codec, Packet, ends


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path)
    yield made
    made.decider.close()


@pytest.fixture
def host(tmp_path: Path, centre: Centre) -> Iterator[Host]:
    made = Host(tmp_path, "h0", centre.port, ("a>b", "a>c"))
    yield made
    made.reporter.close()


@pytest.fixture
def other(tmp_path: Path, centre: Centre) -> Iterator[Host]:
    made = Host(tmp_path, "h1", centre.port, ("a>b",))
    yield made
    made.reporter.close()


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


class Stranger:
    """Sends what it likes to a decider, and hears nothing."""

    def __init__(self, centre: Centre) -> None:
        self.channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.channel.bind(("127.0.0.1", 0))
        self.channel.connect(("127.0.0.1", centre.port))
        own, peer = self.channel.getsockname(), self.channel.getpeername()
        self.out, self.back = ends(own, peer), ends(peer, own)
        self.sequence = 0

    def report(self, *records: Record, epoch: int = 0, born_ns: int = 1, host: str = "s") -> bytes:
        self.sequence += 1
        report = Report(self.sequence, self.sequence + 100, born_ns, epoch, host, records)
        return WIRE.pack_report(report, self.out)


@pytest.fixture
def stranger(centre: Centre) -> Iterator[Stranger]:
    made = Stranger(centre)
    yield made
    made.channel.close()


RECORD = Record(0, "x", 1, 0, 0, 0, 0.5)


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


def test_no_more_hosts_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_HOSTS", 2)
    centre = Centre(tmp_path)
    strangers = [Stranger(centre) for _ in range(3)]
    for one in strangers:
        one.channel.send(one.report(RECORD, epoch=centre.count("epoch")))
    centre.turn(0)
    assert (centre.count("hosts"), centre.count("hosts_refused")) == (2, 1)
    centre.turn(4 * S)  # the first two are silent, and forgotten
    strangers[2].channel.send(strangers[2].report(RECORD, epoch=centre.count("epoch")))
    centre.turn(0)
    assert (centre.count("hosts"), centre.count("hosts_refused")) == (1, 1)
    centre.decider.close()
    for one in strangers:
        one.channel.close()


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


def snapshot(
    host: Host,
    sequence: int,
    epoch: int,
    version: int,
    between: bytes | None = None,
    **more: Any,
) -> bytes:
    body = pack_body([Entry("a>b", version / 100, 0, 1)])
    made = Snapshot(sequence, sequence, epoch, version, host.clocks.wall(), block=0, body=body)
    made = made._replace(**more)
    return WIRE.pack_snapshot(made, host.ends()[0] if between is None else between)


@pytest.fixture
def forger(tmp_path: Path) -> Iterator[tuple[socket.socket, Host]]:
    """A socket in the decider's place, and a host that reports there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.bind(("127.0.0.1", 0))
        host = Host(tmp_path, "h0", channel.getsockname()[1], ("a>b",))
        host.turn(100 * MS)
        channel.connect(host.reporter.socket.getsockname())
        yield channel, host
        host.reporter.close()


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


def test_a_decider_that_hosts_left_for_a_later_one_says_so_once(
    centre: Centre, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            stranger.channel.send(stranger.report(RECORD, epoch=centre.count("epoch") + 1))
            centre.turn()
    assert caplog.text.count("began later") == 1
    assert centre.count("outranked") == 3 and centre.count("records") == 0


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


def test_a_policy_by_name_or_file_with_what_is_given_beside_it(tmp_path: Path) -> None:
    listen = "127.0.0.1:1"
    named = make_config({"listen": listen, "policy": "flowlet", "probe_interval_s": 0.01})
    assert named.policy == with_probes(preset("flowlet"), 10 * MS)
    (tmp_path / "policy.json").write_text(dumps(preset("routing_only")))
    said = {"listen": listen, "policy": str(tmp_path / "policy.json"), "probe_interval_s": 0.01}
    both = make_config(said | {"routing": {"forecast": "ewma"}})
    expected = with_probes(preset("routing_only"), 10 * MS).routing
    assert both.policy.routing == replace(expected, forecast="ewma")


def test_the_documented_configuration_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
    _, _, rest = text.partition("    # decider.toml;")
    central, _, rest = rest.partition("    # in each agent's probe.toml\n")
    agent, _, _ = rest.partition("\n\n")
    said = tomllib.loads("#" + textwrap.dedent(central))
    assert make_config(said).policy == with_probes(preset("joint"), 10 * MS)
    assert set(said) == {"listen", "key_file", "policy", "probe_interval_s", "log"}
    reporting = probe_config(tomllib.loads(textwrap.dedent(agent)))
    assert reporting.decider == make_config(said).listen
    assert reporting.decider_local == ("10.0.0.1", 0)


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


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "listen: None is no IPv4"),
        ({"listen": "0.0.0.0:1"}, "one address, not all"),
        ({"listen": "127.0.0.1"}, "has no port"),
        ({"listen": "127.0.0.1:1", "rate": 1}, "unknown: rate"),
        ({"listen": "127.0.0.1:1", "policy": "best"}, "No such file"),
        ({"listen": "127.0.0.1:1", "routing": {"stale": 1}}, "routing.stale: unknown field"),
        ({"listen": "127.0.0.1:1", "probe_interval_s": 1}, "not within 0 and 0.5"),
        ({"listen": "127.0.0.1:1", "routing": 1}, "routing: a table is wanted"),
        ({"listen": "127.0.0.1:1", "routing": {"stale_ns": -1}}, "routing.stale_ns"),
        ({"listen": "127.0.0.1:1", "push_interval_s": math.nan}, "push_interval_s"),
    ],
)
def test_a_wrong_configuration_is_refused_by_the_fields_name(
    said: dict[str, object], why: str
) -> None:
    with pytest.raises((ConfigError, OSError), match=why):
        make_config(said)

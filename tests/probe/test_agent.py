"""Agents and reflectors as processes over loopback, and their parts against clocks set by hand."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.probe.helpers import KEY, LIMIT_S, serve, until
from xtune.policies.probe.agent import Agent
from xtune.policies.probe.config import Config, ConfigError, make_config
from xtune.policies.probe.config import Path as ProbedPath
from xtune.policies.probe.lane import Lane
from xtune.policies.probe.packet import Codec, Packet, Signal, ends
from xtune.policies.probe.readings import Reading, ReadingsReader
from xtune.policies.probe.sources import Sources
from xtune.policies.probe.tally import Outcome

CODEC = Codec(KEY)
MS = 1_000_000


@pytest.fixture
def port() -> int:
    """A UDP port of the loopback device that nobody has right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def path_to(port: int, **more: Any) -> dict[str, Any]:
    return {"name": "a>b", "local": "127.0.0.1", "remote": f"127.0.0.1:{port}"} | more


def newest(reader: ReadingsReader) -> Reading:
    return reader.read(0) or Reading()


def test_both_ends_over_loopback(tmp_path: Path, port: int) -> None:
    (tmp_path / "depth").write_text("48\n")
    (tmp_path / "margin").write_text("2.5\n")
    own = {"margin": {"file": str(tmp_path / "margin")}}
    theirs = {"occupancy": {"file": str(tmp_path / "depth"), "limit": 64}}
    theirs["margin"] = {"file": str(tmp_path / "missing")}
    config = {
        "host": "h0", "readings": str(tmp_path / "table"), "rate_hz": 200, "timeout_s": 30,
        "log": str(tmp_path / "probes-%h"), "source_interval_s": 1e-9,
        "paths": [path_to(port, dst="h1", path=3, link="0x1/1", sources=own)],
        "listen": [{"local": f"127.0.0.1:{port}", "sources": theirs}],
    }  # fmt: skip
    with (
        serve("reflect", config, tmp_path) as reflector,
        serve("agent", config, tmp_path) as agent,
    ):
        reader = ReadingsReader(tmp_path / "table", stale_ns=int(LIMIT_S * 1e9))
        until(lambda: newest(reader).finished >= 50, "50 probes")
        assert reader.alive()
        agent_counts = agent.end(signal.SIGINT)
        reading = newest(reader)
        assert not reader.alive()
        reflector_counts = reflector.end()
    assert reading.occupancy == pytest.approx(0.75, abs=1 / 65534)
    assert (reading.margin, reading.error_rate) == (2.5, None)
    assert reading.rtt_ns and reading.jitter_ns and reading.lost == reading.late == 0
    assert {n: c for n, c in agent_counts.items() if c and n != "skipped"} == {}
    answered = reflector_counts.pop("answered")
    assert answered >= reading.finished and reflector_counts.pop("source_failed") == answered
    assert set(reflector_counts.values()) == {0}
    lines = [json.loads(line) for line in (tmp_path / "probes-h0").read_text().splitlines()]
    assert len(lines) == reading.finished
    assert lines[-1] == {
        "xtune_probe": 1, "src": "h0", "dst": "h1", "path": 3, "link": "0x1/1", "name": "a>b",
        "ts_ns": lines[-1]["ts_ns"], "rtt_ns": reading.rtt_ns, "lost": False, "error_rate": None,
        "occupancy": pytest.approx(reading.occupancy), "signal_margin": 2.5,
    }  # fmt: skip
    assert abs(lines[-1]["ts_ns"] - time.time_ns()) < LIMIT_S * 1e9
    reader.close()


def test_a_dead_peer_is_loss_and_its_return_is_seen(tmp_path: Path, port: int) -> None:
    config = {
        "readings": str(tmp_path / "table"), "rate_hz": 100, "timeout_s": 0.5,
        "paths": [path_to(port)], "listen": [{"local": f"127.0.0.1:{port}"}],
    }  # fmt: skip
    with serve("agent", config, tmp_path) as agent:
        reader = ReadingsReader(tmp_path / "table")
        until(lambda: newest(reader).lost >= 5, "losses without a reflector")
        reading = newest(reader)
        assert reading.answered_ns is None and reading.finished == reading.lost
        assert reading.history == (1 << reading.lost) - 1
        for _ in range(2):
            with serve("reflect", config, tmp_path):
                until(lambda: newest(reader).history & 7 == 0, "answers in a row")
            until(lambda: newest(reader).history & 7 == 7, "losses in a row")
        assert agent.end()["receive_failed"] > 0  # refused by the kernel, as ICMP says
    reader.close()


@pytest.fixture
def stranger(port: int) -> Iterator[socket.socket]:
    """A socket towards the reflector."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.connect(("127.0.0.1", port))
        made.settimeout(LIMIT_S)
        yield made


def ways(channel: socket.socket) -> tuple[bytes, bytes]:
    own, peer = channel.getsockname(), channel.getpeername()
    return ends(own, peer), ends(peer, own)


def test_a_reflector_answers_what_is_authentic_once_and_nothing_else(
    tmp_path: Path, port: int, stranger: socket.socket
) -> None:
    out, back = ways(stranger)
    request = CODEC.pack(Packet(False, 7, 2, 1000, Signal(0.5)), out)
    elsewhere = CODEC.pack(Packet(False, 8, 2, 9), back)
    bad = {
        "truncated": [b"", request[:-1]],
        "foreign": [request + b"x", b"\0" * 36],
        "other_version": [request[:2] + b"\x02" + request[3:]],
        "forged": [request[:-1] + bytes([request[-1] ^ 1]), elsewhere],
        "misdirected": [CODEC.pack(Packet(True, 9, 2, 1001), out)],
        "replayed": [request, request, request],
    }  # fmt: skip
    config = {"readings": str(tmp_path / "t"), "listen": [{"local": f"127.0.0.1:{port}"}]}
    with serve("reflect", config, tmp_path) as reflector:
        stranger.send(request)
        first = stranger.recv(100)
        for payloads in bad.values():
            for payload in payloads:
                stranger.send(payload)
        stranger.send(CODEC.pack(Packet(False, 8, 2, 1001), out))
        second = stranger.recv(100)
        counts = reflector.end()
    assert len(first) == len(request)
    assert CODEC.unpack(first, back, answer=True) == Packet(True, 7, 2, 1000)
    assert CODEC.unpack(second, back, answer=True) == Packet(True, 8, 2, 1001)
    expected = {name: len(payloads) for name, payloads in bad.items()} | {"answered": 2}
    assert {name: count for name, count in counts.items() if count} == expected


class Clocks:
    """Both clocks run, shifted as a test says."""

    def __init__(self) -> None:
        self.shift_ns = self.wall_shift_ns = 0

    def monotonic(self) -> int:
        return time.monotonic_ns() + self.shift_ns

    def wall(self) -> int:
        return time.time_ns() + self.shift_ns + self.wall_shift_ns


def test_answers_count_from_when_the_kernel_had_them(port: int) -> None:
    """An agent that was not scheduled for a while does not take its own absence for loss."""
    clocks = Clocks()
    path = ProbedPath(
        name="a", local=("127.0.0.1", 0), remote=("127.0.0.1", port), dst="b", number=1
    )
    timeout_ns = round(LIMIT_S * 1e9)
    lane = Lane(path, CODEC, timeout_ns, Sources(), clocks.monotonic, clocks.wall)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", port))
        # A quiet wake after ten minutes; the clock set back an hour; set forward an hour.
        for absent_ns, set_ns in ((600, 0), (0, -3600), (0, 3600)):
            lane.drain([])
            before_ns = clocks.monotonic()
            lane.send()
            sent_ns = clocks.monotonic()
            request, sender = peer.recvfrom(100)
            found = CODEC.unpack(request, ends(sender, path.remote), answer=False)
            assert isinstance(found, Packet)
            answer = CODEC.pack(found._replace(answer=True), ends(path.remote, sender))
            answered_ns = clocks.monotonic()
            peer.sendto(answer, sender)
            assert lane.socket is not None
            assert select.select([lane.socket], [], [], LIMIT_S)[0]
            clocks.shift_ns += absent_ns * 10**9
            clocks.wall_shift_ns += set_ns * 10**9
            outcomes: list[Outcome] = []
            assert lane.drain(outcomes)
            lane.expire(clocks.monotonic(), outcomes)
            assert len(outcomes) == 1 and outcomes[0].rtt_ns is not None
            until_ns = clocks.monotonic() - absent_ns * 10**9
            assert answered_ns - sent_ns <= outcomes[0].rtt_ns <= until_ns - before_ns
    lane.close()
    assert lane.reading().lost == 0


def test_a_path_that_cannot_be_sent_on_loses_its_probes() -> None:
    """The local address is of a block for documentation: no host's."""
    now = [0]
    path = ProbedPath(name="a", local=("192.0.2.1", 0), remote=("127.0.0.1", 9), dst="b", number=1)
    lane = Lane(path, CODEC, 1000, Sources(), lambda: now[0], time.time_ns)
    for _ in range(3):
        lane.send()
    now[0] = 1001
    outcomes: list[Outcome] = []
    assert lane.drain(outcomes)
    lane.expire(now[0], outcomes)
    assert [outcome.rtt_ns for outcome in outcomes] == [None] * 3
    assert lane.counts == {"send_failed": 3} and lane.reading().lost == 3


def test_the_rate_holds_whatever_the_delays_and_what_is_left_out_is_counted(
    tmp_path: Path, port: int
) -> None:
    """Three paths, 1000 probes a second in all, and a clock that jumps."""
    now = [5 * MS]
    paths = tuple(
        ProbedPath(
            name=f"p{i}", local=("127.0.0.1", 0), remote=("127.0.0.1", port), dst="b", number=i
        )
        for i in range(3)
    )
    config = Config(readings=str(tmp_path / "t"), rate_hz=1000 / 3, timeout_s=0.0001, paths=paths)
    agent = Agent(config, KEY, lambda: now[0], time.time_ns)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", port))
        for advance_ns in (0, 300_000, 700_000, 13 * MS, 2_500_000, 500_000, 43 * MS):
            now[0] += advance_ns
            agent.turn()
        sent = agent.counters()
        now[0] += MS
        agent.turn()
        reader = ReadingsReader(tmp_path / "t", lambda: now[0])
        finished = [reading.finished for i in range(3) if (reading := reader.read(i))]
        # One at the start and one each ms of the 60 since; the newest, of this turn, is not over.
        assert sum(finished) == 61 and max(finished) - min(finished) <= 1
        assert sent["skipped"] == 0
        now[0] += 1000 * MS
        agent.turn()
        assert agent.counters()["skipped"] == 1000 - 64 - 1
    reader.close()
    agent.close()


def test_answers_that_wait_behind_many_others_are_not_given_up(tmp_path: Path, port: int) -> None:
    """More of them than are taken at once, all past their time when the agent wakes."""
    clocks, count = Clocks(), 265
    remote = ("127.0.0.1", port)
    path = ProbedPath(name="a", local=("127.0.0.1", 0), remote=remote, dst="b", number=0)
    config = Config(readings=str(tmp_path / "t"), rate_hz=1000, timeout_s=1e4, paths=(path,))
    agent = Agent(config, KEY, clocks.monotonic, clocks.wall)
    requests: list[tuple[bytes, Any]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(remote)
        while len(requests) < count:
            clocks.shift_ns += 10 * MS
            agent.turn()
            while select.select([peer], [], [], 0)[0]:
                requests.append(peer.recvfrom(100))
        for payload, sender in requests[:count]:
            found = CODEC.unpack(payload, ends(sender, remote), answer=False)
            assert isinstance(found, Packet)
            peer.sendto(CODEC.pack(found._replace(answer=True), ends(remote, sender)), sender)
        clocks.shift_ns += 10**14
        agent.turn()
        agent.turn()
    reader = ReadingsReader(tmp_path / "t")
    reading = newest(reader)
    assert (reading.finished - reading.lost, reading.late) == (count, 0)
    reader.close()
    agent.close()


def run(*words: str, key: str | None = KEY.hex()) -> subprocess.CompletedProcess[str]:
    environment = {} if key is None else {"XTUNE_PROBE_KEY": key}
    return subprocess.run(
        [sys.executable, "-m", "xtune.policies.probe", *words],
        capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_what_cannot_run_says_why_in_one_line(tmp_path: Path, port: int) -> None:
    good = {"readings": str(tmp_path / "t"), "paths": [path_to(port)]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(good))
    cases = [
        (run("agent", "--config", str(tmp_path / "none")), "No such file"),
        (run("agent", "--config", str(file), key=None), "XTUNE_PROBE_KEY"),
        (run("reflect", "--config", str(file)), "no address"),
        (run("show", str(tmp_path / "none")), "No such file"),
    ]
    with serve("agent", good, tmp_path):
        cases.append((run("agent", "--config", str(file)), "another process"))
        shown = run("show", str(tmp_path / "t"))
    for done, why in cases:
        assert done.returncode == 1 and why in done.stderr
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("probe: ")
    assert shown.returncode == 0 and json.loads(shown.stdout.splitlines()[0])["alive"]
    assert json.loads(shown.stdout.splitlines()[2])["name"] == "a>b"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"speed": 1}, "speed"),
        ({"rate_hz": 10_001}, "rate_hz"),
        ({"rate_hz": 6_000, "paths": [path_to(1), path_to(1, name="c")]}, "rate_hz: 2 paths"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 9.9e-6}, "timeout_s: 9.9e-06 is less than 1e-05"),
        ({"rate_hz": True}, "rate_hz"),
        ({"paths": [path_to(1), path_to(2)]}, "two of one name"),
        ({"paths": [path_to(0)]}, r"paths\[0\].remote"),
        ({"paths": [path_to(1, local="::1")]}, r"paths\[0\].local"),
        ({"paths": [path_to(1, path=-1)]}, r"paths\[0\].path"),
        ({"paths": [path_to(1, full_delay_s=0)]}, r"paths\[0\].full_delay_s"),
        ({"paths": [path_to(1, sources={"occupancy": {}})]}, r"paths\[0\].sources"),
        ({"paths": {"name": "x"}}, "paths"),
        ({"listen": [{"local": "0.0.0.0:1"}]}, r"listen\[0\].local"),
        ({"log": 3}, "log"),
    ],
)
def test_a_wrong_configuration_names_its_field(change: dict[str, Any], why: str) -> None:
    make_config({"paths": [path_to(1)]})
    with pytest.raises(ConfigError, match=why):
        make_config({"paths": [path_to(1)]} | change)

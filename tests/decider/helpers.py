"""A decider and reporters in one process: real sockets, clocks set by hand."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.probe.helpers import KEY, until
from xtune.policies.decider.config import Config, make_config
from xtune.policies.decider.packet import Entry, Record, Report, Snapshot, Wire, pack_body
from xtune.policies.decider.reporter import Reporter
from xtune.policies.decider.server import Decider
from xtune.policies.decider.weights import WeightsReader
from xtune.policies.probe.packet import ends
from xtune.policies.probe.readings import Reading

MS = 1_000_000
S = 1000 * MS
STALE_S = 0.1
WIRE = Wire(KEY)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def settings_of(folder: Path, port: int, **more: Any) -> dict[str, Any]:
    return {
        "listen": f"127.0.0.1:{port}", "state": str(folder / "state"),
        "routing": {"stale_ns": int(STALE_S * 1e9), "forecast": "reading"},
    } | more  # fmt: skip


class Clocks:
    """Both clocks of one host."""

    def __init__(self, now: int = 1000 * S) -> None:
        self.now = now

    def clock(self) -> int:
        return self.now

    def wall(self) -> int:
        return self.now + 7 * S


class Centre:
    """A decider whose clocks are set by hand."""

    def __init__(self, folder: Path, port: int | None = None, **more: Any) -> None:
        self.clocks = Clocks()
        self.port = free_port() if port is None else port
        self.config: Config = make_config(settings_of(folder, self.port, **more))
        self.begin()

    def begin(self) -> None:
        self.decider = Decider(self.config, KEY, self.clocks.clock, self.clocks.wall)

    def turn(self, dt_ns: int = 10 * MS) -> None:
        """Take what has come, then push what is due by now."""
        self.clocks.now += dt_ns
        for _ in range(4):
            self.decider.turn()

    def count(self, name: str) -> int:
        return self.decider.counters()[name]

    def links(self) -> dict[str, Entry]:
        reader = WeightsReader(self.config.state, self.clocks.clock)
        found = {e.link: e for block in reader.blocks() for e in block.entries()}
        reader.close()
        return found


class Host:
    """The reporting half of an agent, with readings set by hand."""

    def __init__(
        self,
        folder: Path,
        name: str,
        port: int,
        links: Sequence[str],
        own_port: int = 0,
        now: int = 500 * S,
    ) -> None:
        self.clocks = Clocks(now)
        self.weights = folder / f"{name}.weights"
        self.readings = [Reading() for _ in links]
        self.reporter = Reporter(
            ("127.0.0.1", port), ("127.0.0.1", own_port), name, links,
            str(self.weights), 0.01, KEY, self.clocks.clock, self.clocks.wall,
        )  # fmt: skip

    def answer(self, path: int, occupancy: float | None = None) -> None:
        """A probe that is answered now."""
        known, now_ns = self.readings[path], self.clocks.now
        self.readings[path] = known._replace(
            finished=known.finished + 1, history=known.history << 1, finished_ns=now_ns,
            answered_ns=now_ns, occupancy=occupancy,
        )  # fmt: skip
        self.reporter.changed(path)

    def turn(self, dt_ns: int = 10 * MS) -> None:
        """Report what is due by now."""
        self.clocks.now += dt_ns
        self.reporter.turn(lambda path: self.readings[path])

    def hear(self, count: int = 1) -> None:
        """Take so many more datagrams, whatever becomes of them."""
        before = self.heard()

        def enough() -> bool:
            self.reporter.receive()
            return self.heard() >= before + count

        until(enough, f"{count} datagrams")

    def heard(self) -> int:
        counts = self.reporter.counts
        sent = counts["reports"] + counts["records"] + counts["unsent"] + counts["epochs"]
        return sum(counts.values()) - sent - counts["receive_failed"]

    def links(self) -> dict[str, Entry]:
        reader = WeightsReader(self.weights, self.clocks.clock)
        found = {e.link: e for block in reader.blocks() for e in block.entries()}
        reader.close()
        return found

    def ends(self) -> tuple[bytes, bytes]:
        """From the decider to here, and back."""
        own, peer = self.reporter.socket.getsockname(), self.reporter.socket.getpeername()
        return ends(peer, own), ends(own, peer)


def meet(centre: Centre, *hosts: Host) -> None:
    """Have hosts follow a decider that runs."""
    for step_ns in (100 * MS, 0):  # it answers a stranger by its epoch, who then reports under it
        for host in hosts:
            host.turn(step_ns)
        centre.turn(20 * MS)
        for host in hosts:
            host.hear()


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


RECORD = Record(0, "x", 1, 0, 0, 0, 0.5)


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

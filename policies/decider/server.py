"""The decider: takes reports, keeps the link-weight matrix, pushes snapshots to who reported.

Nothing of it outlives the process: a decider that starts begins a new epoch with an empty matrix.
It answers a report of another epoch by a sign of life alone; the host then follows the new epoch
and reports all it knows at once. So no report that was recorded before the start is ever taken.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..decisions import DecisionLog  # noqa: TID252 - exported under another name
from ..probe.arrivals import ANCILLARY, Arrivals  # noqa: TID252 - exported under another name
from ..probe.packet import (  # noqa: TID252 - exported under another name
    RECEIVE_BUFFER,
    SEQUENCES,
    Address,
    Drop,
    ReplayWindow,
    ends,
)
from .config import Config
from .matrix import Full, Late, Matrix
from .packet import MOST_BYTES, NO_BLOCK, Report, Snapshot, Wire, pack_body
from .weights import Block, WeightsWriter

_LOG = logging.getLogger("xtune")
MOST_HOSTS = 1024
MOST_WINDOWS = 1 << 16  # addresses that are remembered against replay, those silent longest go
BEAT_S = 0.02  # a heartbeat of the state at least so often
_BATCH = 64  # datagrams taken, or sent, before the other side has its turn
_NOTE_NS = 1_000_000_000
_RXQ_OVFL = (
    40  # SO_RXQ_OVFL of asm-generic/socket.h: what a full buffer dropped comes with packets
)
_DROPPED = struct.Struct("@I")
_ANCILLARY = ANCILLARY + socket.CMSG_SPACE(_DROPPED.size)

#: What is counted.
COUNTED = (
    *Drop,
    "reports",
    "records",
    "records_stale",
    "records_late",
    "outcomes_skipped",
    "overflowed",
    "receive_failed",
    "other_epoch",
    "hosts_refused",
    "records_refused",
    "hosts_lost",
    "forgotten",
    "outranked",
    "pushed",
    "unsent",
    "version",
    "epoch",
    "hosts",
    "links",
    "cells",
)


@dataclass(slots=True)
class _Host:
    """One agent, by the address that it reports from."""

    peer: Address
    out: bytes
    name: str
    born_ns: int
    place: int  # of its note
    heard_ns: int = 0
    follows: bool = False  # this epoch
    stamp_ns: int = 0  # of its newest report
    reports: int = 0
    pushed: int = 0  # version that it was last sent
    sequence: int = 0


class Decider:
    """Serves the agents of all hosts.

    Args:
        config: The configuration.
        key: The shared secret.
        clock: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns.

    Attributes:
        address: Where it listens.

    Raises:
        TableError: Another decider publishes its state there.
        OSError: The address is taken or not this host's.
    """

    def __init__(
        self,
        config: Config,
        key: bytes,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._clock, self._wall = clock, wall
        self._wire = Wire(key)
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._epoch = wall()
        self._version = 0
        self._stamp_ns = 0
        self._state = WeightsWriter(config.state, MOST_HOSTS, COUNTED, clock)
        self._log = DecisionLog(config.log)
        self._matrix = Matrix(config.policy.routing, self._log)
        self._hosts: dict[bytes, _Host] = {}
        self._places = deque(range(MOST_HOSTS))
        self._news: dict[int, int] = {}  # block: version of its last news
        self._windows: dict[bytes, ReplayWindow] = {}
        self._bodies: dict[int, bytes] = {}  # of the version that is being sent
        self._sending: Iterator[tuple[_Host, Snapshot]] = iter(())
        self._left = 0  # datagrams of it that are still to be sent
        self._built_ns = 0
        self._changed = False
        self._next_ns = self._quiet_ns = self._noted_ns = clock()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._arrivals = Arrivals(clock, wall)
        try:
            self._arrivals.watch(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, _RXQ_OVFL, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._socket.bind(config.listen)
        except OSError:
            self.close()
            raise
        self.address: Address = self._socket.getsockname()

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until told to stop.

        Args:
            stop: Asked at least once a heartbeat.
        """
        while not stop():
            self.turn()

    def turn(self) -> None:
        """Wait for reports or the next push; take what came, send what is due."""
        now_ns = self._clock()
        wait_s = 0.0 if self._left else min(BEAT_S, max(0, self._due_ns() - now_ns) / 1e9)
        select.select((self._socket,), (), (), wait_s)
        self._receive()
        now_ns = self._clock()
        if not self._left and now_ns >= self._due_ns():
            self._push(now_ns)
        self._send()
        self._state.beat()
        if now_ns - self._noted_ns >= _NOTE_NS:
            self._noted_ns = now_ns
            self._look_after(now_ns)

    def counters(self) -> dict[str, int]:
        """Counts by name, and what there is now."""
        known = {"version": self._version, "epoch": self._epoch, "hosts": len(self._hosts)}
        return dict(self._counts) | known | self._matrix.counts()

    def close(self) -> None:
        """Close the socket, the state and the log."""
        self._socket.close()
        self._state.close()
        self._log.close()

    def _due_ns(self) -> int:
        """When the next push is due: after news soon, without any as a sign of life."""
        return self._next_ns if self._changed else self._quiet_ns

    def _receive(self) -> None:
        for _ in range(_BATCH):
            try:
                payload, ancillary, _, peer = self._socket.recvmsg(MOST_BYTES + 1, _ANCILLARY)
            except BlockingIOError:
                self._arrivals.emptied()
                return
            except OSError:  # a host that has gone, as told by ICMP
                self._counts["receive_failed"] += 1
                continue
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _RXQ_OVFL):
                    (self._counts["overflowed"],) = _DROPPED.unpack(data)
            report = self._wire.unpack_report(payload, ends(peer, self.address))
            if isinstance(report, Drop):
                self._counts[report] += 1
            else:
                self._take(report, peer, self._arrivals.when(ancillary))

    def _take(self, report: Report, peer: Address, now_ns: int) -> None:
        out = ends(self.address, peer)
        host = self._hosts.get(out) or self._welcome(report, peer, out)
        if host is None:
            if not self._counts["hosts_refused"]:
                _LOG.warning("xtune: no room for %s, beside %d hosts", report.host, MOST_HOSTS)
            self._counts["hosts_refused"] += 1
            return
        new = self._windows[out].take(report.sequence, report.stamp_ns)
        if not new or report.born_ns < host.born_ns:
            self._counts[Drop.REPLAYED] += 1
            return
        if report.born_ns > host.born_ns:  # another agent, which counts its probes anew
            self._matrix.drop(out)
            host.born_ns, host.name, host.follows = report.born_ns, report.host, False
        host.heard_ns = now_ns
        host.stamp_ns = max(host.stamp_ns, report.stamp_ns)
        host.reports += 1
        if report.epoch != self._epoch:
            self._meet(host, report)
            return
        if not host.follows:
            host.follows, host.pushed = True, 0
        self._counts["reports"] += 1
        self._changed |= bool(report.records) or not host.pushed
        self._notice_stale(host, report)
        for record in report.records:
            try:
                skipped = self._matrix.take(out, host.name, record, now_ns)
                self._counts["outcomes_skipped"] += skipped
                self._counts["records"] += 1
            except Late:
                self._counts["records_late"] += 1
            except Full:
                self._refuse(host)

    def _refuse(self, host: _Host) -> None:
        """Count a record that there is no room for."""
        if not self._counts["records_refused"]:
            known = self._matrix.counts()
            _LOG.warning(
                "xtune: no room for all readings of %s, beside %d links of %d paths",
                host.name,
                known["links"],
                known["cells"],
            )
        self._counts["records_refused"] += 1

    def _notice_stale(self, host: _Host, report: Report) -> None:
        """Count readings that are too old when they come, as by a policy made for a simulator."""
        stale_ns = self._config.policy.routing.stale_ns
        stale = sum(record.finished_age_ns > stale_ns for record in report.records)
        if stale and not self._counts["records_stale"]:
            _LOG.warning(
                "xtune: readings of %s are older than routing.stale_ns (%g ms) when they come, "
                "and give no weight",
                host.name,
                stale_ns / 1e6,
            )
        self._counts["records_stale"] += stale

    def _welcome(self, report: Report, peer: Address, out: bytes) -> _Host | None:
        """A host that is new, or back; None where there is no room for it."""
        if not self._places:
            return None
        if out not in self._windows:
            if len(self._windows) >= MOST_WINDOWS:
                del self._windows[next(o for o in self._windows if o not in self._hosts)]
                self._counts["forgotten"] += 1
            self._windows[out] = ReplayWindow()
        host = _Host(peer, out, report.host, report.born_ns, self._places.popleft())
        self._hosts[out] = host
        return host

    def _meet(self, host: _Host, report: Report) -> None:
        """A host that does not follow this epoch yet, or that follows a later one."""
        self._counts["other_epoch"] += 1
        host.follows = False
        if report.epoch < self._epoch:
            self._changed = True  # it is to hear of this epoch soon
            return
        if not self._counts["outranked"]:
            _LOG.warning(
                "xtune: %s follows a decider that began later, or this clock was set back: "
                "what this one sends is refused there while that one lives",
                report.host,
            )
        self._counts["outranked"] += 1

    def _push(self, now_ns: int) -> None:
        """Make the next version, and line up what brings it to each host."""
        self._version += 1
        self._changed = False
        self._built_ns = now_ns
        self._bodies.clear()
        for block in self._matrix.dirty:
            self._news[block] = self._version
            body = self._body(block)
            self._state.publish(block, Block(self._epoch, self._version, now_ns, body))
        self._matrix.dirty.clear()
        plan = []
        since: dict[int, list[int]] = {}  # most hosts were sent the same version last
        for host in self._hosts.values():
            blocks = [NO_BLOCK]
            if host.follows:
                if host.pushed not in since:
                    since[host.pushed] = [n for n, v in self._news.items() if v > host.pushed]
                blocks = since[host.pushed] or blocks
                host.pushed = self._version
            plan.append((host, host.stamp_ns, blocks))
        self._sending = self._snapshots(plan)
        self._left = sum(len(blocks) for _, _, blocks in plan)
        spent_s = max(self._config.push_s, self._left / self._config.datagrams_hz)
        self._next_ns = now_ns + round(spent_s * 1e9)
        self._quiet_ns = now_ns + round(max(spent_s, self._config.keepalive_s) * 1e9)

    def _snapshots(
        self, plan: list[tuple[_Host, int, list[int]]]
    ) -> Iterator[tuple[_Host, Snapshot]]:
        version = self._version
        for host, echo_ns, blocks in plan:
            for part, block in enumerate(blocks):
                body = b"" if block == NO_BLOCK else self._body(block)
                host.sequence = (host.sequence + 1) % SEQUENCES
                self._stamp_ns = max(self._wall(), self._stamp_ns + 1)
                held_us = (self._clock() - self._built_ns) // 1000 + 1
                yield host, Snapshot(
                    host.sequence, self._stamp_ns, self._epoch, version, echo_ns, held_us,
                    block, part, len(blocks), body,
                )  # fmt: skip

    def _body(self, block: int) -> bytes:
        """A block's body as of this version."""
        body = self._bodies.get(block)
        if body is None:
            body = pack_body(self._matrix.entries(block, self._built_ns))
            self._bodies[block] = body
        return body

    def _send(self) -> None:
        for host, snapshot in islice(self._sending, _BATCH):
            self._left -= 1
            try:
                payload = self._wire.pack_snapshot(snapshot, host.out)
                self._socket.sendto(payload, host.peer)
                self._counts["pushed"] += 1
            except OSError:  # its next readings bring another one
                self._counts["unsent"] += 1

    def _look_after(self, now_ns: int) -> None:
        """Once a second: forget hosts that are gone, publish counts and what is known of hosts."""
        timeout_ns = round(self._config.host_timeout_s * 1e9)
        for out, host in list(self._hosts.items()):
            if now_ns - host.heard_ns <= timeout_ns:
                least = self._matrix.least_margin(out)
                known = {
                    "host": host.name,
                    "address": f"{host.peer[0]}:{host.peer[1]}",
                    "heard_ns": host.heard_ns,
                    "paths": self._matrix.paths(out),
                    "reports": host.reports,
                    "least_margin": None if least is None else least[0],
                    "least_margin_link": None if least is None else least[1],
                }
                self._state.note(host.place, known)
                continue
            del self._hosts[out]
            self._windows[out] = self._windows.pop(out)  # behind those that left before
            self._matrix.drop(out)
            self._state.note(host.place, None)
            self._places.append(host.place)
            self._counts["hosts_lost"] += 1
        for place, value in enumerate(self.counters().values()):
            self._state.count(place, value)

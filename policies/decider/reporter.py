"""The agent's end of the decider: reports what is new, takes snapshots into shared memory."""

from __future__ import annotations

import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from ..probe.arrivals import ANCILLARY, Arrivals  # noqa: TID252 - exported under another name
from ..probe.packet import (  # noqa: TID252 - exported under another name
    RECEIVE_BUFFER,
    SEQUENCES,
    Address,
    Drop,
    ReplayWindow,
    ends,
)
from ..probe.readings import Reading  # noqa: TID252 - exported under another name
from .packet import (
    MOST_BYTES,
    MOST_TEXT_BYTES,
    NO_BLOCK,
    Record,
    Report,
    Snapshot,
    Wire,
    record_bytes,
    room_for_records,
)
from .weights import Block, WeightsWriter

_LOG = logging.getLogger("xtune")
KEEPALIVE_NS = 100_000_000  # the decider hears so often that this host lives, news or not
SILENT_NS = 3_000_000_000  # a decider that was not heard of for so long may be left for an earlier
MOST_RECORDS = 255
_BATCH = 16  # snapshots taken before the probes have their turn
_NOTE_NS = 1_000_000_000
_SAMPLES = 1024  # of which the latency's quantiles are taken

#: What is counted, and published beside the weights.
COUNTED = (
    *Drop,
    "reports",
    "records",
    "unsent",
    "snapshots",
    "receive_failed",
    "older_epoch",
    "older_version",
    "epochs",
)


class Reporter:
    """Reports the paths of one agent.

    Args:
        decider: Address and port of the decider.
        local: Own address and port towards it; port 0 is any.
        host: This host's name.
        links: For each path of the agent what its probes measure.
        weights: File of the weights.
        interval_s: Reports are sent no more often.
        key: The shared secret.
        clock: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns.

    Attributes:
        counts: By the names of `COUNTED`.
        epoch: Of the decider that is followed, 0 before the first snapshot.
        socket: Readable where snapshots wait.

    Raises:
        ValueError: A name is too long.
        TableError: Another agent writes the weights.
        OSError: The local address is taken or not this host's.
    """

    def __init__(
        self,
        decider: Address,
        local: Address,
        host: str,
        links: Sequence[str],
        weights: str,
        interval_s: float,
        key: bytes,
        clock: Callable[[], int],
        wall: Callable[[], int],
    ) -> None:
        if long := [x for x in (host, *links) if len(x.encode()) > MOST_TEXT_BYTES]:
            raise ValueError(f"{long[0]!r}: more than {MOST_TEXT_BYTES} bytes")
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._decider = decider
        self._host = host
        self._links = list(links)
        self._interval_ns = round(interval_s * 1e9)
        self._wire = Wire(key)
        self._clock, self._wall = clock, wall
        self._born_ns = self._stamp_ns = wall()
        self._sequence = 0
        self._news: set[int] = set()
        self.epoch = self._version = 0
        self._heard_ns = 0  # when the last snapshot was taken
        self._told_ns = self._born_ns  # stamp of the last report before it
        self._window = ReplayWindow()
        self._versions: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)  # reports: stamp, sent
        self._latency_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._due_ns = self._noted_ns = clock()
        self._sent_ns = self._due_ns - KEEPALIVE_NS
        self._out = self._back = b""
        self._said: set[str] = set()
        self._writer = WeightsWriter(weights, 1, COUNTED, clock)
        self._arrivals = Arrivals(clock, wall)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._arrivals.watch(self.socket)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self.socket.bind(local)
        except OSError:
            self.close()
            raise

    @property
    def due_ns(self) -> int:
        """When `turn` has something to do, but for snapshots."""
        return self._due_ns

    @property
    def pending(self) -> int:
        """Reports with readings that no snapshot contains yet."""
        return len(self._waiting)

    @property
    def newest_us(self) -> float | None:
        """Time from the last report to its weights in shared memory, None if unknown."""
        return self._latency_ns[-1] / 1000 if self._latency_ns else None

    def changed(self, path: int) -> None:
        """A path has news."""
        self._news.add(path)

    def turn(self, reading: Callable[[int], Reading]) -> None:
        """Report what is due.

        Args:
            reading: Of a path, by its place.
        """
        now_ns = self._clock()
        if now_ns < self._due_ns:
            return
        self._due_ns += self._interval_ns  # a grid, so that delays do not add up
        if self._due_ns <= now_ns:
            self._due_ns = now_ns + self._interval_ns
        if self._news and self.epoch:
            self._report(reading)
        if now_ns - self._sent_ns >= KEEPALIVE_NS:
            self._transmit((), now_ns)
        if now_ns - self._noted_ns >= _NOTE_NS:
            self._noted_ns = now_ns
            self._note()

    def receive(self) -> bool:
        """Take the snapshots that have arrived, or as many as are taken at once.

        Returns:
            Whether there may be more.
        """
        for _ in range(_BATCH):
            try:
                payload, ancillary, _, _ = self.socket.recvmsg(MOST_BYTES + 1, ANCILLARY)
            except BlockingIOError:
                self._arrivals.emptied()
                return False
            except OSError:  # no decider there, as told by ICMP
                self.counts["receive_failed"] += 1
                continue
            snapshot = self._wire.unpack_snapshot(payload, self._back)
            if isinstance(snapshot, Drop):
                self.counts[snapshot] += 1
            else:
                self._take(snapshot, self._arrivals.when(ancillary))
        return True

    def close(self) -> None:
        """Close the socket and the weights."""
        self.socket.close()
        self._writer.close()

    def latency_us(self, share: float) -> float | None:
        """Quantile of the time from a report to its weights in shared memory, None if unknown.

        Args:
            share: 0..1.
        """
        known = sorted(self._latency_ns)
        return known[min(int(share * len(known)), len(known) - 1)] / 1000 if known else None

    def _report(self, reading: Callable[[int], Reading]) -> None:
        news, self._news = self._news, set()
        for paths, records in self._portions(sorted(news), reading):
            if not self._transmit(records, self._clock()):
                self._news.update(paths)

    def _portions(
        self, paths: Sequence[int], reading: Callable[[int], Reading]
    ) -> Iterator[tuple[list[int], tuple[Record, ...]]]:
        """The news of paths, in portions of one datagram."""
        room = room_for_records(self._host)
        taken: list[int] = []
        records: list[Record] = []
        size = 0
        for path in paths:
            record = self._record(path, reading(path))
            if record is None:
                continue
            if size + record_bytes(record) > room or len(records) >= MOST_RECORDS:
                yield taken, tuple(records)
                taken, records, size = [], [], 0
            taken.append(path)
            records.append(record)
            size += record_bytes(record)
        if records:
            yield taken, tuple(records)

    def _record(self, path: int, known: Reading) -> Record | None:
        if not known.finished:
            return None
        now_ns = self._clock()
        answered_ns = known.answered_ns
        return Record(
            path,
            self._links[path],
            known.finished,
            known.history,
            max(0, now_ns - known.finished_ns),
            None if answered_ns is None else max(0, now_ns - answered_ns),
            known.occupancy,
            known.error_rate,
            known.margin,
            known.marks,
        )

    def _transmit(self, records: tuple[Record, ...], now_ns: int) -> bool:
        """Send one report; whether it left this host."""
        self._sent_ns = now_ns
        self._stamp_ns = max(self._wall(), self._stamp_ns + 1)
        self._sequence = (self._sequence + 1) % SEQUENCES
        report = Report(
            self._sequence, self._stamp_ns, self._born_ns, self.epoch, self._host, records
        )
        try:
            if not self._out:
                self.socket.connect(self._decider)  # the kernel drops what others send
                own = self.socket.getsockname()
                self._out, self._back = ends(own, self._decider), ends(self._decider, own)
            payload = self._wire.pack_report(report, self._out)
            try:
                self.socket.send(payload)
            except ConnectionRefusedError:  # of an earlier report; this one did not leave
                self.socket.send(payload)
        except OSError as error:
            self.counts["unsent"] += 1
            self._say("unsent", f"the decider cannot be reported to: {error}")
            return False
        self.counts["reports"] += 1
        self.counts["records"] += len(records)
        if records:
            self._waiting.append((self._stamp_ns, now_ns))
        return True

    def _take(self, snapshot: Snapshot, arrived_ns: int) -> None:
        # Of before this agent began, or before the last word of the decider that it follows;
        # under the epoch that it follows the window tells.
        if snapshot.epoch != self.epoch and snapshot.echo_ns < self._told_ns:
            self.counts[Drop.REPLAYED] += 1
            return
        if snapshot.epoch < self.epoch and not self._left_alone(snapshot, arrived_ns):
            self.counts["older_epoch"] += 1
            self._say("older_epoch", "an earlier decider still sends, and is refused: end it")
            return
        if snapshot.epoch != self.epoch:
            self._follow(snapshot.epoch)
        if not self._window.take(snapshot.sequence, snapshot.stamp_ns):
            self.counts[Drop.REPLAYED] += 1
            return
        self.counts["snapshots"] += 1
        self._heard_ns, self._told_ns = arrived_ns, self._stamp_ns
        self._version = max(self._version, snapshot.version)
        if snapshot.block != NO_BLOCK:
            self._store(snapshot, arrived_ns)
        self._writer.beat()
        if snapshot.part + 1 == snapshot.parts:
            self._measure(snapshot.echo_ns)

    def _left_alone(self, snapshot: Snapshot, now_ns: int) -> bool:
        """Whether the later decider has gone, and this snapshot was made since."""
        return now_ns - self._heard_ns >= SILENT_NS and snapshot.echo_ns > self._told_ns

    def _follow(self, epoch: int) -> None:
        """Another decider: what the one before said goes, and this one is told everything."""
        self.epoch, self._version = epoch, 0
        self._window = ReplayWindow()
        self._versions.clear()
        self._writer.clear()
        self._waiting.clear()
        self._news.update(range(len(self._links)))
        self._due_ns = self._clock()
        self._sent_ns = self._due_ns - KEEPALIVE_NS  # that it is followed, if nothing else
        self.counts["epochs"] += 1

    def _store(self, snapshot: Snapshot, arrived_ns: int) -> None:
        number = snapshot.block
        if snapshot.version <= self._versions.get(number, 0):
            self.counts["older_version"] += 1
            return
        self._versions[number] = snapshot.version
        at_ns = arrived_ns - snapshot.held_us * 1000
        block = Block(snapshot.epoch, snapshot.version, at_ns, snapshot.body)
        self._writer.publish(number, block)

    def _measure(self, echo_ns: int) -> None:
        """How long the reports took that this version contains."""
        now_ns = self._clock()
        while self._waiting and self._waiting[0][0] <= echo_ns:
            self._latency_ns.append(now_ns - self._waiting.popleft()[1])

    def _note(self) -> None:
        known = {
            "decider": f"{self._decider[0]}:{self._decider[1]}",
            "epoch": self.epoch,
            "version": self._version,
            "report_to_weights_p50_us": self.latency_us(0.5),
            "report_to_weights_p99_us": self.latency_us(0.99),
            "reports_measured": len(self._latency_ns),
        }
        self._writer.note(0, known)
        for place, name in enumerate(COUNTED):
            self._writer.count(place, self.counts[name])

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _LOG.warning("xtune: %s", text)

"""The agent: sends probes at a steady rate, takes the answers, publishes what it knows."""

from __future__ import annotations

import select
import time
from collections import Counter, deque
from collections.abc import Callable

from ..decider.reporter import Reporter  # noqa: TID252 - exported under another name
from .config import Config
from .delay import delays
from .lane import Lane
from .log import ProbeLog
from .packet import Codec, Drop
from .readings import Reading, ReadingsWriter
from .sources import make_sources
from .tally import Outcome

BEAT_S = 0.02  # a heartbeat at least so often
_BURST = 64  # probes sent at once to catch up; more were a load of their own
_FLUSH_NS = 1_000_000_000

#: What is counted beside the readings.
COUNTED = (
    *Drop,
    "unsent",
    "send_failed",
    "receive_failed",
    "skipped",
    "source_failed",
    "log_dropped",
)


class Agent:
    """Probes all paths of a configuration in turn.

    Args:
        config: The configuration.
        key: The shared secret.
        clock: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns.

    Raises:
        ValueError: No path.
        ReadingsError: Another agent writes the readings.
        OSError: A file cannot be made.
    """

    def __init__(
        self,
        config: Config,
        key: bytes,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        if not config.paths:
            raise ValueError("no paths to probe")
        codec = Codec(key)
        timeout_ns = round(config.timeout_s * 1e9)
        source_ns = round(config.source_interval_s * 1e9)
        self._clock = clock
        self._interval_ns = 1e9 / (config.rate_hz * len(config.paths))
        self._ticks = 0
        self._skipped = 0
        names = [path.name for path in config.paths]
        self._writer = ReadingsWriter(config.readings, names, COUNTED, clock)
        try:
            self._log = (
                None if config.log is None else ProbeLog(config.log, config.host, config.log_bytes)
            )
        except OSError:
            self._writer.close()
            raise
        self._epoll = select.epoll()
        try:
            self._reporter = _reporter(config, key, clock, wall)
        except (OSError, ValueError):
            self._end()
            raise
        if self._reporter is not None:
            self._epoll.register(self._reporter.socket, select.EPOLLIN)
        self._prefixes = [self._log.prefix(p) if self._log else "" for p in config.paths]
        self._lanes = [
            Lane(
                path, codec, timeout_ns, make_sources(path.sources, source_ns), clock, wall, delay
            )
            for path, delay in zip(config.paths, delays(config.paths), strict=True)
        ]
        self._timeout_ns = timeout_ns
        self._expiring: deque[tuple[int, int]] = deque()  # when and which path, in that order
        self._by_file: dict[int, int] = {}
        self._started_ns = self._flushed_ns = clock()

    def run(self, stop: Callable[[], bool]) -> None:
        """Probe until told to stop.

        Args:
            stop: Asked at least once a heartbeat.
        """
        self._started_ns = self._clock()
        self._ticks = 0
        while not stop():
            self.turn()

    def turn(self) -> None:
        """Send what is due, wait for answers or the next probe, publish."""
        now_ns = self._clock()
        self._send_due(now_ns)
        # What had arrived by now is drained before anything that is due by now is given up: an
        # agent that was not scheduled for a while does not take its own absence for loss.
        asked_ns = self._clock()
        full = self._receive(max(0.0, min(BEAT_S, (self._next_ns() - asked_ns) / 1e9)))
        while self._expiring and self._expiring[0][0] < asked_ns:
            index = self._expiring[0][1]
            if index in full:
                break
            del self._expiring[0]
            outcomes: list[Outcome] = []
            self._lanes[index].expire(asked_ns, outcomes)
            self._publish(index, outcomes)
        if self._reporter is not None:
            self._reporter.turn(self._reading)
        self._writer.beat()
        if asked_ns - self._flushed_ns >= _FLUSH_NS:
            self._flushed_ns = asked_ns
            self._flush()

    def counters(self) -> dict[str, int]:
        """Counts by name, over all paths."""
        total: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        for lane in self._lanes:
            total.update(lane.counts)
            total["source_failed"] += lane.sources.failed
        total["skipped"] = self._skipped
        total["log_dropped"] = 0 if self._log is None else self._log.dropped
        if self._reporter is not None:
            total.update({f"decider_{n}": c for n, c in self._reporter.counts.items()})
        return dict(total)

    def close(self) -> None:
        """End cleanly: readers see that nobody writes any more."""
        self._flush()
        for lane in self._lanes:
            lane.close()
        if self._reporter is not None:
            self._reporter.close()
        self._end()

    def _end(self) -> None:
        if self._log is not None:
            self._log.close()
        self._epoll.close()
        self._writer.close()

    def _reading(self, index: int) -> Reading:
        return self._lanes[index].reading()

    def _next_ns(self) -> int:
        """When there is something to do, but for answers."""
        due_ns = self._due_ns()
        return due_ns if self._reporter is None else min(due_ns, self._reporter.due_ns)

    def _due_ns(self) -> int:
        """When the next probe is to leave: from the start, so that delays do not add up."""
        return self._started_ns + int(self._ticks * self._interval_ns)

    def _send_due(self, now_ns: int) -> None:
        behind = int((now_ns - self._due_ns()) / self._interval_ns) - _BURST
        if behind > 0:
            self._ticks += behind
            self._skipped += behind
        while self._due_ns() <= now_ns:
            self._send(self._ticks % len(self._lanes))
            self._ticks += 1

    def _send(self, index: int) -> None:
        lane = self._lanes[index]
        before = lane.socket
        lane.send()
        self._expiring.append((self._clock() + self._timeout_ns, index))
        if lane.socket is not None and lane.socket is not before:
            file = lane.socket.fileno()
            self._epoll.register(file, select.EPOLLIN)
            self._by_file[file] = index

    def _receive(self, wait_s: float) -> set[int]:
        """Take answers for so long; returns the paths that have more of them."""
        # epoll itself waits for whole milliseconds only, and the next probe may be due in less.
        select.select((self._epoll,), (), (), wait_s)
        full = set()
        for file, _ in self._epoll.poll(0, len(self._lanes) + 1):
            index = self._by_file.get(file)
            if index is None:
                assert self._reporter is not None
                self._reporter.receive()
                continue
            outcomes: list[Outcome] = []
            if not self._lanes[index].drain(outcomes):
                full.add(index)
            self._publish(index, outcomes)
        return full

    def _publish(self, index: int, outcomes: list[Outcome]) -> None:
        if not outcomes:
            return
        self._writer.publish(index, self._lanes[index].reading())
        if self._reporter is not None:
            self._reporter.changed(index)
        if self._log is not None:
            for outcome in outcomes:
                self._log.write(self._prefixes[index], outcome)

    def _flush(self) -> None:
        if self._log is not None:
            self._log.flush()
        counts = self.counters()
        for place, name in enumerate(COUNTED):
            self._writer.count(place, counts[name])


def _reporter(
    config: Config, key: bytes, clock: Callable[[], int], wall: Callable[[], int]
) -> Reporter | None:
    """What reports to the decider, if there is one."""
    if config.decider is None:
        return None
    return Reporter(
        config.decider,
        config.decider_local,
        config.host,
        [path.link or path.name for path in config.paths],
        f"{config.readings}.weights",
        config.report_s,
        key,
        clock,
        wall,
    )

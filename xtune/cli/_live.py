"""Samples this host's network counters on a drift-free clock."""

from __future__ import annotations

import math
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from xtune.cli._live_stop import Status, Stop
from xtune.cli._live_writer import LiveWriter
from xtune.console import emit_json, note, say
from xtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xtune.collectors import Context, Reject, Rows
    from xtune.lake import Lake

FLUSH_S = 10.0  # a killed collector loses at most this much
#: Beyond this a write that does not end (a network file system that hangs) stops the sampling:
#: what is read waits in memory.
STALLED_S = 120.0
FASTEST_S = 0.01
INTERRUPTED = 130


class Readings(Protocol):
    """What a sampler has read."""

    def rows(self, context: Context) -> Iterator[Rows]:
        """The rows; safe in another thread than the sampler's."""


class Sampler(Protocol):
    """Reads counters at each tick; holds them until they are taken.

    Attributes:
        parser: Name and version of the collector whose rows these are.
        messages: What a user should know, to be said once and removed.
        rejected: Place -> what could not be read there.
    """

    parser: tuple[str, int]
    messages: list[str]
    rejected: dict[str, Reject]

    @property
    def ports(self) -> int:
        """Number of ports here now."""

    def tick(self) -> None:
        """Read every counter once."""

    def take(self) -> Readings:
        """What was read since the last call."""

    def close(self) -> None:
        """Close files."""


class LiveRun:
    """One run of live sampling.

    Ticks lie at multiples of the interval from the start; a tick that was missed is counted,
    never made up for. Rows are made and written by a second thread, so that a slow disk costs no
    tick.

    Args:
        lake: Where rows go.
        sampler: Reads the counters.
        context: Labels; whose data it is.
        host: This host.
        place: What is sampled, for the ledger.
        stop: Asked between ticks.
        status: Says how it goes.
        flush_s: Time between writes.
    """

    def __init__(
        self,
        lake: Lake,
        sampler: Sampler,
        context: Context,
        *,
        host: str,
        place: Path,
        stop: Stop,
        status: Status,
        flush_s: float = FLUSH_S,
    ) -> None:
        self.samples = self.missed = 0
        self.host = host
        self._sampler = sampler
        self._context = context
        self._stop = stop
        self._status = status
        self._flush_s = flush_s
        self._said: set[str] = set()
        self._stalled = False
        self.writer = LiveWriter(
            lake,
            name=f"{host}:{place}, live",
            path=place,
            parser=sampler.parser,
            host=host,
            say=status.note,
        )

    def run(self, interval_s: float, duration_s: float | None) -> None:
        """Sample until ``duration_s`` is over or somebody asks to stop; writes the rest.

        Raises:
            LakeError: The lake cannot be written at the end.
        """
        ticks = sys.maxsize if duration_s is None else math.ceil(round(duration_s / interval_s, 6))
        tick = 0
        began = flushed = time.monotonic()
        pending: Future[int] | None = None
        with ThreadPoolExecutor(1) as pool:
            while tick < ticks:
                wait = began + tick * interval_s - time.monotonic()
                if -wait >= interval_s:
                    skipped = min(int(-wait / interval_s), ticks - tick)
                    self.missed += skipped
                    tick += skipped
                    continue
                if self._stop.wait(wait):
                    break
                tick += 1
                if self._is_stalled(pending, flushed):
                    self.missed += 1
                    continue
                self._sampler.tick()
                self.samples += 1
                if time.monotonic() - flushed >= self._flush_s and self._done(pending):
                    pending = pool.submit(self._flush, self._sampler.take())
                    flushed = time.monotonic()
        self._done(pending)
        self.writer.finish(list(self._sampler.take().rows(self._context)))
        self._tell()
        self._status.end()

    def _is_stalled(self, pending: Future[int] | None, flushed: float) -> bool:
        """Whether the write under way takes so long that no more may be read."""
        stalled = time.monotonic() - flushed > STALLED_S and not self._done(pending)
        if stalled and not self._stalled:
            self._status.note(f"a write has not ended for {STALLED_S:g} s: nothing is read now")
        self._stalled = stalled
        return stalled

    def _done(self, pending: Future[int] | None) -> bool:
        """Whether the flush under way has ended; an exception in it comes through."""
        if pending is None:
            return True
        if not pending.done():
            return False
        pending.result()
        return True

    def _flush(self, readings: Readings) -> int:
        count = self.writer.flush(list(readings.rows(self._context)))
        self._tell()
        waiting = f", {self.writer.held} rows wait" if self.writer.held else ""
        self._status.show(
            f"{self.host}: {self._sampler.ports} ports, {self.samples} samples, "
            f"{self.missed} missed, {self.writer.rows} rows flushed{waiting}"
        )
        return count

    def _tell(self) -> None:
        messages = self._sampler.messages
        while messages:
            self._status.note(messages.pop(0))
        for place, reject in list(self._sampler.rejected.items()):
            if place not in self._said:
                self._said.add(place)
                self._status.note(f"rejected: {place}: {reject.reason}: null")


def sample_host(
    lake: Lake,
    root: Path,
    context: Context,
    *,
    interval_s: float,
    duration_s: float | None,
    json: bool,
    procfs: Path | None = None,
    flush_s: float = FLUSH_S,
    report_s: float | None = None,
) -> None:
    """Sample until ``duration_s`` is over or an interrupt; what was flushed is kept.

    Args:
        lake: Where rows go.
        root: Root of the sysfs tree.
        context: Host and labels.
        interval_s: Time between ticks.
        duration_s: How long; None until interrupted.
        json: One document on stdout at the end.
        procfs: Root of the proc tree; ``/proc`` where ``root`` is ``/sys``, else none.
        flush_s: Time between writes.
        report_s: Time between lines on a stderr that is no terminal; a minute by default.

    Raises:
        InputError: There is nothing to sample.
        UsageError: An interval below 10 ms.
        LakeError: The lake could not be written at the end.
        typer.Exit: 130 after an interrupt.
    """
    from xtune.collectors._live import open_sampler

    if interval_s < FASTEST_S:
        raise UsageError("--interval: the fastest is 10ms")
    host = context.host or socket.gethostname().lower()
    if procfs is None and root == Path("/sys"):
        procfs = Path("/proc")
    sampler = open_sampler(root, procfs, host)
    status = Status() if report_s is None else Status(report_s)
    until = "until interrupted" if duration_s is None else f"for {duration_s:g} s"
    note(f"sampling {sampler.ports} ports of {host} every {interval_s:g} s {until}")
    with Stop() as stop:
        run = LiveRun(
            lake,
            sampler,
            context,
            host=host,
            place=root,
            stop=stop,
            status=status,
            flush_s=flush_s,
        )
        try:
            run.run(interval_s, duration_s)
        finally:
            status.end()
            sampler.close()
    _summary(run, sampler.rejected, json)
    if stop.asked:
        raise typer.Exit(INTERRUPTED)


def _summary(run: LiveRun, rejected: Mapping[str, Reject], json: bool) -> None:
    if json:
        emit_json(
            {
                "schema": 1,
                "host": run.host,
                "samples": run.samples,
                "missed": run.missed,
                "rows": run.writer.rows,
                "rejected": len(rejected),
            }
        )
        return
    say(f"{run.host}: {run.samples} samples, {run.missed} missed ticks, {run.writer.rows} rows")

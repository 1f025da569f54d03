"""Reads the history that a Prometheus server has, a window at a time.

When it lies: a range query gives each point the last sample before it, so a row's time is up to
one scrape interval late, and a sample whose scrape wavers about a point may stand twice or not at
all. A range that was read once is not read again, also where the server knows more of it later.
"""

from __future__ import annotations

import hashlib
import json as json_
import os
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune.cli._common import parse_duration_s, parse_span
from xtune.collectors import Context, Source
from xtune.collectors._prometheus_http import MOST_POINTS, Answer, Server, ServerError, queries
from xtune.collectors._prometheus_names import recognise
from xtune.collectors._prometheus_url import target
from xtune.collectors.prometheus import COLLECTOR
from xtune.console import note, rfc3339
from xtune.errors import InputError, LakeError, UsageError
from xtune.ingest import FileResult, HostMap, IngestSummary
from xtune.ingest._identity import reading_flags, whose_flags
from xtune.ingest._read import Reading, read_input, write_rejects
from xtune.lake import ConflictError, InputRecord, Inputs

if TYPE_CHECKING:
    from xtune.lake import Lake, Transaction

FIRST_S = 3600.0  # how far back the first run goes without --since
UNTOLD_MS = 15_000  # Prometheus's usual scrape interval, where the samples do not tell it
UNTOLD_SERIES = 100
#: Samples of all metrics in one window: about 120 MB of answers, on disk.
WINDOW_SAMPLES = 4_000_000
FEWEST_POINTS = 10
_KEYS = ("from_ms", "to_ms", "step_ms", "exporter")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Credentials go to the server that was named, to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def open_url(request: urllib.request.Request, timeout_s: float) -> Answer:
    """The opener of a :class:`Server`: the standard library's, without redirects."""
    secure = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    answer: Answer = urllib.request.build_opener(_NoRedirects, secure).open(
        request, timeout=timeout_s
    )
    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """What to read: times in milliseconds since the epoch, both ends included, None unless told.

    ``step_ms`` is None for the scrape interval.
    """

    since_ms: int | None
    until_ms: int | None
    step_ms: int | None

    @classmethod
    def parse(cls, since: str | None, until: str | None, step: str | None) -> Range:
        """The flags.

        Raises:
            UsageError: One is no time or duration.
        """
        first, last = parse_span(since, until)
        step_ms = None if step is None else round(parse_duration_s(step, "--step") * 1000)
        if step_ms == 0:
            raise UsageError("--step: the shortest is 1ms")
        return cls(
            since_ms=None if first is None else round(first.timestamp() * 1000),
            until_ms=None if last is None else round(last.timestamp() * 1000),
            step_ms=step_ms,
        )


def collect_server(
    lake: Lake,
    url: str,
    asked: Range,
    *,
    context: Context,
    host_map: HostMap | None,
    strict: bool,
    dry_run: bool,
    debug: bool,
    environment: Mapping[str, str] = os.environ,
) -> tuple[IngestSummary, InputError | None]:
    """Read what a server has of ports, GPUs and NCCL, and the lake has not.

    Each window is one input of the ledger, made visible at once: after an interrupt or a failure
    what was read is kept, and the same call goes on.

    Returns:
        What was read, and why it ended early, if it did.

    Raises:
        UsageError: The URL is none.
        InputError: The server cannot be asked, or has no metric of ours.
        LakeError: The lake cannot be written.
    """
    where = target(url, environment)
    server = Server(where, open_url, time.sleep)
    summary = IngestSummary(strict=strict, dry_run=dry_run)
    reader = _Reader(
        server=server,
        lake=lake,
        context=context,
        hosts=host_map or HostMap(),
        summary=summary,
        dry_run=dry_run,
        debug=debug,
    )
    if not dry_run:
        lake.sweep()
    until_ms = context.now_ns() // 1_000_000 if asked.until_ms is None else asked.until_ms
    try:
        reader.all(asked, until_ms)
    except ServerError as error:
        failure = InputError(
            f"{where.base}: {error.reason}",
            "; ".join(
                part
                for part in (
                    error.hint,
                    "what came is kept, the same command goes on" if summary.files else "",
                )
                if part
            ),
        )
        if not summary.files:
            raise failure from None
        return summary, failure
    return summary, None


class _Reader:
    """One run."""

    def __init__(
        self,
        *,
        server: Server,
        lake: Lake,
        context: Context,
        hosts: HostMap,
        summary: IngestSummary,
        dry_run: bool,
        debug: bool,
    ) -> None:
        self.server = server
        self.lake = lake
        self.context = context
        self.hosts = hosts
        self.summary = summary
        self.dry_run = dry_run
        self.debug = debug
        self.base = server.target.base
        self.owner = whose_flags(context, None, None)
        self.reading_as = reading_flags(context, hosts)

    def all(self, asked: Range, until_ms: int) -> None:
        """Read each exporter's metrics, at its own interval."""
        oldest = until_ms - round(FIRST_S * 1000)
        first_ms = oldest if asked.since_ms is None else asked.since_ms
        families: dict[str, list[str]] = {}
        for name in self.server.names(min(first_ms, oldest), until_ms):
            known = recognise(name)
            if known is not None:
                families.setdefault(known[0], []).append(name)
        if not families:
            raise ServerError(
                "it has no metric that xtune knows in this range",
                "does it scrape node_exporter, an InfiniBand exporter or dcgm-exporter?",
            )
        for exporter, names in families.items():
            self._family(exporter, names, asked, until_ms)

    def _family(self, exporter: str, names: list[str], asked: Range, until_ms: int) -> None:
        covered = self._covered(exporter, asked.step_ms)
        since_ms = asked.since_ms
        if since_ms is None:
            since_ms = max((end for _, end in covered), default=until_ms - round(FIRST_S * 1000))
        if since_ms > until_ms:
            note(f"{exporter}: nothing new since the last run")
            return
        interval_ms = self._interval(names, since_ms, until_ms)
        step_ms = asked.step_ms or interval_ms or UNTOLD_MS
        if asked.step_ms is None and interval_ms is None:
            note(f"{exporter}: too few samples to tell the scrape interval: 15 s (--step)")
        elif interval_ms and step_ms < interval_ms:
            note(f"{exporter}: scraped every {interval_ms / 1000:g} s: values repeat between")
        series = self._series(names, until_ms)
        points = max(FEWEST_POINTS, min(MOST_POINTS, WINDOW_SAMPLES // series))
        spans = list(uncovered(since_ms, until_ms, step_ms, covered))
        if not spans:
            note(f"{exporter}: the lake has all of this range")
        for first, last in spans:
            note(
                f"{exporter}: {len(names)} metrics, {series} series every {step_ms / 1000:g} s "
                f"from {_time(first)} to {_time(last)}"
            )
            at = first
            while at <= last:
                end = min(last, at + (points - 1) * step_ms)
                try:
                    self._window(exporter, names, at, end, step_ms)
                except ServerError as error:
                    if not error.too_much or end == at:
                        raise
                    points = ((end - at) // step_ms + 1) // 2
                    continue
                at = end + step_ms

    def _interval(self, names: list[str], since_ms: int, until_ms: int) -> int | None:
        """Scrape interval of an exporter, told by one of its counters that has samples."""
        counters = sorted(names, key=lambda name: not name.endswith("_total"))
        found = (self.server.interval_ms(name, since_ms, until_ms) for name in counters[:5])
        try:
            return next((interval for interval in found if interval is not None), None)
        except ServerError:  # a proxy that lets range queries through alone
            return None

    def _series(self, names: list[str], at_ms: int) -> int:
        """Number of series, to size the windows by; a guess where it cannot be told."""
        try:
            return self.server.series_count(names, at_ms) or UNTOLD_SERIES
        except ServerError:
            return UNTOLD_SERIES

    def _covered(self, exporter: str, step_ms: int | None) -> list[tuple[int, int]]:
        """Ranges that the lake has at this step or a finer one, ends excluded."""
        found = []
        for record in self.lake.inputs().alike(path=self.base):
            span = _span(record, self.owner, exporter)
            if span is None or dict(record.reading) != self.reading_as:
                continue
            if step_ms is None or span[2] <= step_ms:
                found.append((span[0], span[1] + span[2]))
        return found

    def _window(
        self, exporter: str, names: Sequence[str], first: int, last: int, step_ms: int
    ) -> None:
        """Fetch one window into a file, then read that as one input."""
        warned: dict[str, int] = {}
        with tempfile.TemporaryDirectory(prefix="xtune-") as folder:
            path = Path(folder, "answers.json")
            with path.open("w+b") as out:
                for query in queries(names):
                    begin = out.tell()
                    for text in self.server.range(query, first, last, step_ms, out):
                        key = f"the server warned: {self.server.target.hide(text)}"
                        warned[key] = warned.get(key, 0) + 1
                    if out.tell() > begin:
                        out.write(b"\n")
                size = out.tell()
            self._store(exporter, path, size, (first, last, step_ms), warned)

    def _store(
        self,
        exporter: str,
        path: Path,
        size: int,
        span: tuple[int, int, int],
        warned: Mapping[str, int],
    ) -> None:
        first, last, step_ms = span
        whose = dict(self.owner)
        whose |= dict(zip(_KEYS, (str(first), str(last), str(step_ms), exporter), strict=True))
        key = [self.base, COLLECTOR.name, self.reading_as, whose]
        digest = hashlib.sha256(json_.dumps(key, sort_keys=True).encode()).hexdigest()
        name = f"{self.base} {exporter} {_time(first)}/{_time(last)}"
        source = Source(path, name)

        def read(transaction: Transaction | None) -> Reading:
            if not size:
                return Reading()
            return read_input(
                COLLECTOR,
                source,
                self.context,
                self.hosts,
                transaction,
                digest[:12],
                debug=self.debug,
            )

        if self.dry_run:
            self.summary.files.append(_result(name, digest[:12], read(None), warned))
            return
        try:
            with self.lake.begin() as transaction:
                reading = read(transaction)
                result = _result(name, digest[:12], reading, warned)
                write_rejects(transaction, reading, result, self.context.now_ns())
                record = InputRecord(
                    id=digest[:12],
                    name=name,
                    path=self.base,
                    content=digest,
                    size=size,
                    head="",
                    parser=COLLECTOR.name,
                    parser_version=COLLECTOR.version,
                    reading=self.reading_as,
                    whose=whose,
                    time_ns=self.context.now_ns(),
                    rows=result.rows,
                    rejects=result.rejects,
                    first_reject=asdict(result.reasons[0]) if result.reasons else {},
                )
                transaction.record(record, lambda inputs: self._conflict(inputs, record))
                transaction.commit()
        except ConflictError:
            note(f"{name}: another xtune read it meanwhile")
            return
        except OSError as error:
            raise LakeError.unwritable(self.lake.root, error) from error
        self.summary.files.append(result)

    def _conflict(self, inputs: Inputs, mine: InputRecord) -> frozenset[str]:
        """Windows within this one that were read with other flags: their rows are replaced.

        Raises:
            ConflictError: Another process read some of this range meanwhile.
        """
        exporter = mine.whose["exporter"]
        ours = _span(mine, self.owner, exporter)
        assert ours is not None
        replaced = set()
        for record in inputs.alike(path=self.base):
            span = _span(record, self.owner, exporter)
            if span is None or record.id == mine.id:
                continue
            if dict(record.reading) != self.reading_as:
                if ours[0] <= span[0] and span[1] <= ours[1]:
                    replaced.add(record.id)
            elif span[2] == ours[2] and span[0] <= ours[1] and ours[0] <= span[1]:
                raise ConflictError(f"{mine.name} is in the lake already")
        return frozenset(replaced)


def uncovered(
    since_ms: int, until_ms: int, step_ms: int, covered: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What of a range is not covered: first and last points, which are multiples of the step.

    Args:
        since_ms: Start of the range.
        until_ms: Its end, included.
        step_ms: Distance of the points.
        covered: Ranges, ends excluded, in any order.
    """
    at = -(-since_ms // step_ms) * step_ms
    for begin, end in sorted(covered):
        if end <= at:
            continue
        last = min((begin - 1) // step_ms * step_ms, until_ms // step_ms * step_ms)
        if last >= at:
            yield at, last
        at = max(at, -(-end // step_ms) * step_ms)
    last = until_ms // step_ms * step_ms
    if last >= at:
        yield at, last


def _span(
    record: InputRecord, owner: Mapping[str, str], exporter: str
) -> tuple[int, int, int] | None:
    """First and last point and step of a window of this owner and exporter, in milliseconds."""
    whose = dict(record.whose)
    told = [whose.pop(key, "") for key in _KEYS]
    if record.parser != COLLECTOR.name or told[3] != exporter or whose != dict(owner):
        return None
    return int(told[0]), int(told[1]), int(told[2])


def _result(name: str, source: str, reading: Reading, warned: Mapping[str, int]) -> FileResult:
    return reading.result(
        name, collector=COLLECTOR.name, source=source, state=reading.state, warned=warned
    )


def _time(ms: int) -> str:
    """RFC 3339 to the millisecond."""
    text = rfc3339(ms * 1_000_000)
    whole, _, fraction = text.rstrip("Z").partition(".")
    return f"{whole}.{fraction[:3]}Z" if fraction.strip("0") else f"{whole}Z"

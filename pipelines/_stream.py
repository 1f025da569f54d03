"""Feeds sorted samples to the kernel, in a thread for each part of the links, and keeps its rows.

A stream in order is the work of one thread, so parts make use of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xtune.errors import XtuneError
from xtune.pipelines import _kernel as kernel
from xtune.pipelines._engine import Session
from xtune.pipelines._rates_file import RatesFile
from xtune.pipelines._samples import CARRY, SAMPLE, metadata_of

BATCH_ROWS = 122_880
# Rows that are worth a thread of their own.
PART_ROWS = 200_000
_RUN_ROOM = 4_096
FLOATS = ("data_rate_bytes_s", "tick")
_ROCE = ("pause_us", "tx_pause_us", "marks", "cnps", "resent")
#: Columns of model ``link_runs``.
RUNS = pa.schema(
    [
        ("kind", pa.string()),
        ("link", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("samples", pa.int64()),
        ("first_interval_s", pa.float64()),
        ("clear_before", pa.bool_()),
        ("peak_level", pa.int32()),
        ("wait_ns", pa.int64()),
        ("wait_known_ns", pa.int64()),
        ("peak_utilization", pa.float64()),
        ("utilization_ns", pa.int64()),
        ("utilization_known_ns", pa.int64()),
        ("bytes", pa.int64()),
        ("errors", pa.int64()),
        ("marks", pa.int64()),
        ("marks_known_ns", pa.int64()),
        ("discards", pa.int64()),
        ("discards_known_ns", pa.int64()),
        ("by_wait", pa.int64()),
        ("by_pause", pa.int64()),
        ("by_marks", pa.int64()),
        ("by_discards", pa.int64()),
        ("wait_from_ns", pa.int64()),
        ("marks_from_ns", pa.int64()),
    ]
)
# Sums that are null where none of their terms is known, and what tells that.
_KNOWN_BY = {
    "wait_ns": "wait_known_ns",
    "wait_known_ns": "wait_known_ns",
    "utilization_ns": "utilization_known_ns",
    "utilization_known_ns": "utilization_known_ns",
    "bytes": "bytes_known",
    "errors": "errors_known",
    "marks": "marks_known_ns",
    "marks_known_ns": "marks_known_ns",
    "discards": "discards_known_ns",
    "discards_known_ns": "discards_known_ns",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorted:
    """A file sorted by link.

    Attributes:
        path: The file.
        links: Its links, rising.
        starts: First row of each, and the number of all rows.
    """

    path: Path
    links: tuple[str, ...]
    starts: np.ndarray[Any, np.dtype[np.int64]]

    def within(self, low: str | None, high: str | None) -> tuple[int, int]:
        """First link of a range, and the first after it."""
        links = np.array(self.links, dtype=object)
        first = 0 if low is None else int(np.searchsorted(links, low))
        last = len(links) if high is None else int(np.searchsorted(links, high))
        return first, max(first, last)


Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """Where samples come from.

    Attributes:
        batches: Gives the rows from one number to before another, in order: columns without
            nulls, as the kernel takes them.
        constants: Columns of ``SAMPLE`` that are the same in all rows.
        queries: Whether the batches are made in a session, which is then one a thread.
    """

    batches: Callable[[Session, int, int], Iterator[Arrays]]
    constants: Mapping[str, Any]
    queries: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """What a stream gave: see ``ChunkResult``."""

    files: tuple[Path, ...]
    rows: int
    runs: pa.Table
    carry: pa.Table


def links_of(path: Path) -> Sorted | None:
    """Links of a file and where they begin; None where it is not sorted by link."""
    file = pq.ParquetFile(
        path, metadata=metadata_of(path), read_dictionary=["link"], pre_buffer=False
    )
    links: list[str] = []
    starts: list[int] = []
    row = 0
    for group in range(file.num_row_groups):
        column = file.read_row_group(group, columns=["link"], use_threads=False)["link"]
        for chunk in column.chunks:
            if chunk.null_count or len(chunk) == 0:
                return None
            codes = chunk.indices.to_numpy()
            begins = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])
            found = chunk.dictionary.take(pa.array(codes[begins])).to_pylist()
            for begin, link in zip(begins.tolist(), found, strict=True):
                if links and link <= links[-1]:
                    if link < links[-1]:
                        return None
                    continue
                links.append(link)
                starts.append(row + begin)
            row += len(chunk)
    return Sorted(path=path, links=tuple(links), starts=np.array([*starts, row], dtype=np.int64))


def stream(
    session: Session,
    found: Sorted,
    feed: Feed,
    carry: pa.Table,
    *,
    low: str | None = None,
    high: str | None = None,
    file: Callable[[int], RatesFile] | None = None,
) -> Streamed | None:
    """Run the kernel over a range of the links of a file.

    Args:
        session: With the rules as variables.
        found: The file.
        feed: Its rows as samples.
        carry: What came before, of any links.
        low: First link; None for the first of all.
        high: First link after the range; None for no end.
        file: Makes the file that a part's rates go to; None where they are not kept.

    Returns:
        None where rows are not sorted by (link, ts), or one is there twice.
    """
    first, last = found.within(low, high)
    rows = int(found.starts[last] - found.starts[first])
    count = max(1, min(session.threads, rows // PART_ROWS, last - first))
    goals = [int(found.starts[first]) + rows * part // count for part in range(1, count)]
    bounds = [first, *(int(np.searchsorted(found.starts, goal)) for goal in goals), last]
    parts = [_Part(session, found, a, b, carry) for a, b in pairwise(bounds)]
    files = [file(i) for i in range(len(parts))] if file else []
    with ExitStack() as stack:
        beside = [
            stack.enter_context(session.beside()) if feed.queries else session for _ in parts
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(parts)))
        running = [
            pool.submit(part.run, other, feed, files[i] if files else None)
            for i, (part, other) in enumerate(zip(parts, beside, strict=True))
        ]
        try:
            sound = all([future.result() for future in running])
        except BaseException:
            for other in beside:
                other.connection.interrupt()
            raise
    kept = [written for written in files if sound and written.rows]
    for written in files:
        if written not in kept:
            written.path.unlink(missing_ok=True)
    if not sound:
        return None
    here = pa.concat_tables([part.carry() for part in parts])
    others = carry.filter(pa.compute.invert(pa.compute.is_in(carry["link"], here["link"])))
    runs = pa.concat_tables([part.runs() for part in parts])
    return Streamed(
        files=tuple(written.path for written in kept),
        rows=sum(part.rows for part in parts),
        runs=runs.sort_by([(name, "ascending") for name in ("kind", "link", "start_ns")]),
        carry=pa.concat_tables([here, others]).sort_by("link"),
    )


class _Part:
    """Some of the links: the kernel's state for them."""

    def __init__(
        self, session: Session, found: Sorted, first: int, last: int, carry: pa.Table
    ) -> None:
        self._links = found.links[first:last]
        self._low, self._high = int(found.starts[first]), int(found.starts[last])
        self._starts = found.starts[first : last + 1] - self._low
        rules = session.variables
        self._enter = _thresholds(rules, "enter")
        self._leave = _thresholds(rules, "exit")
        names = ("max_gap_s", "busy_utilization", "report_level")
        self._numbers = np.array([rules[name] for name in names], dtype=np.float64)
        count = len(self._links)
        width = len(kernel.COUNTERS) + 1
        self._cursor = np.zeros(kernel.CURSOR, dtype=np.int64)
        self._last = np.full((count, width), -2, dtype=np.int64)
        self._earlier = np.full((count, width), -2, dtype=np.int64)
        self._last_floats = np.full((count, 2), np.nan)
        self._earlier_floats = np.full((count, 2), np.nan)
        self._samples = np.zeros(count, dtype=np.int64)
        self._levels = np.zeros(count, dtype=np.int64)
        self._known_ends = np.zeros(count, dtype=np.int64)
        self._open_runs = np.zeros((len(kernel.KINDS), len(kernel.RUN)), dtype=np.int64)
        self._open_floats = np.zeros((len(kernel.KINDS), 2))
        self._runs: list[Any] = []
        self._run_floats: list[Any] = []
        self.rows = 0
        self._take_carry(carry)

    def run(self, session: Session, feed: Feed, file: RatesFile | None) -> bool:
        """Take all rows of the part; False where they are not in order."""
        constants = _filled(feed.constants)
        # Figures of counters that no row has are left as they are.
        figures = np.full((len(kernel.FIGURES), BATCH_ROWS), np.nan)
        roce = any(feed.constants.get(name, 0) is not None for name in _ROCE)
        levels = np.empty(BATCH_ROWS, dtype=np.int32)
        times = np.empty(BATCH_ROWS, dtype=np.int64)
        links = np.empty(BATCH_ROWS, dtype=np.int32)
        runs = np.empty((_RUN_ROOM, len(kernel.RUN)), dtype=np.int64)
        run_floats = np.empty((_RUN_ROOM, 2))
        with ExitStack() as stack:
            if file is not None:
                stack.enter_context(file)
                file.links(self._links)
            for batch in feed.batches(session, self._low, self._high):
                for begin in range(0, len(batch["ts"]), BATCH_ROWS):
                    arrays = {n: a[begin : begin + BATCH_ROWS] for n, a in batch.items()}
                    count = len(arrays["ts"])
                    arrays |= {n: a[:count] for n, a in constants.items()}
                    for array in arrays.values():
                        array.setflags(write=False)
                    done = 0
                    while done < count:
                        done += kernel.advance(
                            self._cursor,
                            roce,
                            self._starts,
                            arrays["ts"][done:],
                            arrays["data_rate_bytes_s"][done:],
                            arrays["tick"][done:],
                            tuple(arrays[name][done:] for name in kernel.COUNTERS),
                            self._enter,
                            self._leave,
                            self._numbers,
                            self._last,
                            self._earlier,
                            self._samples,
                            self._last_floats,
                            self._earlier_floats,
                            self._levels,
                            self._known_ends,
                            self._open_runs,
                            self._open_floats,
                            figures,
                            levels,
                            times,
                            links,
                            runs,
                            run_floats,
                        )
                        if not self._keep(figures, levels, times, links, runs, run_floats, file):
                            return False
        if int(self._cursor[1]) != self._high - self._low:
            raise XtuneError(
                f"{self._cursor[1]} rows came of {self._high - self._low}", "run rebuild again"
            )
        return True

    def _keep(
        self, figures: Any, levels: Any, times: Any, links: Any, runs: Any, run_floats: Any,
        file: RatesFile | None,
    ) -> bool:  # fmt: skip
        """Take what the kernel has filled; False where rows were not in order."""
        rows, ended, disorder = (int(self._cursor[i]) for i in (2, 3, 4))
        if disorder:
            return False
        self.rows += rows
        if ended:
            self._runs.append(runs[:ended].copy())
            self._run_floats.append(run_floats[:ended].copy())
        if file is not None and rows:
            file.write(times[:rows], links[:rows], figures[:, :rows], levels[:rows])
        return True

    def runs(self) -> pa.Table:
        """Rows of ``link_runs``."""
        width = len(kernel.RUN)
        whole = np.concatenate([np.empty((0, width), np.int64), *self._runs])
        floats = np.concatenate([np.empty((0, 2)), *self._run_floats])
        found = {name: whole[:, i] for i, name in enumerate(kernel.RUN)}
        lost = found["kind"] == kernel.K_LOST
        columns: dict[str, Any] = {}
        for field in RUNS:
            name = field.name
            if name == "kind":
                values = pa.DictionaryArray.from_arrays(
                    pa.array(found["kind"].astype(np.int32)), pa.array(kernel.KINDS)
                ).cast(pa.string())
            elif name == "link":
                values = pa.array(self._links, pa.string()).take(pa.array(found["link"]))
            elif name in ("first_interval_s", "peak_utilization"):
                number = floats[:, 0 if name == "first_interval_s" else 1]
                values = pa.array(number, mask=lost | np.isnan(number))
            else:
                absent = found[name] < 0
                if name in _KNOWN_BY:
                    absent = found[_KNOWN_BY[name]] == 0
                if name not in ("start_ns", "end_ns"):
                    absent = absent | lost
                values = pa.array(found[name], mask=absent).cast(field.type)
            columns[name] = values
        return pa.table(columns, schema=RUNS)

    def carry(self) -> pa.Table:
        """Rows of ``CARRY``."""
        known = self._known_ends > 0
        last = self._sample(self._last, self._last_floats)
        earlier = self._sample(self._earlier, self._earlier_floats)
        columns = {
            "link": pa.array(self._links, pa.string()),
            **last,
            "before": pa.StructArray.from_arrays(
                list(earlier.values()),
                fields=list(SAMPLE),
                mask=pa.array(self._samples < 2),
            ),
            "level": pa.array(self._levels.astype(np.int32), mask=~known),
            "known_end_ns": pa.array(self._known_ends, mask=~known),
        }
        return pa.table(columns, schema=CARRY)

    def _sample(self, values: Any, floats: Any) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for field in SAMPLE:
            if field.name == "ts":
                found["ts"] = pa.array(values[:, kernel.AT]).cast(field.type)
            elif field.name == "restarts":
                found["restarts"] = pa.array(np.zeros(len(values), dtype=np.bool_))
            elif field.name in FLOATS:
                number = floats[:, FLOATS.index(field.name)]
                found[field.name] = pa.array(number, mask=np.isnan(number))
            else:
                counted = values[:, kernel.COUNTERS.index(field.name)]
                found[field.name] = pa.array(counted, mask=counted == -2).cast(field.type)
        return found

    def _take_carry(self, carry: pa.Table) -> None:
        """Enter what came before for the links of this part."""
        place = {link: i for i, link in enumerate(self._links)}
        known = carry.filter(pa.compute.is_in(carry["link"], pa.array(self._links, pa.string())))
        order = np.array([place[link] for link in known["link"].to_pylist()], dtype=np.int64)
        if len(order) == 0:
            return
        self._levels[order] = known["level"].fill_null(0).to_numpy()
        self._known_ends[order] = known["known_end_ns"].fill_null(0).to_numpy()
        samples = (known["ts"].is_valid(), known["before"].is_valid())
        self._samples[order] = sum(np.asarray(column).astype(np.int64) for column in samples)
        before = known["before"].combine_chunks()
        for field in SAMPLE:
            pairs = (
                (known[field.name].combine_chunks(), self._last, self._last_floats),
                (pa.compute.struct_field(before, field.name), self._earlier, self._earlier_floats),
            )
            for column, values, floats in pairs:
                if field.name in FLOATS:
                    floats[order, FLOATS.index(field.name)] = column.to_numpy(zero_copy_only=False)
                elif field.name != "restarts":
                    index = kernel.AT if field.name == "ts" else kernel.COUNTERS.index(field.name)
                    values[order, index] = column.cast(pa.int64()).fill_null(-2).to_numpy()


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a batch that hold one value; those of one value are one array."""
    arrays: dict[tuple[type, Any], Any] = {}
    found = {}
    for name, value in values.items():
        if name != "restarts":
            kind = np.float64 if name in FLOATS else np.int64
            key = kind, np.nan if value is None and name in FLOATS else _number(value)
            if key not in arrays:
                arrays[key] = np.full(BATCH_ROWS, key[1], dtype=kind)
            found[name] = arrays[key]
    return found


def _thresholds(rules: Mapping[str, Any], side: str) -> Any:
    return np.array(
        [rules[f"{side}_{name}"] for name in ("wait", "marks", "discards")], np.float64
    )


def _number(value: Any) -> float | int:
    return value if value is not None else -2

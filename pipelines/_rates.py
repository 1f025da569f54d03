"""Runs rates, levels and runs over one chunk: by the models, or compiled where it is large."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from xtune.errors import XtuneError
from xtune.lake import Lake
from xtune.pipelines._clock_fabric import shared_sources
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._feeds import direct_feed, merged_feed
from xtune.pipelines._identity import DEFAULT_TICK
from xtune.pipelines._rates_file import RatesFile
from xtune.pipelines._samples import (
    CARRY,
    CARRY_OUT,
    ChunkInput,
    check_units,
    load_inputs,
    make_samples,
    merge,
)
from xtune.pipelines._stream import Sorted, Streamed, links_of, stream

# Rows from which compiling, or loading what was compiled, is soon repaid.
STREAM_ROWS = 400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkResult:
    """What one chunk gives.

    Attributes:
        files: Its ``link_rates``, not yet in the lake, by rising link.
        rows: Rows in them.
        runs: Stretches within it, by kind (model ``link_runs``).
        carry: For each link so far, its last two samples, level and until when that is known.
        packets: Rows of model ``packet_check``.
    """

    files: tuple[Path, ...]
    rows: int
    runs: pa.Table
    carry: pa.Table
    packets: list[dict[str, Any]]


def run_chunk(
    lake: Lake,
    session: Session,
    given: ChunkInput,
    *,
    stream_rows: int = STREAM_ROWS,
    keep_rates: bool = True,
) -> ChunkResult:
    """Compute one chunk; the rules are variables of ``session`` already.

    Args:
        lake: Where the files belong.
        session: With the rules as variables.
        given: The chunk.
        stream_rows: Rows from which it is computed by compiled code: the result is the same.
        keep_rates: Whether rates are written; without, a large chunk gives runs and carry alone.
    """
    packets = check_units(session, given)
    large = sum(file.rows for file in given.chunk.files) >= stream_rows
    if large and _is_direct(given) and not any(row["misread"] for row in packets):
        found = links_of(given.chunk.files[0].path)
        if found is not None:
            streamed = _stream_file(lake, session, given, found, keep=keep_rates)
            if streamed is not None:
                return _result(streamed, packets)
    load_inputs(session, given)
    if any(port.shifts for port in given.facts.values()):
        session.set_variables({"shared_clocks": shared_sources(lake)})
    if large and not given.deltas:
        return _result(_by_stream(lake, session, given), packets)
    return _by_models(lake, session, given, packets)


def _by_models(
    lake: Lake, session: Session, given: ChunkInput, packets: list[dict[str, Any]]
) -> ChunkResult:
    """Samples merged and sorted, then model after model."""
    scratch = lake.scratch("derived/link_rates")
    merged = scratch / f"{given.chunk.key}.samples.tmp"
    levels = scratch / f"{given.chunk.key}.levels.tmp"
    path = scratch / f"{given.chunk.key}.parquet.tmp"
    merge(session, given, merged)
    make_samples(session, merged)
    model = session.bind("link_levels")
    session.copy(model.sql, levels, {})
    session.view("link_levels", f"FROM {files_relation([levels])}")
    session.audit(model, "link_levels")
    model = session.bind("link_rates")
    rows = session.copy(model.sql, path, lake.metadata("derived/link_rates"))
    session.audit(model, files_relation([path]))
    session.create("link_runs")
    runs = session.arrow("FROM link_runs ORDER BY ALL")
    carry = session.arrow(CARRY_OUT).cast(CARRY)
    for temporary in [merged, levels, *([] if rows else [path])]:
        temporary.unlink()
    files = (path,) if rows else ()
    return ChunkResult(files=files, rows=rows, runs=runs, carry=carry, packets=packets)


def _is_direct(given: ChunkInput) -> bool:
    """Whether one compacted file is the chunk, and its rows say all that ports differ in."""
    kinds = {(port.tick, port.ethernet) for port in given.facts.values()}
    rates = {port.rate_gbps for port in given.facts.values()}
    [file, *others] = given.chunk.files
    return (
        not others
        and not given.deltas
        and file.compacted
        and (file.min_ts_ns or 0) >= given.chunk.start_ns
        and (file.max_ts_ns or 0) < given.chunk.end_ns
        and all(raw == port.link for raw, port in given.facts.items())
        and not any(port.shifts for port in given.facts.values())
        and len(kinds) <= 1
        and (len(rates) <= 1 or not given.null_rate)
    )


def _stream_file(
    lake: Lake, session: Session, given: ChunkInput, found: Sorted, *, keep: bool
) -> Streamed | None:
    """A compacted file through the kernel as it is; None where its rows are not in order."""
    kinds = {(port.tick, port.ethernet) for port in given.facts.values()}
    rates = {port.rate_gbps for port in given.facts.values()}
    tick, ethernet = next(iter(kinds), (DEFAULT_TICK, False))
    rate = next(iter(rates)) if len(rates) == 1 else None
    session.set_variables({"tick": tick, "ethernet": ethernet, "rate_gbps": rate})
    feed = direct_feed(session, found.path)
    carry = CARRY.empty_table() if given.carry is None else given.carry
    scratch, metadata = lake.scratch("derived/link_rates"), lake.metadata("derived/link_rates")

    def file(part: int) -> RatesFile:
        return RatesFile(scratch / f"{given.chunk.key}.{part}.parquet.tmp", metadata)

    return stream(
        session, found, feed, carry, low=given.low, high=given.high, file=file if keep else None
    )


def _by_stream(lake: Lake, session: Session, given: ChunkInput) -> Streamed:
    """Samples merged and sorted into a file, then that through the kernel."""
    scratch, metadata = lake.scratch("derived/link_rates"), lake.metadata("derived/link_rates")
    merged = scratch / f"{given.chunk.key}.samples.tmp"
    merge(session, given, merged)
    found = links_of(merged)
    carry = session.arrow("FROM carry").cast(CARRY)

    def file(part: int) -> RatesFile:
        return RatesFile(scratch / f"{given.chunk.key}.{part}.parquet.tmp", metadata)

    streamed = None
    if found is not None:
        streamed = stream(session, found, merged_feed(merged), carry, file=file)
    if streamed is None:
        raise XtuneError("model samples_merged gave rows out of order")
    merged.unlink()
    return streamed


def _result(streamed: Streamed, packets: list[dict[str, Any]]) -> ChunkResult:
    return ChunkResult(
        files=streamed.files,
        rows=streamed.rows,
        runs=streamed.runs,
        carry=streamed.carry,
        packets=packets,
    )

"""Samples this host's InfiniBand counters on a drift-free clock."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.console import emit_json, note, say
from xtune.errors import InputError, UsageError

if TYPE_CHECKING:
    from xtune.collectors import Context, Rows
    from xtune.collectors._base import Item
    from xtune.lake import Lake

FLUSH_S = 10.0  # a killed collector loses at most this much
FASTEST_S = 0.01


def sample_host(
    lake: Lake,
    root: Path,
    context: Context,
    *,
    interval_s: float,
    duration_s: float | None,
    json: bool,
) -> None:
    """Sample until ``duration_s`` is over or an interrupt; what was flushed is kept.

    Ticks lie at multiples of the interval from the start; a tick that was missed is counted,
    never made up for.

    Raises:
        InputError: No InfiniBand device below ``root``.
        UsageError: An interval below 10 ms.
    """
    from xtune.collectors.ib_sysfs import sample

    if interval_s < FASTEST_S:
        raise UsageError("--interval: the fastest is 10ms")
    if not (root / "class" / "infiniband").is_dir():
        raise InputError(
            f"there is no InfiniBand device below {root}/class/infiniband",
            "name files to read, or --sysfs DIR",
        )
    host = context.host or socket.gethostname().lower()
    held: list[Rows] = []
    source = secrets.token_hex(6)
    rejected: set[str] = set()
    rows = missed = tick = 0
    until = "until interrupted" if duration_s is None else f"for {duration_s:g} s"
    note(f"sampling {host} every {interval_s:g} s {until}")
    began = flushed = time.monotonic()
    try:
        while duration_s is None or tick * interval_s < duration_s:
            wait = began + tick * interval_s - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            elif -wait >= interval_s:
                skipped = int(-wait / interval_s)
                missed += skipped
                tick += skipped
            items = sample(
                root,
                time.time_ns,
                host,
                with_ports=tick == missed,
                rejected=rejected,
                labels=context.labels,
            )
            held += _rows(items)
            tick += 1
            if time.monotonic() - flushed >= FLUSH_S:
                rows += _flush(lake, held, source, host, root)
                flushed = time.monotonic()
    except KeyboardInterrupt:
        note("interrupted: what was sampled is kept")
    rows += _flush(lake, held, source, host, root)
    if json:
        emit_json(
            {
                "schema": 1,
                "host": host,
                "samples": tick - missed,
                "missed": missed,
                "rows": rows,
                "rejected": len(rejected),
            }
        )
        return
    say(f"{host}: {tick - missed} samples, {missed} missed ticks, {rows} rows")
    for place in sorted(rejected):
        note(f"rejected: {place}: could not be read, null")


def _rows(items: Iterator[Item]) -> list[Rows]:
    from xtune.collectors import Rows

    return [item for item in items if isinstance(item, Rows)]


def _flush(lake: Lake, held: list[Rows], source: str, host: str, root: Path) -> int:
    """Write what is held in one transaction; returns the number of rows.

    All flushes of one run are one input of the ledger: ``source`` is its id.
    """
    import pyarrow as pa

    from xtune.collectors.ib_sysfs import COLLECTOR
    from xtune.lake import InputRecord

    by_table: dict[str, list[pa.RecordBatch]] = {}
    for item in held:
        by_table.setdefault(item.table, []).append(item.batch)
    count = sum(int(item.batch.num_rows) for item in held)
    if by_table:
        with lake.begin() as transaction:
            for name, batches in by_table.items():
                transaction.write(name, pa.Table.from_batches(batches), source=source)
            transaction.record(
                InputRecord(
                    id=source,
                    name=f"{host}:{root}, live",
                    path=str(root.absolute()),
                    content=source,  # what was sampled cannot be read again
                    size=0,
                    head="",
                    parser=COLLECTOR.name,
                    parser_version=COLLECTOR.version,
                    whose={"host": host},
                    time_ns=time.time_ns(),
                )
            )
            transaction.commit()
    held.clear()
    return count

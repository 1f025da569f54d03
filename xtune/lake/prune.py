"""Drops old raw data; derived tables stay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from xtune.lake._lake import Lake
from xtune.lake._parquet import NS_PER_DAY, table_named

#: Small tables that tell what is where; they are as true after the days they were written on.
FABRIC = ("ports", "topology_links")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """What pruning dropped.

    Attributes:
        files: Number of files.
        rows: Rows in them.
        bytes: Their size on disk.
        undated_files: Raw files kept because nothing in them has a time.
    """

    files: int
    rows: int
    bytes: int
    undated_files: int


def prune(lake: Lake, keep: timedelta, *, dry_run: bool = False) -> Pruned:
    """Drop raw files and rejects of UTC days that ended before ``keep`` ago, by the lake's clock.

    Days go as a whole: what is made of a day is not made anew from a part of its telemetry.
    What describes the fabric stays: telemetry of today is read with a topology of last year.
    The inputs stay in the ledger: collecting a pruned file again adds nothing. Room on the disk
    is free at once, so a query that runs meanwhile may find a file gone.
    """
    before_ns = lake.clock() - keep // timedelta(microseconds=1) * 1000
    before_ns -= before_ns % NS_PER_DAY
    raw = [f for f in lake.ledger.load().files.values() if not table_named(f.table).derived]
    old = [
        f
        for f in raw
        if f.table not in FABRIC and f.max_ts_ns is not None and f.max_ts_ns < before_ns
    ]
    if old and not dry_run:
        with lake.begin() as transaction:
            for file in old:
                transaction.remove(file)
            transaction.commit()
        lake.sweep(grace_ns=0)
    return Pruned(
        files=len(old),
        rows=sum(f.rows for f in old),
        bytes=sum(f.bytes for f in old),
        undated_files=sum(f.max_ts_ns is None for f in raw),
    )

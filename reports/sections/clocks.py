"""Hosts whose clock is off, and whether derived times are repaired by it."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content
from xtune.reports._figures import moment


def build(content: Content) -> Sequence[Block]:
    """One row a host and stretch, the largest offset first."""
    import polars as pl

    known = content.tables["clock_offsets"].drop_nulls(["offset_ns", "low_ns", "high_ns"])
    offsets = known.filter((pl.col("low_ns") > 0) | (pl.col("high_ns") < 0)).sort(
        [pl.col("offset_ns").abs(), "host", "from_ts"], descending=[True, False, False]
    )
    words = content.words
    if known.is_empty():
        return ()
    if offsets.is_empty():
        return (Text(text=words("no host's clock is off by more than can be told")),)
    names = ("host", "from (UTC)", "to (UTC)", "offset, ms", "low", "high", "repaired")
    rows = [
        (
            row["host"],
            moment(row["from_ts"]),
            moment(row["to_ts"]),
            *(round(row[name] / 1e6, 3) for name in ("offset_ns", "low_ns", "high_ns")),
            words("yes" if row["applied"] else "no"),
        )
        for row in offsets.iter_rows(named=True)
    ]
    return (Grid(columns=[words(name) for name in names], rows=rows),)


SECTION = Section(name="clocks", order=24, title="Clock offsets", build=build)

"""How links fare with the number of jobs that run at once, and whether that has a knee."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section
from xtune.reports._data import Content
from xtune.reports._figures import moment


def build(content: Content) -> Sequence[Block]:
    """The verdict for each signal, then the means at each number of jobs."""
    words = content.words
    knees, jobs = content.tables["concurrency_knee"], content.tables["concurrency"]
    if jobs.is_empty():
        return ()
    names = ("signal", "Verdict", "knee, jobs", "low", "high")
    verdicts = [
        (
            r["signal"].replace("_", " "),
            r["verdict"],
            r["knee_jobs"],
            r["low_jobs"],
            r["high_jobs"],
        )
        for r in knees.sort("signal").iter_rows(named=True)
    ]
    means = [
        (
            moment(row["ts"])[:10],
            row["jobs"],
            round(row["seconds"] / 3600, 2),
            _rounded(row["wait_fraction"]),
            _rounded(row["discard_rate"]),
            _rounded(row["retransmit_rate"]),
        )
        for row in jobs.sort("ts", "jobs").iter_rows(named=True)
    ]
    heads = ("day", "jobs", "hours", "waiting", "drops/s", "retransmissions/s")
    return (
        Grid(columns=[words(name) for name in names], rows=verdicts),
        Grid(columns=[words(name) for name in heads], rows=means),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


SECTION = Section(name="concurrency", order=23, title="Concurrent jobs", build=build)

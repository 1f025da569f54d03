"""Rates, levels and link episodes beside a plain scan of the same columns and beside peers.

100 M samples (``XTUNE_BENCH_ROWS`` says otherwise) of 512 ports, a second apart, in compacted
hours. Every run is a process of its own, imports and compiled code left out, with two threads.
Peers get as many hours as they take in reasonable time; figures are compared by the row, and
their episodes must be ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._episodes import Episodes
from bench._fabric import Fabric, put_hour, raw_files
from bench._peers import Run, interpreter, measure
from xtune.lake import Lake
from xtune.pipelines import rebuild

NAMES = (
    "pipelines.episodes_vs_scan", "pipelines.episodes_vs_polars_over",
    "pipelines.episodes_vs_polars_shift", "pipelines.episodes_vs_pandas",
    "pipelines.episodes_peak_gb", "pipelines.double_vs_single", "pipelines.hour_on_week_vs_hour",
)  # fmt: skip
ROWS = int(os.environ.get("XTUNE_BENCH_ROWS", 100_000_000))
LINKS = 512
RUNS = 5
POLARS_HOURS, PANDAS_HOURS = 8, 2
WEEK_HOURS, WEEK_LINKS, WEEK_STEP_S = 168, 64, 30
_SETUP = """
import json, os
from pathlib import Path
os.environ["POLARS_MAX_THREADS"] = "2"
given = json.loads(Path(path).read_text())
from bench._episodes import own, scan, with_pandas, with_polars
"""
_WARM = """
import duckdb, pyarrow.compute
own(Path(given["warm"]), 1)
"""
_OWN = "found = own(Path(given['lake']), given['hours'])"
_SCAN = "scan(given['files'])"
_OVER = "found = with_polars(given['files'], over=True)"
_SHIFT = "found = with_polars(given['files'], over=False)"
_PANDAS = "found = with_pandas(given['files'])"
_KEEP = "\nPath(given['out']).write_text(json.dumps(found))"


def run() -> Iterator[dict[str, object]]:
    """Medians of several runs, peers and own in turn."""
    with tempfile.TemporaryDirectory(prefix="xtune-bench-") as folder:
        yield from _episodes(Path(folder))
    with tempfile.TemporaryDirectory(prefix="xtune-bench-") as folder:
        yield _hour_on_week(Path(folder))


def _episodes(root: Path) -> Iterator[dict[str, object]]:
    lake, hours, rows_an_hour = _make(root)
    files = [str(path) for path in raw_files(lake)]
    pandas = interpreter("pandas==3.1.1", "pyarrow==26.0.1")
    if pandas is None:
        print("pipelines.episodes_vs_pandas: skipped, pandas cannot be installed", file=sys.stderr)
    here = Path(sys.executable)
    half = max(1, hours // 2)

    def ours(count: int) -> Callable[[], Run]:
        given = {"lake": str(lake.root), "hours": count}
        return lambda: _run(root, here, _SETUP + _WARM, _OWN, given)

    def theirs(python: Path, work: str, count: int) -> Callable[[], Run]:
        return lambda: _run(root, python, _SETUP, work, {"files": files[:count]})

    polars_hours, pandas_hours = min(POLARS_HOURS, hours), min(PANDAS_HOURS, hours)
    contenders = {
        "own": ours(hours),
        "scan": theirs(here, _SCAN, hours),
        "half": ours(half),
        "over": theirs(here, _OVER, polars_hours),
        "shift": theirs(here, _SHIFT, polars_hours),
    }
    if pandas is not None:
        contenders["pandas"] = theirs(pandas, _PANDAS, pandas_hours)
    _check(root, here, lake, files, pandas)
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(RUNS):
        for name, contender in contenders.items():
            runs[name].append(contender())
    seconds = {name: statistics.median(r.seconds for r in found) for name, found in runs.items()}
    rows = hours * rows_an_hour
    inside = (
        f"{rows / 1e6:.1f} M rows read, rates, levels, runs and stretches; rates are not written"
    )
    value = seconds["own"]

    def row(name: str, ratio: float | None, goal: float, against: str) -> dict[str, object]:
        return {
            "name": f"pipelines.{name}",
            "ratio": ratio,
            "goal": goal,
            "better": "lower",
            "value": value,
            "unit": "s",
            "against": against,
            "runs": RUNS,
        }

    yield row(
        "episodes_vs_scan",
        value / seconds["scan"],
        3,
        f"{inside}; DuckDB sums the same columns of the same files: {seconds['scan']:.2f} s",
    )
    each = value / rows
    for name, key, count, goal, label in (
        ("polars_over", "over", polars_hours, 1 / 3, "polars, differences .over('link')"),
        ("polars_shift", "shift", polars_hours, 1.0, "polars, sorted, one shift for all links"),
        ("pandas", "pandas", pandas_hours, 0.1, "pandas, groupby('link')"),
    ):
        if key in seconds:
            there = seconds[key] / (count * rows_an_hour)
            yield row(
                f"episodes_vs_{name}",
                each / there,
                goal,
                f"{label}: {there * 1e9:.0f} ns a row over {count * rows_an_hour / 1e6:.1f} M"
                f" rows, own {each * 1e9:.0f}; the same figures and episodes",
            )
    peak = statistics.median(r.peak_mb for r in runs["own"]) / 1024
    yield row("episodes_peak_gb", None, 4, f"DuckDB's limit 3 GB; {inside}") | {
        "value": peak,
        "unit": "GB",
    }
    per_hour = seconds["half"] / half
    yield row(
        "double_vs_single",
        None,
        2.1,
        f"{hours} hours of data beside {half}, scaled to twice: {seconds['half']:.2f} s",
    ) | {"value": 2 * value / hours / per_hour, "unit": "times"}


def _make(root: Path) -> tuple[Lake, int, int]:
    """A lake of whole hours with about ``ROWS`` rows, and a small one to warm up on."""
    fabric = Fabric(LINKS)
    hours = max(2, round(ROWS / fabric.rows_an_hour))
    lake = Lake.open(root / "lake", create=True)
    for hour in range(hours):
        put_hour(lake, fabric, hour)
    (root / "warm").mkdir()
    warm = Lake.open(root / "warm" / "lake", create=True)
    put_hour(warm, Fabric(LINKS), 0)
    for folder in (root, root / "warm"):
        (folder / "links.json").write_text(json.dumps(fabric.names))
    return lake, hours, fabric.rows_an_hour


def _run(root: Path, python: Path, setup: str, work: str, given: dict[str, object]) -> Run:
    with _given(root, given) as path:
        return measure(python, setup, work, path)


@contextmanager
def _given(root: Path, given: dict[str, object]) -> Iterator[Path]:
    path = root / "given.json"
    path.write_text(json.dumps({"warm": str(root / "warm" / "lake"), **given}))
    yield path


def _check(root: Path, own: Path, lake: Lake, files: list[str], pandas: Path | None) -> None:
    """Peers find our episodes in the first hours.

    Raises:
        AssertionError: They do not.
    """
    hours = min(PANDAS_HOURS, len(files))

    def found(python: Path, setup: str, work: str) -> Episodes:
        out = root / "found.json"
        given: dict[str, object] = {
            "lake": str(lake.root),
            "hours": hours,
            "files": files[:hours],
            "out": str(out),
        }
        _run(root, python, setup, work + _KEEP, given)
        return [(link, start, end) for link, start, end in json.loads(out.read_text())]

    ours = found(own, _SETUP, _OWN)
    assert ours
    for work, python in ((_OVER, own), (_SHIFT, own), (_PANDAS, pandas)):
        if python is not None:
            theirs = found(python, _SETUP, work)
            assert [row[0] for row in theirs] == [row[0] for row in ours], work
            # pandas makes floats of differences, which hold such times to 256 ns.
            for (_, *here), (_, *there) in zip(ours, theirs, strict=True):
                assert all(abs(a - b) < 1000 for a, b in zip(here, there, strict=True)), work


def _hour_on_week(root: Path) -> dict[str, object]:
    """``rebuild`` after one more hour: of a lake of a week, and of one of an hour."""
    old, young = (Fabric(WEEK_LINKS, WEEK_STEP_S) for _ in range(2))
    lakes = [Lake.open(root / name, create=True) for name in ("week", "young")]
    for hour in range(WEEK_HOURS):
        put_hour(lakes[0], old, hour)
    put_hour(lakes[1], young, 0)
    for lake in lakes:
        rebuild(lake, threads=2, day_rows=0)
    found: list[list[float]] = [[], []]
    for turn in range(RUNS):
        for index, (lake, fabric, hour) in enumerate(
            ((lakes[0], old, WEEK_HOURS + turn), (lakes[1], young, 1 + turn))
        ):
            put_hour(lake, fabric, hour)
            started = time.perf_counter()
            rebuild(lake, threads=2, day_rows=0)
            found[index].append(time.perf_counter() - started)
    week, hour_s = (statistics.median(times) for times in found)
    return {
        "name": "pipelines.hour_on_week_vs_hour",
        "ratio": week / hour_s,
        "goal": 1.2,
        "better": "lower",
        "value": week,
        "unit": "s",
        "against": (
            f"the same hour added to a lake of a few hours: {hour_s:.2f} s; whole rebuild,"
            f" {old.rows_an_hour} rows an hour"
        ),
        "runs": RUNS,
    }

"""Reading traces and event files against the libraries that others read them with.

Each figure is a fresh process's; peer and own in turn, medians of five. Imports do not count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench._peers import Run, interpreter, measure
from bench._tensorboard import STORED_LOADER_RATIO, write_events
from bench._traces import write_trace

RUNS = 5
TRACE_MB = 128
HTA_MB = 64
LARGE_MB = 2000
EVENTS = 100_000
MB = 1_000_000
#: Measured on 2 cores with HolisticTraceAnalysis 0.5.0, for where it cannot be installed.
STORED_HTA_RATIO = 0.08

NAMES = (
    "collectors.kineto_vs_orjson",
    "collectors.kineto_vs_hta",
    "collectors.kineto_vs_hta_memory",
    "collectors.kineto_peak_mb",
    "collectors.kineto_rate_2gb_vs_128mb",
    "collectors.tensorboard_vs_loader",
)

_OWN_SETUP = """
from pathlib import Path
from xtune.collectors._base import Context, Rows, Source
from xtune.collectors.{name} import COLLECTOR
context = Context(now_ns=lambda: 0)
source = Source(Path(path), path)
"""
_OWN_WORK = (
    "rows = sum(i.batch.num_rows for i in COLLECTOR.read(source, context) if isinstance(i, Rows))"
)
_ORJSON = ("import orjson", "whole = orjson.loads(open(path, 'rb').read())")
_HTA = (
    "import os\nfrom hta.trace_analysis import TraceAnalysis",
    "TraceAnalysis(trace_files={3: os.path.basename(path)}, trace_dir=os.path.dirname(path))",
)
# What scripts read scalars with: it parses less of each event than tensorboard's server does, and
# like xtune drops what a resumed run wrote again.
_LOADER = (
    "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator",
    "EventAccumulator(path, size_guidance={'scalars': 0, 'tensors': 0}).Reload()",
)
_HERE = Path(sys.executable)


def _own(name: str, path: Path) -> Run:
    return measure(_HERE, _OWN_SETUP.format(name=name), _OWN_WORK, path)


def _in_turn(name: str, peer: tuple[Path, str, str], path: Path) -> tuple[list[Run], list[Run]]:
    own, other = [], []
    for _ in range(RUNS):
        own.append(_own(name, path))
        other.append(measure(*peer, path))
    return own, other


def _seconds(runs: list[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def _peak(runs: list[Run]) -> float:
    return statistics.median(run.peak_mb for run in runs)


def _row(
    name: str, ratio: float | None, goal: float, value: float, unit: str, against: str
) -> dict:
    return {
        "name": f"collectors.{name}",
        "ratio": ratio,
        "goal": goal,
        "better": "lower",
        "value": value,
        "unit": unit,
        "against": against,
        "runs": RUNS,
    }


def _orjson(folder: Path) -> dict:
    path = folder / "trace.json"
    write_trace(path, TRACE_MB * MB)
    own, peer = _in_turn("kineto", (_HERE, *_ORJSON), path)
    against = f"orjson.loads of the same {TRACE_MB} MB, same run"
    ratio = _seconds(own) / _seconds(peer)
    return _row("kineto_vs_orjson", ratio, 1.5, TRACE_MB / _seconds(own), "MB/s", against)


def _hta(folder: Path) -> list[dict]:
    path = folder / "rank3.json"
    write_trace(path, HTA_MB * MB)
    python = interpreter("HolisticTraceAnalysis==0.5.0")
    if python is None:
        seconds = _seconds([_own("kineto", path) for _ in range(RUNS)])
        against = "HolisticTraceAnalysis 0.5.0 loading the same file, stored: it is not here"
        return [_row("kineto_vs_hta", STORED_HTA_RATIO, 0.1, HTA_MB / seconds, "MB/s", against)]
    own, peer = _in_turn("kineto", (python, *_HTA), path)
    path.unlink()
    against = f"HolisticTraceAnalysis 0.5.0 loading the same {HTA_MB} MB, same run"
    ratio, memory = _seconds(own) / _seconds(peer), _peak(own) / _peak(peer)
    return [
        _row("kineto_vs_hta", ratio, 0.1, HTA_MB / _seconds(own), "MB/s", against),
        _row("kineto_vs_hta_memory", memory, 1.0, _peak(own), "MB", f"peak memory: {against}"),
    ]


def _large(folder: Path) -> list[dict]:
    small, large = folder / "trace.json", folder / "large.json"
    write_trace(large, LARGE_MB * MB)
    small_runs, runs = [], []
    for _ in range(RUNS):
        small_runs.append(_own("kineto", small))
        runs.append(_own("kineto", large))
    sizes = large.stat().st_size, small.stat().st_size
    large.unlink()
    # Processor time: whether the file is in the system's cache is not the reader's doing.
    now, then = (statistics.median(run.busy_s for run in r) for r in (runs, small_runs))
    ratio = (now / sizes[0]) / (then / sizes[1])
    limit = f"limit; a generated trace of {sizes[0] / 1e9:.2f} GB"
    rate = f"processor time a byte of a trace of {TRACE_MB} MB, same run"
    return [
        _row("kineto_peak_mb", None, 300, _peak(runs), "MB", limit),
        _row("kineto_rate_2gb_vs_128mb", ratio, 1.2, LARGE_MB / _seconds(runs), "MB/s", rate),
    ]


def _tensorboard(folder: Path) -> dict:
    path = folder / "events.out.tfevents.1.bench"
    write_events(path, EVENTS)
    python = interpreter("tensorboard==2.21.0")
    if python is None:
        seconds = _seconds([_own("loss_tensorboard", path) for _ in range(RUNS)])
        ratio, when = STORED_LOADER_RATIO, "stored: it is not here"
    else:
        own, peer = _in_turn("loss_tensorboard", (python, *_LOADER), path)
        seconds, ratio, when = _seconds(own), _seconds(own) / _seconds(peer), "same run"
    against = f"tensorboard 2.21.0's EventAccumulator of the same {EVENTS} events, {when}"
    return _row("tensorboard_vs_loader", ratio, 1.0, EVENTS / seconds, "events/s", against)


def run() -> list[dict]:
    """All of them; the large trace needs 2 GB of room for temporary files."""
    with tempfile.TemporaryDirectory(prefix="xtune-bench-") as name:
        folder = Path(name)
        return [_orjson(folder), *_hta(folder), *_large(folder), _tensorboard(folder)]

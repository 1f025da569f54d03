"""A whole NCCL log read to Arrow batches against ``grep -c NCCL`` on the same file, in turn.

Both in one process each, and both with the file in the page cache; the collector's imports and
what it compiled are there before, as for any file after the first.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench._nccl_log import Shape, lines
from xtune.collectors._base import Context, Rows, Source
from xtune.collectors.nccl_debug import COLLECTOR

RUNS = 7
SIZE = 128 << 20
GOAL = 8.0
NAMES = ("collectors.nccl_log_vs_grep",)
_CHUNK = 4096


def _write(path: Path) -> int:
    """Sixteen ranks in one stream: COLL, TUNING, Init and other lines, prints between them."""
    made = lines(Shape(), seed=1)
    with path.open("w") as file:
        while file.tell() < SIZE:
            file.writelines(f"{line}\n" for line in itertools.islice(made, _CHUNK))
    return path.stat().st_size


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall time, and processor time of this process and of those it waited for."""

    def used() -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        usages = [resource.getrusage(kind) for kind in kinds]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    started, before = time.perf_counter(), used()
    work()
    return time.perf_counter() - started, used() - before


def run() -> list[dict]:
    """Medians of several runs, collector and grep in turn; nothing where there is no grep."""
    grep = shutil.which("grep")
    if grep is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nccl.log")
        size = _write(path)
        context = Context(now_ns=lambda: 0)

        def own() -> int:
            items = COLLECTOR.read(Source(path, path.name), context)
            return sum(item.batch.num_rows for item in items if isinstance(item, Rows))

        def peer() -> None:
            subprocess.run([grep, "-c", "NCCL", str(path)], check=True, capture_output=True)

        rows = own()
        peer()
        taken = [(_seconds(own), _seconds(peer)) for _ in range(RUNS)]
    wall, processor = (
        [statistics.median(pair[side][kind] for pair in taken) for side in (0, 1)]
        for kind in (0, 1)
    )
    return [
        {
            "name": NAMES[0],
            "ratio": wall[0] / wall[1],
            "goal": GOAL,
            "better": "lower",
            "value": size / wall[0] / 1e6,
            "unit": "1e6 byte/s",
            "against": f"grep -c NCCL, same {size >> 20} MB with {rows} operations, in turn;"
            f" {processor[0] / processor[1]:.2f} in processor time",
            "runs": RUNS,
        }
    ]

"""Reads one file with one collector in a process of its own, and says what it took."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.fuzz import AT_NS
from tests.memory import peak_bytes
from xtune.collectors import Context, Reject, Rows, Source, all_collectors


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """Peak resident memory, time, and what was yielded; nothing of it is kept."""

    peak_mb: int
    seconds: float
    rows: int
    rejects: int


def read(name: str, path: Path, limit_s: float = 300.0) -> Took:
    """Read ``path`` with the collector ``name`` in a child process.

    Raises:
        subprocess.SubprocessError: The child fails or takes longer.
    """
    command = [sys.executable, "-m", "tests.hostile.child", name, str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Took(**json.loads(done.stdout))


_ROOT = Path(__file__).parents[2]


def main() -> None:
    """Read the file named on the command line."""
    name, path = sys.argv[1], Path(sys.argv[2])
    began = time.monotonic()
    rows = rejects = 0
    collector = all_collectors()[name]
    source = Source(path, path.name)
    collector.claim(path, source.head())
    for item in collector.read(source, Context(now_ns=lambda: AT_NS)):
        match item:
            case Rows(batch=batch):
                rows += batch.num_rows
            case Reject():
                rejects += 1
    took = {"peak_mb": peak_bytes() >> 20, "seconds": time.monotonic() - began}
    print(json.dumps({**took, "rows": rows, "rejects": rejects}))


if __name__ == "__main__":
    main()

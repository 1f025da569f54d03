"""Other people's programs to measure against, installed beside the project, never in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "xtune-bench"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one process took for its work, imports left out, and the most memory it had.

    Attributes:
        seconds: By the clock.
        busy_s: Of processor time.
        peak_mb: Resident.
    """

    seconds: float
    busy_s: float
    peak_mb: float


_FRAME = """
import json, sys, time
path = sys.argv[1]
{setup}
started, busy = time.perf_counter(), time.process_time()
{work}
seconds, busy = time.perf_counter() - started, time.process_time() - busy
# Not getrusage: what it says of a child has its parent's memory in it.
peak = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
print(json.dumps([seconds, busy, peak]))
"""


def measure(python: Path, setup: str, work: str, path: Path) -> Run:
    """Run ``work`` on ``path`` in a fresh process of that interpreter.

    Raises:
        subprocess.CalledProcessError: It failed; its output says why.
    """
    done = subprocess.run(
        [str(python), "-c", _FRAME.format(setup=setup, work=work), str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, busy, peak = json.loads(done.stdout.strip().splitlines()[-1])
    return Run(seconds=seconds, busy_s=busy, peak_mb=peak)


def interpreter(*packages: str) -> Path | None:
    """An interpreter that has these packages, in a cached environment of its own.

    Null where they cannot be installed: then the figure stored with the benchmark counts.
    """
    key = hashlib.sha256(" ".join((sys.version, *packages)).encode()).hexdigest()[:12]
    folder = CACHE / key
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *packages],
            check=True,
            capture_output=True,
            timeout=900,
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{', '.join(packages)} cannot be installed: {error}", file=sys.stderr)
        return None
    (folder / "complete").touch()
    return python

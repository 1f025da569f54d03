"""Start of the command line beside a bare interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 7
NAMES = ("cli_help_vs_python",)


def _seconds(*words: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run() -> list[dict]:
    """``xtune --help`` and ``python -c pass``, in turn."""
    own, bare = [], []
    for _ in range(RUNS):
        own.append(_seconds("-m", "xtune", "--help"))
        bare.append(_seconds("-c", "pass"))
    value, against = statistics.median(own), statistics.median(bare)
    return [
        {
            "name": NAMES[0],
            "ratio": value / against,
            "goal": None,
            "better": "lower",
            "value": value,
            "unit": "s",
            "against": f"a bare interpreter, {against:.3f} s; budget 0.3 s",
            "runs": RUNS,
        }
    ]

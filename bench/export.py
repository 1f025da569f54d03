"""Import of an exported policy where torch is already loaded."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 5
NAMES = ("policy_import_s",)

CODE = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
import xtune_policy_joint
print(time.perf_counter() - began)
"""


def run() -> list[dict]:
    """A fresh interpreter each time."""
    from xtune.export import export_policy
    from xtune.policies.presets import preset

    with tempfile.TemporaryDirectory() as folder:
        export_policy(preset("joint"), Path(folder), "joint")
        values = [
            float(
                subprocess.run(
                    [sys.executable, "-c", CODE, folder],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for _ in range(RUNS)
        ]
    return [
        {
            "name": NAMES[0],
            "ratio": None,
            "goal": 1.5,
            "better": "lower",
            "value": statistics.median(values),
            "unit": "s",
            "against": "the limit the contract sets, torch loaded before",
            "runs": RUNS,
        }
    ]

"""``make demo`` after the install, as a user's shell runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_ends_with_a_report_and_a_wheel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xtune", "demo", "--out", str(tmp_path / "demo")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert len(list((tmp_path / "demo" / "dist").glob("*.whl"))) == 1
    assert "[7/7] $ xtune report" in done.stdout

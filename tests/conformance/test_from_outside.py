"""The worked example of CONTRIBUTING.md, installed beside xtune as other people's package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A folder on the path with the example's files and what an installer writes of them."""
    python = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (points,) = re.findall(r"```toml\n\[project.(entry-points.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "site_power.py").write_text(python[0])
    (tmp_path / "test_site_power.py").write_text(python[1])
    info = tmp_path / "site_power-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-power\nVersion: 1\n")
    points = points.replace('entry-points."xtune.collectors"', "[xtune.collectors").replace(
        '"', ""
    )
    (info / "entry_points.txt").write_text(points)
    return {**os.environ, "PYTHONPATH": str(tmp_path), "XTUNE_LAKE": str(tmp_path / "lake")}


def run(environment: dict[str, str], *arguments: str) -> str:
    folder = environment["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_and_reads(environment: dict[str, str]) -> None:
    formats = json.loads(run(environment, "xtune", "collect", "--list", "--json"))["formats"]
    assert "power meter log: time host gpu watts" in [f["title"] for f in formats]
    log = Path(environment["PYTHONPATH"], "power.log")
    log.write_text("1750000000.5 gpu-17 0 412.5\n1750000001.5 gpu-17 1 98.0\nnoise\n")
    summary = json.loads(run(environment, "xtune", "collect", str(log), "--json"))
    (file,) = summary["files"]
    assert (file["kind"], file["rows"], file["rejected"]) == ("site_power", {"gpu_samples": 2}, 1)
    assert file["first_ts"] == "2025-06-15T15:06:40.500000000Z"
    assert file["reasons"][0]["offset"] == "line 3"


def test_it_passes_the_suite(environment: dict[str, str]) -> None:
    out = run(environment, "pytest", "-q", "-p", "no:cacheprovider", "test_site_power.py")
    assert "8 passed" in out

"""The way a user goes: files of real tools, ``xtune collect``, ``xtune rebuild``."""

from __future__ import annotations

from pathlib import Path

from tests.commands import xtune
from tests.planted import generate, score
from tests.planted.files import write_files
from xtune.lake import Lake


def run(*arguments: str, folder: Path) -> None:
    done = xtune(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_collected_and_rebuilt_from_files(tmp_path: Path) -> None:
    """Host ports are named by their hosts there, and only the topology tells their GUIDs."""
    planted = generate(4, length_s=300.0)
    files = tmp_path / "files"
    write_files(planted, files)
    run("collect", *(str(p) for p in files.iterdir() if p.is_file()), folder=tmp_path)
    for job in planted.history.plan.jobs:
        flags = ("--job", job.name, "--tz", "UTC")
        run("collect", str(files / job.name), *flags, folder=tmp_path)
    run("rebuild", folder=tmp_path)
    result = score(Lake.open(tmp_path / "lake"), planted.truth)
    print(result.text())
    assert result.recall >= 0.97
    assert result.precision >= 0.97
    assert result.root_right >= 0.95
    assert result.bound_error <= 1.0
    assert result.gpu_hours[0] > 0.0

"""The exported module and wheel: same bytes, refuses change, stands alone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from xtune.errors import ExportError
from xtune.export import export_policy, planned
from xtune.policies.presets import preset


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the module first and has no xtune."""
    refuse = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('xtune', 'optuna', 'duckdb', 'plotly', 'polars'):\n"
        "            raise ImportError('not here: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"sys.path.insert(0, {str(path)!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", refuse + code], capture_output=True, text=True, check=False
    )


def test_two_builds_are_the_same_to_the_byte(tmp_path: Path) -> None:
    first = export_policy(preset("joint"), tmp_path / "a", "joint")
    second = export_policy(preset("joint"), tmp_path / "b", "joint")
    assert first.wheel.name == second.wheel.name
    assert first.wheel.read_bytes() == second.wheel.read_bytes()
    assert first.sha256 == hashlib.sha256(first.wheel.read_bytes()).hexdigest()


def test_another_policy_is_another_version(tmp_path: Path) -> None:
    first = export_policy(preset("joint"), tmp_path / "a", "x")
    second = export_policy(preset("routing_only"), tmp_path / "b", "x")
    assert first.wheel.name != second.wheel.name


def test_wheel_record_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(export_policy(preset("joint"), tmp_path, "joint").wheel)
    (record,) = [n for n in wheel.namelist() if n.endswith("/RECORD")]
    lines = [line.split(",") for line in wheel.read(record).decode().splitlines()]
    assert sorted(line[0] for line in lines) == sorted(wheel.namelist())
    assert all(int(size) == len(wheel.read(name)) for name, _, size in lines if size)
    assert "xtune_policy_joint/py.typed" in wheel.namelist()
    assert "xtune_policy_joint/policy.json" in wheel.namelist()


def test_imports_without_xtune_and_shows_its_parameters(tmp_path: Path) -> None:
    export_policy(preset("joint"), tmp_path, "joint")
    done = run(
        "import json, xtune_policy_joint as policy\n"
        "print(json.dumps([policy.PARAMETERS['period.iterations'], policy.POLICY.name]))",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [200, "joint"]


def test_two_policies_live_in_one_process(tmp_path: Path) -> None:
    export_policy(preset("joint"), tmp_path, "one")
    export_policy(preset("routing_only"), tmp_path, "two")
    done = run(
        "import xtune_policy_one as a, xtune_policy_two as b\n"
        "print(a.PARAMETERS['compression.mode'], b.PARAMETERS['compression.mode'])",
        tmp_path,
    )
    assert done.stdout.split() == ["quantise", "off"], done.stderr


@pytest.mark.parametrize("name", ["policy.json", "engine/spec.py", "__init__.py"])
def test_one_changed_byte_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    module = export_policy(preset("joint"), tmp_path, "joint").module
    data = bytearray((module / name).read_bytes())
    data[data.rindex(b"\n")] = ord(" ")
    (module / name).write_bytes(data)
    done = run("import xtune_policy_joint", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: xtune_policy_joint: {name} was changed after export")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    module = export_policy(preset("joint"), tmp_path, "joint").module
    (module / "engine" / "router.py").unlink()
    assert "engine/router.py is missing" in run("import xtune_policy_joint", tmp_path).stderr


def test_exporting_again_replaces_only_its_own_folder(tmp_path: Path) -> None:
    export_policy(preset("joint"), tmp_path, "joint")
    export_policy(preset("joint"), tmp_path, "joint")
    (tmp_path / "xtune_policy_mine").mkdir()
    (tmp_path / "xtune_policy_mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="is not an exported policy"):
        export_policy(preset("joint"), tmp_path, "mine")
    assert (tmp_path / "xtune_policy_mine" / "thesis.txt").is_file()


@pytest.mark.parametrize("name", ["Joint", "1a", "a-b", "", "a.b", "a/../b"])
def test_a_name_that_is_no_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError):
        export_policy(preset("joint"), tmp_path, name)


def test_a_failed_export_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xtune.export.write_wheel", full)
    with pytest.raises(ExportError, match=r"^[^N]*: No space left on device"):
        export_policy(preset("joint"), tmp_path / "out", "joint")
    assert not list((tmp_path / "out").glob(".*"))


def test_what_is_planned_is_what_is_written(tmp_path: Path) -> None:
    folder, wheel = planned(preset("joint"), tmp_path, "joint")
    exported = export_policy(preset("joint"), tmp_path, "joint")
    assert (exported.module, exported.wheel) == (folder, wheel)

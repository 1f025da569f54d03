"""``--map``: a name that is none of ours is wrong usage, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import xtune


@pytest.mark.parametrize("pair", ["nonsense=x", "loss", "=x"])
def test_wrong_map_is_wrong_usage(tmp_path: Path, pair: str) -> None:
    (tmp_path / "log.csv").write_text("step,x\n1,2.5\n")
    done = xtune("collect", "log.csv", "--map", pair, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "--map" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "lake").exists()


def test_map_names_columns_counters_and_roles(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,x\n1,2.5\n2,2.25\n")
    words = [w for m in ("loss=x", "time=when", "port_xmit_wait=y") for w in ("--map", m)]
    done = xtune("collect", "log.csv", "--kind", "loss_table", "--json", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["files"]
    assert found["rows"] == {"steps": 2}


def test_map_of_a_file_that_nothing_claims_says_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("iter,x\n1,2.5\n2,2.25\n")
    words = ("collect", "log.csv", "--map", "loss=x", "--map", "step=iter")
    done = xtune(*words, cwd=tmp_path)
    assert "with --map name the --kind too, such as loss_table" in done.stderr
    done = xtune(*words, "--kind", "loss_table", cwd=tmp_path)
    assert done.stdout.startswith("1 inputs: 1 replaced\n")

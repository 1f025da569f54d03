"""``--map``: a name that is none of ours is wrong usage, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import xtune


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

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.lakes import new_lake, put
from tests.placement.lakes import topology, up
from xtune.proofs.collected_fabric import described, main, read
from xtune.sim.up_down import UpDown


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three leaves of two hosts, one uplink each to one spine, 400 Gb/s."""
    put(new_lake(tmp_path / "lake"), "topology_links", topology())
    return tmp_path / "lake"


def test_a_phase_runs_on_the_fabric_of_a_lake(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(lake), "--bytes", "1000000", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fabric"] == {
        "hosts": 6, "leaves": 3, "switches": 4, "tiers": 2, "ports": 18, "gbps": 400.0,
        "oversubscription": [2.0, 2.0], "unused": [],
    }  # fmt: skip
    # Both hosts of a leaf send over its one uplink: 2 MB at 50 B/ns.
    assert report["bound_us"] == 40.0
    for run in report["runs"].values():
        assert 40.0 <= run["last_us"] <= 45.0
        assert up("leafa") in run["queue_p50"]
    assert main([str(lake), "--bytes", "1000000"]) == 0
    text = capsys.readouterr().out
    assert "6 hosts at 400 Gb/s below 3 leaves of 4 switches in 2 tiers, 18 ports" in text
    assert "faster than 40 us" in text


def test_what_cannot_be_run_is_said_in_one_line(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, text in (
        ([str(tmp_path / "none")], "no lake"),
        ([str(lake), "--bytes", "0"], "size under 1 byte"),
    ):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1


def test_links_on_no_path_are_named(lake: Path) -> None:
    fabric: UpDown = read(lake)
    one_way = fabric.without([up("leafc")])
    assert described(one_way)["unused"] == []
    # Without the way back as well, leaf c is by itself, and the spine joins two leaves.
    assert len(one_way.paths(2, 0)) == 0
    assert len(one_way.paths(0, 2)) == 1

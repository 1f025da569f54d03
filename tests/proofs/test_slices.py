"""The slice beside the whole fabric, on one that is small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sim_loop.made import made
from tests.sim_loop.test_network import adding
from xtune.proofs.slices import main, networks, run
from xtune.sim.network import Network


@pytest.mark.parametrize("hosts", [256, 1024])
def test_the_networks_are_those_that_the_loop_takes(hosts: int) -> None:
    side = float(round(hosts**0.5))
    c = made(job_hosts=float(hosts), hosts=float(hosts), leaves=side, spines=side, ecmp_share=1.0)
    part = Network.of(adding(c, job_rings=2.0))
    whole = Network.of(adding(c, job_rings=2.0, slice_hosts=float(hosts)))
    assert networks(hosts, 2) == (part, whole)


def test_a_ring_that_never_meets_itself_is_the_same_on_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(256)
    rows = {(r["rings"], r["depth"], r["policy"]): r for r in report["rows"]}
    # One ring sends by one uplink and downlink of each leaf: only others are in its way.
    for depth in (1.0, 2.0, 4.0):
        row = rows[1, depth, "static_dense"]
        assert row["slice"] == pytest.approx(depth, rel=0.06)
        assert row["whole"] == pytest.approx(depth, rel=0.06)
    # Where all hosts send out of their leaves, the busiest of many drawn ports is busier.
    crowded = rows[16, 1.0, "static_dense"]
    assert crowded["whole"] > crowded["slice"] > 2.0
    assert all(r["error"] == r["slice"] / r["whole"] - 1.0 for r in report["rows"])
    out = tmp_path / "slices.json"
    assert main(["--hosts", "256", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == report
    assert "| 16 | 1 | static_dense |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--hosts", "1000"])

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from xtune.proofs import jitter
from xtune.sim.bounds import flow_ns
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import permutation, shift
from xtune.sim.placement import placed

HOSTS, SEEDS = 64, 16


Report = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Report]:
    """What the command prints, and what it writes."""
    out = tmp_path_factory.mktemp("jitter") / "jitter.json"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert jitter.main(["--hosts", str(HOSTS), "--seeds", str(SEEDS), "--out", str(out)]) == 0
    return printed.getvalue(), json.loads(out.read_text())


@pytest.fixture
def report(run: tuple[str, Report]) -> Report:
    return run[1]


def test_jitter_is_the_distance_of_two_order_statistics() -> None:
    # 0..1000 us in steps of one: the 999th of the thousand gaps, less the 500th.
    assert jitter.jitter_us(np.linspace(0.0, 1e6, 1001)) == pytest.approx(499.0)
    assert jitter.jitter_us(np.full((3, 500), 7.0)) == 0.0


def test_placed_flows_of_a_permutation_share_no_link() -> None:
    fabric = LeafSpine.square(HOSTS)
    for flows in (shift(fabric), permutation(fabric, seed=3)):
        spines = placed(fabric, flows).spine
        used = Counter(
            port
            for src, dst, spine in zip(flows.src, flows.dst, spines, strict=True)
            for port in fabric.path(int(src), int(dst), int(spine))
        )
        assert set(used.values()) == {1}


def test_placement_alone_leaves_no_jitter_and_static_tables_more_than_all(report: Report) -> None:
    alone = flow_ns(LeafSpine.square(HOSTS), jitter.MESSAGE_BYTES) / 1000.0
    for name in ("ring to the next leaf", "random permutation"):
        methods = report["patterns"][name]
        placed_alone = methods["placement alone"]
        assert placed_alone["jitter_us"] == pytest.approx(0.0, abs=0.01)
        assert placed_alone["median_us"] == pytest.approx(alone, rel=0.01)
        static = methods["static ECMP"]
        assert static["change_percent"] == 0.0
        assert all(m["jitter_us"] <= static["jitter_us"] for m in methods.values())
        assert all(m["median_us"] >= 0.99 * alone for m in methods.values())


def test_who_places_blindly_meets_the_other_job(report: Report) -> None:
    methods = report["patterns"]["permutation beside another job"]
    blind, knowing = methods["placement alone"], methods["placement by load"]
    assert knowing["jitter_us"] < 0.8 * blind["jitter_us"]
    assert methods["placement, then Holt"]["jitter_us"] < blind["jitter_us"]


def test_intervals_hold_their_figures_and_nothing_moves_on_static_paths(report: Report) -> None:
    for methods in report["patterns"].values():
        for figures in methods.values():
            low, high = figures["jitter_interval_us"]
            assert low <= figures["jitter_us"] <= high
        assert methods["static ECMP"]["moves"] == 0.0
        assert methods["static ECMP"]["held_p995_bytes"] == 0.0
        assert methods["binary, Holt"]["moves"] > 0.0


def test_the_command_prints_what_it_writes(run: tuple[str, Report]) -> None:
    printed, written = run
    for methods in written["patterns"].values():
        for name, figures in methods.items():
            assert f"| {name} | {figures['median_us']:.0f} |" in printed
    assert "own claim: -58 %" in printed


def test_what_cannot_be_measured_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert jitter.main(["--hosts", "10"]) == 1
    assert jitter.main(["--hosts", "16", "--seeds", "3"]) == 1
    square, few = capsys.readouterr().err.splitlines()
    assert "not a square fabric" in square
    assert "no p99.9" in few

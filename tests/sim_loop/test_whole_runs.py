"""Whole runs of a comparison: what they are, and who has them in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim_loop.made import made
from xtune.policies.presets import preset
from xtune.policies.spec import Policy, replace_fields
from xtune.sim import fidelity as whole_runs
from xtune.sim.cache import PhaseCache, Phases
from xtune.sim.fidelity import LONGEST_NS, LONGEST_STEP_NS, _Comparison, fidelity
from xtune.sim.network import CLEAR, state_of

STATIC = preset("static_dense")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")}


def test_policies_of_one_routing_have_them_in_common(tmp_path: Path) -> None:
    """One with another name for the same traffic finds all runs there; other paths find none."""
    first = fidelity(STATIC, made(), cache=PhaseCache(tmp_path))
    there = files(tmp_path)
    alike = replace_fields(STATIC, {"period.iterations": STATIC.period.iterations + 1})
    second = fidelity(alike, made(), cache=PhaseCache(tmp_path))
    new = files(tmp_path) - there
    assert second == first
    assert [name.split("-")[0] for name in new] == ["fidelity"]
    other = replace_fields(STATIC, {"routing.mode": "spray"})
    fidelity(other, made(), cache=PhaseCache(tmp_path))
    assert sum("fidelity" not in name for name in files(tmp_path) - there) >= 2


def compared(policy: Policy, folder: Path | None = None) -> _Comparison:
    return _Comparison(policy, made(), PhaseCache(folder))


def test_a_ratio_is_that_of_a_whole_run_and_a_cell(tmp_path: Path) -> None:
    """Of one at a power of two, which is run as it is."""
    size, state, place = 1 << 24, state_of(2.6, edge=False), 5
    mine = compared(STATIC, tmp_path)
    at = mine._place(state, place, "ring")
    run = Phases(mine.whole, STATIC.routing, PhaseCache()).run(
        "ring", size, state, at, limit_ns=LONGEST_NS, longest_step_ns=LONGEST_STEP_NS
    )
    cell = Phases(mine.sliced, STATIC.routing, PhaseCache()).seconds("ring", size, state, place)
    for found in (mine, compared(STATIC, tmp_path)):  # the second reads it
        ratio = found._ratio(STATIC.routing, "ring", size, state, place)
        assert ratio == pytest.approx(run.phase_ns * 1e-9 / cell, rel=1e-12)


@pytest.mark.parametrize(("times", "runs"), [(1.004, 1), (1.02, 2)])
def test_sizes_within_half_a_per_cent_share_one(times: float, runs: int) -> None:
    mine = compared(STATIC)
    before = len(mine.runs._cells)  # of a clean collective
    for size in (1 << 20, round(times * (1 << 20))):
        mine._ratio(STATIC.routing, "ring", size, CLEAR, 0)
    assert len(mine.runs._cells) - before == runs


def test_what_is_over_the_budget_is_run_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = compared(STATIC)
    before = set(mine.runs._cells)
    hosts = mine.whole.leaves * mine.whole.job_per_leaf
    monkeypatch.setattr(whole_runs, "BUDGET_BYTES", hosts << 20)
    mine._ratio(STATIC.routing, "ring", 1 << 20, CLEAR, 0)
    assert mine.cut is False
    mine._ratio(STATIC.routing, "ring", 1 << 24, CLEAR, 0)
    assert mine.cut is True
    assert [key.size_bin for key in set(mine.runs._cells) - before] == [1 << 20]

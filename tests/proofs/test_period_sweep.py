from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.sim_loop.made import made
from xtune.errors import UsageError
from xtune.policies.presets import preset
from xtune.policies.spec import replace_fields
from xtune.proofs import period_sweep
from xtune.proofs.period_sweep import PACES, PERIODS, at_pace, sweep

EPISODES = made(episode_rate_per_h=120.0, episode_length_s=6.0)


def test_every_pace_is_congested_for_the_same_share_of_the_time() -> None:
    for iterations in PACES.values():
        paced = at_pace(EPISODES, iterations)
        assert paced["episode_length_s"] == pytest.approx(iterations * EPISODES["step_s"])
        share = paced["episode_rate_per_h"] * paced["episode_length_s"] / 3600
        assert share == pytest.approx(120 * 6 / 3600)


def test_the_interval_of_the_best_period_is_wide_where_seeds_disagree() -> None:
    times = np.ones((len(PERIODS), 6))
    times[3] = 0.5
    assert period_sweep._best_interval(times) == (PERIODS[3], PERIODS[3])
    times[3], times[7] = (0.4, 1, 0.4, 1, 0.4, 1), (1, 0.4, 1, 0.4, 1, 0.4)
    assert period_sweep._best_interval(times) == (PERIODS[3], PERIODS[7])


def test_differences_are_paired_by_seed() -> None:
    others = np.array([10.0, 20.0, 40.0])
    mean, low, high = period_sweep._percent(1.1 * others, others)
    assert (mean, low, high) == pytest.approx((10.0, 10.0, 10.0))


def test_a_period_costs_what_its_regulations_do() -> None:
    # Compressed alike at every level and nothing held back: only the charge of a regulation is
    # left that T could change, once each T iterations and once at the end of the warm-up.
    charge = 2.0
    policy = replace_fields(
        preset("compression_only"),
        {
            "compression.rung_by_level": (1, 1, 1, 1),
            "compression.least_gain": 0.0,
            "compression.warmup_iterations": 2000,
        },
    )
    calibration = made(
        episode_rate_per_h=1e-9, episode_length_s=0.1, regulation_s=charge, change_s=0.0
    )
    report = sweep(calibration, policy, seeds=2, iterations=1000)
    for figures in report["paces"].values():
        times = {period: row["time_s"] for period, row in figures["periods"].items()}
        for period in PERIODS:
            extra = times[period] - times[2000]
            # The last one falls after the target is reached.
            assert extra == pytest.approx(charge * ((1000 - 1) // period), abs=1e-6)
        assert figures["best"] == 1000
        # The job trains for some 110 s: one charge more is far above a thousandth of that.
        assert figures["not_told_apart"] == [1000, 2000]


def test_what_it_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EPISODES.save(tmp_path)
    monkeypatch.setattr(period_sweep, "PACES", {"fast": 60})
    monkeypatch.setattr(period_sweep, "PERIODS", (50, 200))
    out = tmp_path / "sweep.json"
    arguments = ["--calibration", str(file), "--seeds", "2", "--iterations", "300"]
    assert period_sweep.main([*arguments, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = report["paces"]["fast"]["periods"]
    assert rows["200"]["over_claimed_percent"] == [0.0, 0.0, 0.0]
    printed = capsys.readouterr().out
    assert f"| 50 | {rows['50']['time_s']:.1f} |" in printed
    assert "a grid search found T = 200" in printed


def test_nothing_to_sweep_is_said() -> None:
    with pytest.raises(UsageError, match="no episodes"):
        sweep(made(), preset("joint"), seeds=2, iterations=10)
    with pytest.raises(UsageError, match="at least 2"):
        sweep(EPISODES, preset("joint"), seeds=1, iterations=10)
    assert period_sweep.main(["--policy", "jonit"]) == 2
    assert period_sweep.main(["--calibration", "/nonexistent"]) == 2

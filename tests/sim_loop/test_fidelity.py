"""Sampled phases against whole runs: small where it must be, and seen where it is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim_loop.made import made
from xtune.policies.presets import preset
from xtune.sim import cache
from xtune.sim.cache import PhaseCache, Sample
from xtune.sim.calibration import Calibration
from xtune.sim.fidelity import (
    HORIZON_STEPS,
    Fidelity,
    _Comparison,
    difference,
    fidelity,
    main,
    windows_of,
)
from xtune.sim.network import CLEAR

STATIC = preset("static_dense")


def job(**values: float) -> Calibration:
    """Episodes of two minutes, twenty an hour; depths that no cell has."""
    return made(
        episode_rate_per_h=20.0, episode_length_s=120.0, episode_slowdown=2.6,
        episode_slowdown_sigma=0.3, step_s=0.5, compute_s=0.05, **values,
    )  # fmt: skip


@pytest.fixture(scope="module")
def static() -> Iterator[tuple[PhaseCache, Fidelity]]:
    cache = PhaseCache()
    yield cache, fidelity(STATIC, job(), cache=cache)


def test_fixed_paths_are_slowed_as_whole_runs_are(static: tuple[PhaseCache, Fidelity]) -> None:
    found = static[1]
    assert found.windows >= 5 and found.cut == 0
    assert abs(found.bias) < 0.02 and found.sd < 0.04
    assert found.errors[0] == pytest.approx(0.0, abs=1e-3)  # the clear one
    assert sum(found.shares) == pytest.approx(1.0)


def test_cells_that_are_wrong_are_seen(static: tuple[PhaseCache, Fidelity]) -> None:
    """A fifth too slow while congested: as much of the transfers in those windows."""

    def slower(sample: Sample) -> Sample:
        return replace(sample, base_s=1.2 * sample.base_s, s_per_byte=1.2 * sample.s_per_byte)

    cache, right = static
    wrong = PhaseCache()
    wrong._cells = {
        key: cell if key.state == CLEAR else slower(cell) for key, cell in cache._cells.items()
    }
    found = fidelity(STATIC, job(), cache=wrong)
    # Start-up, a few microseconds, is no part of a cell.
    congested = 1.0 - found.shares[0]
    assert found.phase_bias - right.phase_bias == pytest.approx(0.2 * congested, rel=0.03)
    assert found.errors[0] == right.errors[0]


def test_steps_that_are_too_long_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs take none that long, whatever cells do."""
    compared = _Comparison(STATIC, job(rate_gbps=100.0), PhaseCache())
    size = 7 << 14  # flows of 16 KiB: 1.3 us
    assert compared._ratio(STATIC.routing, "all_to_all", size, CLEAR, 0) == pytest.approx(
        1.0, rel=0.02
    )
    monkeypatch.setattr(cache, "step_ns", lambda *_, **__: 4000)
    compared = _Comparison(STATIC, job(rate_gbps=100.0), PhaseCache())
    assert compared._ratio(STATIC.routing, "all_to_all", size, CLEAR, 0) < 0.8


def test_windows_are_the_same_for_every_policy_and_hold_all_time() -> None:
    windows = windows_of(job(), seed=3)
    assert windows[0].stretch.state == CLEAR
    assert all(w.stretch.state != CLEAR for w in windows[1:])
    assert sum(w.share for w in windows) == pytest.approx(1.0)
    assert windows == windows_of(job(change_s=0.5), seed=3)
    assert windows != windows_of(job(), seed=4)
    quiet = windows_of(made(), seed=3)
    assert [w.share for w in quiet] == [1.0]


def test_what_is_beyond_the_horizon_counts_of_no_stretch() -> None:
    """One stretch that is congested until far beyond it: it stands for the time up to it."""
    calibration = made(
        step_s=0.5, episode_rate_per_h=10.0, episode_length_s=5000.0, episode_length_shape=100.0
    )
    windows = windows_of(calibration, seed=3)
    assert [w.stretch.state == CLEAR for w in windows] == [True, False]
    horizon = HORIZON_STEPS * calibration["step_s"]
    first, last = windows
    assert last.start_s < horizon < last.stretch.end_s
    assert last.share == pytest.approx(1.0 - last.start_s / horizon)
    assert first.share == pytest.approx(last.start_s / horizon)


def of(*errors: float | None) -> Fidelity:
    return Fidelity(
        policy="p", bias=0.0, sd=0.0, phase_bias=0.0, phase_sd=0.0, windows=len(errors),
        errors=errors, shares=(0.5, 0.25, 0.25),
    )  # fmt: skip


def test_a_paired_difference_by_hand() -> None:
    one, other = of(0.0, 0.1, 0.3), of(0.0, 0.1, None)
    assert difference(one, one) == (0.0, 0.0)
    assert difference(one, other) == (0.0, 0.0)  # on what both were in
    bias, sd = difference(one, of(0.0, 0.0, 0.0))
    assert bias == pytest.approx(0.25 * 0.1 + 0.25 * 0.3)
    assert sd == pytest.approx(math.sqrt(0.5 * 0.1**2 + 0.25 * 0.0**2 + 0.25 * 0.2**2))
    assert all(math.isnan(v) for v in difference(of(None, None, 0.1), of(0.1, 0.1, None)))


def test_it_is_kept_and_torn_files_are_made_anew(tmp_path: Path) -> None:
    first = fidelity(STATIC, made(), cache=PhaseCache(tmp_path))
    kept = list(tmp_path.glob("fidelity-*.json"))
    assert len(kept) == 1
    assert fidelity(STATIC, made(), cache=PhaseCache(tmp_path)) == first
    kept[0].write_text(kept[0].read_text().replace('"windows": 1', '"windows": 77'))
    assert fidelity(STATIC, made(), cache=PhaseCache(tmp_path)).windows == 77  # it was read
    kept[0].write_text("{ torn")
    assert fidelity(STATIC, made(), cache=PhaseCache(tmp_path)) == first
    assert fidelity(STATIC, made(), cache=PhaseCache()) == first


@pytest.mark.slow
def test_a_slice_stands_for_all_hosts() -> None:
    large = job(job_hosts=256.0, hosts=256.0, ranks=256.0, leaves=16.0, spines=8.0)
    found = fidelity(STATIC, large)
    assert found.cut > 0  # 3.5 GB from each of 256 hosts are over the budget
    assert abs(found.bias) < 0.02 and found.sd < 0.04


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joint", "routing_only", "compression_only"])
def test_policies_that_decide_stay_within_a_few_percent(name: str) -> None:
    found = fidelity(preset(name), job())
    assert abs(found.bias) < 0.05 and found.sd < 0.08


def test_a_lake_without_a_calibration_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lake", str(tmp_path)]) == 1
    assert "nothing is calibrated" in capsys.readouterr().out
    made().save(tmp_path / "calibrations")
    assert main(["--lake", str(tmp_path), "--policy", "static_dense"]) == 0
    assert "static_dense" in capsys.readouterr().out

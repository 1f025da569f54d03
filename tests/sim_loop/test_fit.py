"""The fits recover what a lake was made of, and refuse a lake that is not enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.sim_loop.lakes import HOSTS, LEAVES, SPINES, Truth, arrow, fill, make_lake, ns, rows_of
from xtune.errors import CalibrationError
from xtune.lake import Lake
from xtune.sim import Calibration, calibrate
from xtune.sim.fit_compute import chain_end
from xtune.sim.fit_loss import fit_curve

TRUTHS = (
    Truth(hours=0.6),
    Truth(
        seed=2, hours=0.6, compute_s=2.5, buckets=6, bucket_bytes=3_000_000_000, bucket_s=0.12,
        rate_per_h=30.0, length_s=25.0, slowdown=3.0, noise=0.0,
    ),
    Truth(
        seed=3, hours=0.6, compute_s=0.6, buckets=1, bucket_bytes=500_000_000, bucket_s=0.2,
        rate_per_h=10.0, length_s=90.0, slowdown=1.5, noise=0.05, floor=1.0, exponent=0.15,
    ),
)  # fmt: skip


@pytest.fixture(scope="module", params=TRUTHS, ids=["base", "large", "one_bucket"])
def fitted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Truth, Calibration]:
    truth: Truth = request.param
    return truth, calibrate(make_lake(tmp_path_factory.mktemp("lake"), truth))


def test_step_and_traffic_within_ten_percent(fitted: tuple[Truth, Calibration]) -> None:
    truth, c = fitted
    assert c["compute_s"] == pytest.approx(truth.compute_s, rel=0.1)
    assert c["step_s"] == pytest.approx(truth.compute_s + truth.bucket_s, rel=0.1)
    assert c["collective_bytes"] == pytest.approx(truth.bucket_bytes, rel=0.1)
    assert c["collectives_per_step"] == truth.buckets
    assert c.buckets == (truth.bucket_bytes,) * truth.buckets
    assert c["collective_s"] == pytest.approx(truth.bucket_s, rel=0.1)
    if truth.buckets > 1:
        share = 1 / 3 + 2 / 3 / truth.buckets
        assert c["first_bucket_share"] == pytest.approx(share, rel=0.1)


def test_episodes_within_a_quarter(fitted: tuple[Truth, Calibration]) -> None:
    truth, c = fitted
    assert c["episode_rate_per_h"] == pytest.approx(truth.rate_per_h, rel=0.25)
    assert c["episode_length_s"] == pytest.approx(truth.length_s, rel=0.25)
    assert c["episode_slowdown"] == pytest.approx(truth.slowdown, rel=0.05)
    rate = c.parameters["episode_rate_per_h"]
    assert rate.low is not None and rate.high is not None
    assert rate.low < truth.rate_per_h < rate.high


def test_noise_and_loss_curve(fitted: tuple[Truth, Calibration]) -> None:
    truth, c = fitted
    # The shortest of two ranks with the same duration is that duration.
    assert c["reading_noise"] == pytest.approx(truth.noise, rel=0.1, abs=1e-6)
    assert c.loss_kind == "power"
    assert c["loss_floor"] == pytest.approx(truth.floor, abs=0.15)
    assert c["loss_exponent"] == pytest.approx(truth.exponent, rel=0.15)
    assert c["loss_noise"] == pytest.approx(0.02, rel=0.1)


def test_fabric_and_ranks(fitted: tuple[Truth, Calibration]) -> None:
    _, c = fitted
    assert (c["hosts"], c["leaves"], c["spines"]) == (HOSTS, LEAVES, SPINES)
    assert c["ranks"] == HOSTS
    assert c["job_hosts"] == HOSTS  # two ranks are traced, each on a host of its own
    assert c["rate_gbps"] == 400.0
    assert c["element_bytes"] == 2.0


def test_every_parameter_says_what_it_rests_on(fitted: tuple[Truth, Calibration]) -> None:
    _, c = fitted
    for p in c.parameters.values():
        assert p.why, p.name
        assert p.assumed or (p.tables and p.n > 0), p.name
        assert np.isfinite(p.value), p.name
    assert {p.name for p in c.assumed} >= {"change_s", "penalty_lost", "codec_s_per_element"}


def test_rows_in_another_order_give_the_same_calibration(tmp_path: Path) -> None:
    truth = Truth(hours=0.3)
    one = calibrate(make_lake(tmp_path / "one", truth))
    lake = Lake.open(tmp_path / "two", create=True)
    for name, rows in rows_of(truth).items():
        for part in (rows[1::2][::-1], rows[::2]):
            if part:
                with lake.begin() as transaction:
                    transaction.write(name, arrow(name, part))
                    transaction.commit()
    two = calibrate(lake)
    assert two.to_json() == one.to_json()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("steps", "no training steps"),
        ("collectives", "no all-reduce or reduce-scatter"),
        ("derived/link_rates", "no link rates"),
    ],
)
def test_a_lake_that_is_not_enough_is_refused(tmp_path: Path, table: str, message: str) -> None:
    lake = make_lake(tmp_path, Truth(hours=0.2), without=(table,))
    with pytest.raises(CalibrationError, match=message) as caught:
        calibrate(lake)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_an_unknown_job_is_refused(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, Truth(hours=0.2))
    with pytest.raises(CalibrationError, match="no training steps of job 'other'"):
        calibrate(lake, job="other")


def test_without_episodes_or_topology_the_rest_still_fits(tmp_path: Path) -> None:
    truth = Truth(hours=0.3, rate_per_h=0.0)
    c = calibrate(make_lake(tmp_path, truth, without=("topology_links",)))
    rate = c.parameters["episode_rate_per_h"]
    assert rate.value == 0.0 and not rate.assumed
    assert rate.high == pytest.approx(3 / 0.3, rel=0.01)  # none seen in t hours: up to 3 / t
    assert c.parameters["leaves"].assumed
    assert c["compute_s"] == pytest.approx(truth.compute_s, rel=0.1)


def test_a_night_without_telemetry_is_not_free_of_episodes(tmp_path: Path) -> None:
    truth = Truth(hours=0.5, rate_per_h=20.0)
    rows = rows_of(truth)
    day = 86_400 * 1_000_000_000
    for name in ("derived/episodes", "derived/link_rates"):
        later = [
            {k: v + day if k.endswith("ts") else v for k, v in row.items()} for row in rows[name]
        ]
        if name == "derived/link_rates":  # the difference over the night
            later.append({**rows[name][-1], "ts": later[0]["ts"] - 1, "interval_s": 8.5e4})
        rows[name] += later
    c = calibrate(fill(tmp_path, rows))
    assert c["episode_rate_per_h"] == pytest.approx(20.0, rel=0.05)


def test_an_unnamed_training_at_another_time_is_not_mixed_in(tmp_path: Path) -> None:
    truth = Truth(hours=0.3)
    rows = rows_of(truth)
    for name in ("steps", "collectives", "derived/collective_impact"):
        for row in rows[name]:
            row["job"] = None
    day = 86_400 * 1_000_000_000
    rows["steps"] += [
        {**row, "ts": row["ts"] + day, "run": None, "loss": 0.1, "step_time_s": 0.01}
        for row in rows["steps"][:200]
    ]
    c = calibrate(fill(tmp_path, rows))
    assert c["step_s"] == pytest.approx(truth.compute_s + truth.bucket_s, rel=0.01)
    assert c["loss_floor"] == pytest.approx(truth.floor, abs=0.3)
    fit = c.parameters["loss_floor"].fit
    assert fit is not None and fit > 0.95


def test_whole_second_logs_do_not_shift_the_first_bucket(tmp_path: Path) -> None:
    truth = Truth(hours=0.5, compute_s=2.4, bucket_s=0.1, rate_per_h=6.0)
    rows = rows_of(truth)
    for row in rows["steps"]:
        row["ts"] = row["ts"] // 10**9 * 10**9
    c = calibrate(fill(tmp_path, rows))
    assert c["first_bucket_share"] == pytest.approx(0.5, abs=0.05)
    assert c["compute_s"] == pytest.approx(truth.compute_s, rel=0.02)
    assert c["collectives_per_step"] == 4


def test_an_exponential_curve_is_told_from_a_power_law() -> None:
    steps = np.arange(0.0, 2000.0, 5.0)
    random = np.random.default_rng(5)
    loss = 1.5 + 4.0 * np.exp(-steps / 300.0) + random.normal(0.0, 0.01, len(steps))
    loss[::40] += 3.0  # spikes must not pull the fit
    exponential, power = (fit_curve(kind, steps, loss) for kind in ("exponential", "power"))
    assert exponential.cost < power.cost
    assert exponential.floor == pytest.approx(1.5, abs=0.01)
    assert exponential.scale == pytest.approx(4.0, rel=0.01)
    assert exponential.rate == pytest.approx(1 / 300, rel=0.02)


def test_messages_in_one_queue_by_hand() -> None:
    # Ready at 1, 2, 3; the first two overlap: 1 + 1.5 = 2.5, then 2.5 + 1 = 3.5, then 4.
    assert chain_end([1.0, 2.0, 3.0], [1.5, 1.0, 0.5]) == 4.0
    assert ns(1.5) - ns(0.0) == 1_500_000_000


def test_another_job_in_the_lake_is_said_and_left_out(tmp_path: Path) -> None:
    truth = Truth(hours=0.3)
    rows = rows_of(truth)
    rows["steps"] += [
        {**row, "job": "other", "step_time_s": 9.0}
        for row in rows["steps"][: len(rows["steps"]) // 2]
    ]
    lake = fill(tmp_path, rows)
    c = calibrate(lake)
    assert c["step_s"] == pytest.approx(truth.compute_s + truth.bucket_s, rel=0.01)
    assert "2 jobs have steps: fitted on the one with most of them" in c.notes
    assert not any("jobs have steps" in n for n in calibrate(lake, job=c.job).notes)

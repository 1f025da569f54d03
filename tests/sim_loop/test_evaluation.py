"""Evaluation over seeds: intervals, pairs, executors."""

from __future__ import annotations

import json
import math
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.sim_loop.made import made
from xtune.policies.presets import preset
from xtune.sim import evaluate, mean_interval
from xtune.sim.evaluation import Metric

NOISY = made(episode_rate_per_h=60.0, episode_length_s=10.0, reading_noise=0.05)


def test_processes_and_here_give_the_same(tmp_path: Path) -> None:
    policy = preset("joint")
    here = evaluate(policy, NOISY, seeds=range(3), iterations=300)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        there = evaluate(
            policy, NOISY, seeds=range(3), iterations=300, executor=executor, cache_dir=tmp_path
        )
    assert there == here
    assert pickle.loads(pickle.dumps(here)) == here
    json.dumps(here.to_json(), allow_nan=False)


def test_pairs_are_by_seed_and_by_hand() -> None:
    base = evaluate(preset("static_dense"), NOISY, seeds=(1, 2), iterations=200)
    mine = evaluate(
        preset("joint"), NOISY, seeds=(1, 2), iterations=200, baselines={"dense": base.runs}
    )
    row = mine.against["dense"]["time_to_target_s"]
    expected = [
        (a.metrics["time_to_target_s"] - b.metrics["time_to_target_s"])
        / b.metrics["time_to_target_s"]
        for a, b in zip(mine.runs, base.runs, strict=True)
    ]
    assert row.per_seed == tuple(expected)
    assert row.mean == pytest.approx(np.mean(expected))
    # A dense run never regulates: a share of nothing is unknown.
    assert mine.against["dense"]["regulations"].mean is None
    with pytest.raises(ValueError, match="baseline dense has other seeds"):
        evaluate(
            preset("joint"), NOISY, seeds=(1,), iterations=200, baselines={"dense": base.runs}
        )


def test_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    hits = 0
    for _ in range(80):
        mean, low, high = mean_interval(random.normal(5.0, 1.0, 30).tolist())
        assert low <= mean <= high
        hits += low <= 5.0 <= high
    assert 70 <= hits <= 79  # 95 %, less what a percentile bootstrap of 30 lacks
    assert mean_interval([3.0]) == (3.0, 3.0, 3.0)


def test_a_seed_that_did_not_reach_the_target_makes_the_mean_unknown() -> None:
    metric = Metric.of([1.0, math.inf])
    assert metric.per_seed == (1.0, None)
    assert metric.mean is metric.low is metric.high is None

"""The loop: by hand where it is simple, and the period's optimum where it is not."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_loop.made import BUCKET_S, GBPS, made
from xtune.policies.ladder import DEFAULT_LADDER, Rung
from xtune.policies.presets import PRESETS, preset
from xtune.policies.spec import Policy
from xtune.sim import Run, simulate
from xtune.sim.background import Stretch
from xtune.sim.cache import PhaseCache
from xtune.sim.calibration import Calibration
from xtune.sim.loop import finish_times
from xtune.sim.network import CLEAR, state_of

CACHE = PhaseCache()  # cells depend on their key alone, so tests may share them


def run(policy: Policy | str, calibration: Calibration, **options: object) -> Run:
    policy = preset(policy) if isinstance(policy, str) else policy
    settings = {"seed": 0, "iterations": 200, "cache": CACHE, **options}
    return simulate(policy, calibration, **settings)  # type: ignore[arg-type]


def with_period(policy: Policy, iterations: int) -> Policy:
    return replace(policy, period=replace(policy.period, iterations=iterations))


def test_dense_on_a_clear_fabric_by_hand() -> None:
    # Ready at 0.05, 0.0667, 0.0833, 0.1 s; each takes 7 ms, so only the last one is exposed.
    r = run("static_dense", made())
    step = 0.1 + BUCKET_S
    assert r.reached and r.steps == 200
    assert r.metrics["time_to_target_s"] == pytest.approx(200 * step, rel=0.003)
    assert r.metrics["mean_comm_s"] == pytest.approx(4 * BUCKET_S, rel=0.01)
    assert r.metrics["steps_to_target"] == 200.0
    assert r.metrics["ratio_vs_bf16"] == pytest.approx(0.0, abs=1e-5)
    assert r.metrics["ratio_vs_fp32"] == pytest.approx(0.5, abs=1e-5)
    assert r.metrics["jitter_s"] == pytest.approx(0.0, abs=1e-9)
    assert r.metrics["regulations"] == r.metrics["control_changes"] == 0.0


def test_a_network_bound_step_by_hand() -> None:
    # First bucket after 5 ms, then four of 7 ms one after the other: 33 ms, whatever comes of it.
    r = run("static_dense", made(compute_s=0.01, step_s=0.005 + 4 * BUCKET_S))
    assert r.metrics["mean_step_s"] == pytest.approx(0.005 + 4 * BUCKET_S, rel=0.003)


def test_shares_and_the_perplexity_that_is_left_by_hand() -> None:
    dense = run("static_dense", made())
    # Only the last bucket is exposed: of 0.1 s and one bucket, that bucket.
    assert dense.metrics["exposed_share"] == pytest.approx(BUCKET_S / (0.1 + BUCKET_S), rel=0.01)
    assert dense.metrics["perplexity_penalty"] == 0.0
    # Every iteration is worth 1 / (1 + p): the loss after 200 of them is that of fewer.
    c = made(early_penalty=0.0, penalty_drop=1.0)
    drop = run("fixed_drop", c)
    done = 200 / (1 + drop.metrics["extra_steps"])
    left = 6.0 * ((done + 1) ** -0.3 - 201**-0.3)
    assert drop.metrics["extra_steps"] > 0.01
    assert drop.metrics["perplexity_penalty"] == pytest.approx(math.expm1(left), rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=30),
)
def test_buckets_end_one_after_the_other(pairs: list[tuple[float, float]]) -> None:
    end, expected = 0.0, []
    for ready, takes in pairs:
        end = max(end, ready) + takes
        expected.append(end)
    ready, takes = np.array(pairs).T
    assert finish_times(ready, takes) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_background_that_changes_to_the_same_changes_nothing() -> None:
    """Iterations within one stretch and those across its end take the same way to the time."""
    still = run("compression_only", made())
    broken = run(
        "compression_only",
        made(episode_rate_per_h=36_000.0, episode_length_s=0.05, episode_hit_share=0.0),
    )
    for name, value in still.metrics.items():
        assert broken.metrics[name] == pytest.approx(value, rel=1e-12, abs=1e-15), name


def test_measured_collective_time_scales_every_phase() -> None:
    one = run("static_dense", made())
    two = run("static_dense", made(collective_s=2 * BUCKET_S))
    assert two.metrics["mean_comm_s"] == pytest.approx(2 * one.metrics["mean_comm_s"], rel=0.01)


def test_half_of_a_two_phase_exchange_is_a_ring() -> None:
    """Only the all-to-all crosses the spines more than the ring of the all-reduce does.

    Four hosts a leaf over two uplinks: 12 of 15 destinations are under other leaves, so the
    uplinks take at least 4 * 12/15 / 2 = 1.6 times as long as the hosts' own ports, for half of
    the bytes; sends that wait for each other leave them idle now and then.
    """
    ring_s = 2 * 15 / 16 * 2e8 * 8 / (GBPS * 1e9)
    c = made(ranks=16.0, job_hosts=16.0, hosts=16.0, collective_s=ring_s)
    policy = preset("compression_only")
    ladder = (DEFAULT_LADDER[0], Rung(name="bf16", bits_input=16, bits_head=16))
    compression = replace(
        policy.compression, ladder=ladder, rung_by_level=(1, 1, 1, 1), warmup_iterations=0
    )
    r = run(replace(policy, compression=compression), c, iterations=20)
    assert r.metrics["ratio_vs_bf16"] == pytest.approx(0.0, abs=1e-3)
    assert 0.995 < r.metrics["mean_comm_s"] / (4 * ring_s * (1.6 + 1.0) / 2) < 1.06


def test_an_episode_slows_the_fixed_path_by_its_depth() -> None:
    # Episodes without gaps, nearly: the mean gap is at least a twentieth of the length.
    c = made(
        compute_s=0.004, episode_rate_per_h=60.0, episode_length_s=60.0, episode_slowdown=4.0,
        episode_length_shape=100.0,
    )  # fmt: skip
    clear = run("static_dense", made(compute_s=0.004), iterations=20_000)
    slow = run("static_dense", c, iterations=20_000)
    ratio = slow.metrics["mean_comm_s"] / clear.metrics["mean_comm_s"]
    assert 3.5 < ratio <= 4.05
    assert slow.metrics["jitter_s"] >= 0.0


def test_charges_are_made_when_they_happen_and_nothing_else_knows_t() -> None:
    joint = with_period(preset("joint"), 10)
    free = run(joint, made())
    regulations, changes = free.metrics["regulations"], free.metrics["control_changes"]
    assert (regulations, changes) == (20.0, 0.0)  # warm-up lasts 200 iterations
    paid = run(joint, made(regulation_s=0.01, change_s=5.0))
    extra = paid.metrics["time_to_target_s"] - free.metrics["time_to_target_s"]
    # The last regulation comes after the iteration that reached the target: not charged to it.
    assert extra == pytest.approx(0.01 * (regulations - 1), rel=1e-6)
    eager = replace(joint, compression=replace(joint.compression, warmup_iterations=0))
    started, charged = (run(eager, made(change_s=s)) for s in (0.0, 5.0))
    assert started.metrics["control_changes"] == charged.metrics["control_changes"]
    extra = charged.metrics["time_to_target_s"] - started.metrics["time_to_target_s"]
    assert extra == pytest.approx(5.0 * started.metrics["control_changes"], abs=1e-6)


def test_progress_under_compression_needs_more_iterations() -> None:
    joint = preset("joint")
    eager = replace(joint, compression=replace(joint.compression, warmup_iterations=0))
    r = run(eager, made(early_penalty=0.0, penalty_noise=1.61), iterations=300)
    assert r.metrics["extra_steps"] > 0
    assert r.reached and r.steps == math.ceil(r.metrics["steps_to_target"])
    never = run(eager, made(early_penalty=0.0, penalty_noise=16_100.0), iterations=30)
    assert not never.reached and math.isinf(never.metrics["time_to_target_s"])
    assert never.to_json()["metrics"]["time_to_target_s"] is None
    json.dumps(never.to_json(), allow_nan=False)


def test_the_same_seed_gives_the_same_run_whatever_ran_before(tmp_path: Path) -> None:
    c = made(episode_rate_per_h=30.0, reading_noise=0.1, compute_jitter=0.02, loss_noise=0.02)
    names = sorted(PRESETS)
    first = {n: simulate(preset(n), c, seed=3, iterations=300, cache_dir=tmp_path) for n in names}
    random.Random(1).shuffle(names)
    cache = PhaseCache()
    for name in names:
        again = simulate(preset(name), c, seed=3, iterations=300, cache=cache)
        assert again == first[name]
        other = simulate(preset(name), c, seed=4, iterations=300, cache=cache)
        assert other.metrics["time_to_target_s"] != again.metrics["time_to_target_s"]


def regulated() -> Policy:
    """Two rungs, off and 4 bits, by congestion alone: compression is dear in a clear fabric."""
    joint = preset("joint")
    ladder = joint.compression.ladder
    return replace(
        joint,
        routing=replace(joint.routing, mode="static"),
        compression=replace(
            joint.compression, ladder=(ladder[0], ladder[-1]), rung_by_level=(0, 0, 1, 1),
            warmup_iterations=0, least_gain=0.0, error_feedback=False, curvature_gain=0.0,
        ),
        bus=replace(
            joint.bus, smoothing=0.5, enter_slowdown=(1.2, 2.0, 9.0), exit_slowdown=(1.1, 1.6, 8.0)
        ),
        safety=replace(joint.safety, gate=-1.0),
    )  # fmt: skip


def network_bound(**values: float) -> Calibration:
    """An iteration of 0.93 s in a clear fabric, 2.1 s at a depth of three.

    At 4 bits it takes 0.6 to 0.8 s but makes half of the progress: worth it in an episode alone.
    """
    scale = 0.3 / BUCKET_S
    c = made(
        compute_s=0.5, first_bucket_share=0.667, collective_s=0.3, penalty_lost=1.0,
        penalty_noise=0.0, early_penalty=0.0,
    )  # fmt: skip
    size = round(c["collective_bytes"] * scale)
    two = made().buckets[:2]
    layers = tuple(
        replace(layer, elements=round(layer.elements * scale)) for layer in c.layers[:8]
    )
    c = replace(c, buckets=(size,) * len(two), layers=layers)
    return c.with_values(collective_bytes=float(size), **values)


@pytest.mark.parametrize("name", ["joint", "static_dense", "regulated"])
@pytest.mark.parametrize("slowdown", [1.0, 3.0])
def test_constant_background_and_clean_readings_make_t_flat_or_monotone(
    name: str, slowdown: float
) -> None:
    policy = regulated() if name == "regulated" else preset(name)
    policy = replace(policy, compression=replace(policy.compression, warmup_iterations=0))
    # One endless episode, or none.
    c = network_bound(
        episode_rate_per_h=0.0 if slowdown == 1.0 else 1e-4, episode_length_s=3.6e7,
        episode_length_shape=100.0, episode_slowdown=slowdown, change_s=0.3, regulation_s=0.001,
    )  # fmt: skip
    times = [
        run(with_period(policy, t), c, iterations=800, link_gbps=GBPS).metrics["time_to_target_s"]
        for t in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ]
    steps = np.diff(times)
    slack = 0.001 * 800  # seconds of all regulations at T = 1
    assert (steps >= -slack).all() or (steps <= slack).all(), times


def curve(length: int, periods: tuple[int, ...], seeds: int, iterations: int) -> dict[int, float]:
    """Mean time to target by T: episodes of ``length`` s half of the time, noisy readings."""
    c = network_bound(
        episode_rate_per_h=3600 / (2 * length), episode_length_s=float(length),
        reading_noise=0.5 * math.sqrt(2), change_s=1.0,
    )  # fmt: skip
    policies = {t: with_period(regulated(), t) for t in periods}
    return {
        t: float(
            np.mean(
                [
                    run(p, c, seed=s, iterations=iterations, link_gbps=GBPS).metrics[
                        "time_to_target_s"
                    ]
                    for s in range(seeds)
                ]
            )
        )
        for t, p in policies.items()
    }


def test_slower_background_moves_the_best_period_up() -> None:
    periods = (1, 4, 30, 400)
    fast = curve(60, periods, seeds=5, iterations=2500)
    slow = curve(1000, periods, seeds=5, iterations=6000)
    assert min(fast, key=lambda t: fast[t]) == 4, fast
    assert min(slow, key=lambda t: slow[t]) == 30, slow


def test_a_bucket_meets_the_background_of_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of 7 ms from 2 ms on; a port is four times as slow from 20 ms on: 9, 16, 23, 51."""

    class Turning:
        def __init__(self, *_: object) -> None:
            pass

        def at(self, time_s: float) -> Stretch:
            early = Stretch(end_s=0.02, state=CLEAR, place=0)
            late = Stretch(end_s=math.inf, state=state_of(4.0, edge=False), place=0)
            return early if time_s < early.end_s else late

    monkeypatch.setattr("xtune.sim.loop.Background", Turning)
    r = run("static_dense", made(compute_s=0.004), iterations=1)
    assert r.metrics["mean_step_s"] == pytest.approx(0.002 + 7 * BUCKET_S, rel=0.02)

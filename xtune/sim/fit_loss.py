"""Fits of the loss curve and of how much the gradient changes between iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats, bootstrap, median_interval, robust_sigma
from xtune.sim.calibration import Parameter
from xtune.sim.fit_steps import Intervals

HUBER = 1.345  # residuals beyond it, in standard deviations, count linearly (Huber 1964)
MOST_POINTS = 1000  # of a curve whose interval is taken
RESAMPLES = 100
RATE_REACH = 1.5  # rates this many times smaller and larger than the fitted one are tried
FEWEST = 8  # points for three free parameters and something left to judge the fit by
# Exponents of power laws seen in language model training lie around 0.05 to 0.5 (Kaplan et al.
# 2020); the range is wider, for other tasks and for short runs.
EXPONENTS = np.geomspace(0.02, 3.0, 61)
# Without a curve: the shape of a small language model's first thousands of steps.
ASSUMED_CURVE = {"loss_floor": 2.0, "loss_scale": 6.0, "loss_exponent": 0.25}
ASSUMED_NOISE = 0.03


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A fitted curve: floor + scale * shape(step, rate)."""

    kind: str
    floor: float
    scale: float
    rate: float
    sigma: float
    r2: float
    cost: float


def shape(kind: str, steps: Floats, rate: float) -> Floats:
    """(step + 1)^-rate for ``power``, exp(-step * rate) for ``exponential``; steps from 0."""
    if kind == "power":
        return np.asarray((steps + 1.0) ** -rate)
    return np.asarray(np.exp(-steps * rate))


def fit_curve(kind: str, steps: Floats, loss: Floats) -> Curve:
    """Robust fit: a grid over the rate, Huber-weighted least squares for floor and scale."""
    if kind == "power":
        grid = EXPONENTS
    else:
        longest = max(float(steps.max()), 1.0)
        grid = np.geomspace(0.3 / longest, 300.0 / longest, 61)
    best = min((_solve(kind, steps, loss, float(r)) for r in grid), key=lambda c: c.cost)
    ratio = float(grid[1] / grid[0])
    for _ in range(8):  # refine around the best of the grid
        ratio = ratio**0.4
        near = [best.rate * ratio**k for k in (-2, -1, 1, 2)]
        best = min([best, *(_solve(kind, steps, loss, r) for r in near)], key=lambda c: c.cost)
    return best


def _solve(kind: str, steps: Floats, loss: Floats, rate: float) -> Curve:
    basis = shape(kind, steps, rate)
    weights = np.ones_like(loss)
    floor, scale, sigma = 0.0, 0.0, 0.0
    residual = loss
    for _ in range(6):
        mean_b, mean_l = np.average(basis, weights=weights), np.average(loss, weights=weights)
        spread = np.average((basis - mean_b) ** 2, weights=weights)
        cross = np.average((basis - mean_b) * (loss - mean_l), weights=weights)
        scale = max(0.0, cross / spread) if spread > 0 else 0.0
        floor = mean_l - scale * mean_b
        if floor < 0:  # a loss is not negative: the line through the origin
            floor = 0.0
            scale = float(np.sum(weights * basis * loss) / np.sum(weights * basis**2))
        residual = loss - floor - scale * basis
        sigma = max(robust_sigma(residual), 1e-9 * float(np.abs(loss).max() or 1.0))
        weights = np.minimum(1.0, HUBER * sigma / np.maximum(np.abs(residual), 1e-300))
    # Cost on one scale for all rates: absolute deviations do not depend on each fit's own sigma.
    total = float(np.sum((loss - loss.mean()) ** 2))
    r2 = 1.0 - float(np.sum(residual**2)) / total if total > 0 else 0.0
    return Curve(
        kind=kind, floor=float(floor), scale=float(scale), rate=rate, sigma=sigma, r2=r2,
        cost=float(np.mean(np.abs(residual))),
    )  # fmt: skip


def curve_intervals(best: Curve, steps: Floats, loss: Floats) -> dict[str, tuple[float, float]]:
    """95 % intervals of floor, scale and rate, from resampled residuals.

    They take residuals for independent; a loss that wanders makes them too narrow.
    """
    every = max(1, len(steps) // MOST_POINTS)
    thin, observed = steps[::every], loss[::every]
    fitted = best.floor + best.scale * shape(best.kind, thin, best.rate)
    random = np.random.default_rng(20240917)
    rates = best.rate * np.geomspace(1 / RATE_REACH, RATE_REACH, 31)
    bases = np.array([shape(best.kind, thin, float(rate)) for rate in rates])
    bases -= bases.mean(axis=1, keepdims=True)
    bases /= np.sqrt((bases**2).sum(axis=1, keepdims=True))
    found = []
    for _ in range(RESAMPLES):
        drawn = fitted + random.choice(observed - fitted, len(thin))
        rate = _peak(np.log(rates), (bases @ drawn) ** 2)  # explained sum of squares
        found.append((*_line(shape(best.kind, thin, math.exp(rate)), drawn), math.exp(rate)))
    # As all points would have it, and a fit by absolute deviations, which needs pi / 2 times as
    # many points as one by squares.
    width = math.sqrt(len(thin) / len(steps) * math.pi / 2)
    values = np.array([best.floor, best.scale, best.rate])
    low, high = np.quantile(np.array(found), [0.025, 0.975], axis=0)
    ends = values + width * (np.array([low, high]) - values)
    names = ("loss_floor", "loss_scale", "loss_exponent")
    return {name: (max(0.0, float(a)), float(b)) for name, a, b in zip(names, *ends, strict=True)}


def _peak(at: Floats, values: Floats) -> float:
    """Where evenly spaced values are largest, by the parabola through the three around."""
    i = int(np.clip(np.argmax(values), 1, len(at) - 2))
    before, here, after = values[i - 1 : i + 2]
    bend = before - 2 * here + after
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return float(at[i] + np.clip(shift, -1.0, 1.0) * (at[1] - at[0]))


def _line(basis: Floats, loss: Floats) -> tuple[float, float]:
    """Floor and scale by plain least squares."""
    middle = basis - basis.mean()
    scale = float(middle @ loss / (middle @ middle))
    return float(loss.mean() - scale * basis.mean()), scale


def fit_loss(inputs: Inputs, job: str, covered: Intervals) -> tuple[str, tuple[Parameter, ...]]:
    """Form of the loss curve and its parameters, and the relative change of the gradient.

    Without a job's name, only steps within the telemetry's time belong together.
    """
    frame = inputs.read("steps", ["ts", "job", "run", "step", "split", "loss", "grad_norm"])
    if not job:
        first, last = int(covered[0, 0]), int(covered[-1, 1])
        within = frame.filter(pl.col("ts").is_between(first, last))
        frame = within if len(within) else frame
    frame = frame.filter(
        pl.col("split").fill_null("train") == "train", pl.col("job").fill_null("") == job
    ).sort("run", "step")
    gradient = _gradient_change(frame)
    points = frame.filter(pl.col("loss").is_finite(), pl.col("step").is_not_null())
    points = points.group_by("step").agg(pl.col("loss").median()).sort("step")
    if len(points) < FEWEST:
        return "power", (*_assumed(len(points)), *gradient)
    steps = points["step"].to_numpy().astype(float)
    if steps[0] >= 1:  # a log that calls its first iteration 1
        steps -= 1.0
    loss = points["loss"].to_numpy().astype(float)
    curves = [fit_curve(kind, steps, loss) for kind in ("power", "exponential")]
    best = min(curves, key=lambda c: c.cost)
    if best.scale <= 0:
        return "power", (*_assumed(len(points), "the loss does not fall"), *gradient)
    residual = loss - best.floor - best.scale * shape(best.kind, steps, best.rate)
    low, high = bootstrap(residual, robust_sigma, rounds=200)
    table = ("steps",)
    n = len(points)
    ends = curve_intervals(best, steps, loss)
    values = (
        ("loss_floor", best.floor, "nat"), ("loss_scale", best.scale, "nat"),
        ("loss_exponent", best.rate, "" if best.kind == "power" else "1/step"),
    )  # fmt: skip
    return best.kind, (
        *(
            Parameter(
                name=name, value=value, low=ends[name][0], high=ends[name][1], unit=unit, n=n,
                tables=table, fit=best.r2, fit_kind="r2",
                why=f"{best.kind} curve of the step, Huber-weighted",
            )
            for name, value, unit in values
        ),
        Parameter(
            name="loss_noise", value=best.sigma, low=min(low, best.sigma),
            high=max(high, best.sigma), unit="nat", n=n,
            tables=table, why="spread (MAD) of the loss around the curve",
        ),
        *gradient,
    )  # fmt: skip


def _assumed(n: int, why: str = "") -> tuple[Parameter, ...]:
    why = why or f"{n} steps with a loss are too few for a curve"
    curve = tuple(
        Parameter(
            name=name, value=value, unit="" if name == "loss_exponent" else "nat", assumed=True,
            why=f"{why}: shape of a small language model's first thousands of steps",
        )
        for name, value in ASSUMED_CURVE.items()
    )  # fmt: skip
    return (
        *curve,
        Parameter(name="loss_noise", value=ASSUMED_NOISE, unit="nat", assumed=True, why=why),
    )


def _gradient_change(frame: pl.DataFrame) -> tuple[Parameter, Parameter]:
    """Median of |norm(t) - norm(t - 1)| / norm(t - 1) over consecutive steps."""
    pairs = frame.filter(pl.col("grad_norm") > 0, pl.col("grad_norm").is_finite()).with_columns(
        pl.col("grad_norm").shift(1).over("run").alias("last"),
        (pl.col("step").diff().over("run")).alias("gap"),
    )
    pairs = pairs.filter(pl.col("gap") == 1)
    change = ((pairs["grad_norm"] - pairs["last"]).abs() / pairs["last"]).to_numpy()
    if len(change) < FEWEST:
        why = f"{len(change)} pairs of consecutive gradient norms are too few"
        return (
            Parameter(name="gradient_change", value=0.1, assumed=True, why=f"{why}: a tenth"),
            Parameter(name="gradient_change_sigma", value=0.5, assumed=True, why=why),
        )
    value, low, high = median_interval(change)
    moved = np.log(change[change > 0])
    sigma = bootstrap(moved, robust_sigma, rounds=200)
    return (
        Parameter(
            name="gradient_change", value=value, low=low, high=high, n=len(change),
            tables=("steps",), why="median relative change of the gradient norm in one step",
        ),
        Parameter(
            name="gradient_change_sigma", value=robust_sigma(moved), low=sigma[0], high=sigma[1],
            n=len(moved), tables=("steps",), why="standard deviation (MAD) of its log",
        ),
    )  # fmt: skip

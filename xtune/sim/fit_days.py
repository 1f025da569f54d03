"""Which days are held out, and what a calibration for them takes from them alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import polars as pl

from xtune.errors import CalibrationError
from xtune.sim.calibration import Calibration, Parameter
from xtune.sim.fit_steps import Intervals

DAY_NS = 86_400_000_000_000
HELD_OUT_SHARE = 4  # one day in so many, by default
SLIVER = 0.1  # of the best covered day: what is covered less is no day of its own
RARE = 0.01  # p-value below which days count as unlike each other
SHARED = "of the days before; "  # begins the reason of what the held-out days did not show
# What a day shows by itself. The job (sizes, ranks, layers), the fabric and the loss curve, whose
# start a later day does not show, are those of the days before.
OWN = (
    "background_load", "collective_s", "compute_jitter", "compute_s", "episode_edge_share",
    "episode_hit_share", "episode_length_s", "episode_length_shape", "episode_rate_per_h",
    "episode_slowdown", "episode_slowdown_sigma", "first_bucket_share", "gradient_change",
    "gradient_change_sigma", "loss_noise", "reading_noise", "step_s",
)  # fmt: skip


def day_seconds(covered: Intervals) -> dict[int, float]:
    """Seconds of telemetry by UTC day, in days since the epoch.

    Args:
        covered: (n, 2) disjoint intervals in ns.
    """
    days: dict[int, float] = {}
    for start, end in covered.tolist():
        for day in range(start // DAY_NS, (end - 1) // DAY_NS + 1):
            inside = min(end, (day + 1) * DAY_NS) - max(start, day * DAY_NS)
            days[day] = days.get(day, 0.0) + inside * 1e-9
    return days


def held_out_from(covered: Intervals, asked: int | None) -> int | None:
    """First instant of the held-out days, ns; None where no day is held out.

    Args:
        covered: (n, 2) disjoint intervals in ns over which the fabric was watched.
        asked: How many of the last days; None: a quarter of them, at least one if there are two.

    Raises:
        CalibrationError: As many days as there are, or more, were asked for.
    """
    seconds = day_seconds(covered)
    least = SLIVER * max(seconds.values())
    days = sorted(day for day, length in seconds.items() if length >= least)
    count = asked
    if count is None:
        count = 0 if len(days) < 2 else max(1, len(days) // HELD_OUT_SHARE)
    if count <= 0:
        return None
    if count >= len(days):
        raise CalibrationError(
            f"{count} days held out leave none to fit: {len(days)} have link rates",
            "hold out fewer, or collect another day",
        )
    return days[-count] * DAY_NS


def for_held_out(
    tuning: Calibration, alone: Iterable[Parameter], covered: Intervals, why: str
) -> Calibration:
    """The calibration of the held-out days: what they show by themselves, and the rest.

    Args:
        tuning: Of the days before.
        alone: Fitted on the held-out days alone.
        covered: When they were watched.
        why: Why not all that could be is fitted on them; "" where it is.
    """
    own = {p.name: p for p in alone if p.name in OWN and not p.assumed}
    shared = {
        n: replace(p, why=SHARED + p.why) for n, p in tuning.parameters.items() if n not in own
    }
    note = (
        f"{len(own)} parameters are of the held-out days alone, {len(shared)} of the days before"
    )
    return replace(
        tuning,
        parameters={**shared, **own},
        span_ns=(int(covered[0, 0]), int(covered[-1, 1])),
        notes=(*tuning.notes, f"{note}: {why}" if why else note),
    )


def stationarity_notes(episodes: pl.DataFrame, covered: Intervals) -> tuple[str, ...]:
    """Says where the rate of episodes changes between days by more than chance."""
    seconds = day_seconds(covered)
    starts = (episodes["start_ts"] // DAY_NS).to_list()
    found = dispersion([starts.count(day) for day in seconds], list(seconds.values()))
    if found is None or found[1] >= RARE:
        return ()
    return (
        f"episodes do not come at one rate on all {len(seconds)} days: their number varies"
        f" {found[0]:.3g} times as much as chance (p = {found[1]:.2g}); the interval of"
        " episode_rate_per_h is too narrow by the root of that",
    )


def dispersion(counts: list[int], seconds: list[float]) -> tuple[float, float] | None:
    """Whether events come at one rate on all days: variance over a Poisson's, and p-value.

    Pearson's chi-square of the counts against shares of the time (Cochran 1954).

    Args:
        counts: Events of each day.
        seconds: Time that each day was watched.

    Returns:
        None with fewer than two days, or fewer than five events a day on average: too few.
    """
    from scipy.stats import chi2

    total, days = sum(counts), len(counts)
    if days < 2 or total < 5 * days:
        return None
    expected = total * np.asarray(seconds) / sum(seconds)
    statistic = float(((np.asarray(counts) - expected) ** 2 / expected).sum())
    return statistic / (days - 1), float(chi2.sf(statistic, days - 1))

"""Fits of the background: how often congestion episodes come, how long and how deep they are."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from xtune.errors import CalibrationError
from xtune.sim._inputs import Inputs
from xtune.sim._stats import (
    Floats,
    bootstrap,
    median_interval,
    poisson_interval,
    robust_sigma,
    share_interval,
)
from xtune.sim.calibration import Parameter
from xtune.sim.fit_steps import Intervals

TABLE = ("derived/episodes",)
HIT_SLOWDOWN = 1.05
LONGEST_INTERVAL = 10.0  # median intervals; longer ones count as not looked
ENOUGH_FOR_SHAPE = 5  # episodes below which a spread of lengths says nothing
# Median slowdown where no collective was seen inside an episode: enough to be noticed by the
# default levels (1.15, 1.5, 2.5) and far from the worst.
ASSUMED_SLOWDOWN = 1.5
ASSUMED_SIGMA = 0.3


def read_episodes(inputs: Inputs) -> pl.DataFrame:
    """Derived episodes, times in ns."""
    columns = ["start_ts", "end_ts", "root_link", "cause", "evidence", "slowdown"]
    return inputs.read("derived/episodes", columns).sort("start_ts", "end_ts", "root_link")


def read_rates(inputs: Inputs) -> pl.DataFrame:
    """Derived link rates, times in ns."""
    return inputs.read("derived/link_rates", ["ts", "interval_s", "link", "tx_gbps"])


def busy_intervals(episodes: pl.DataFrame) -> Intervals:
    """(n, 2) disjoint intervals in ns in which at least one episode is open."""
    merged: list[list[int]] = []
    for start, end in episodes.select("start_ts", "end_ts").iter_rows():
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, dtype=np.int64).reshape(-1, 2)


def covered_intervals(rates: pl.DataFrame) -> Intervals:
    """(n, 2) disjoint intervals in ns over which some link rate is known.

    Two days of telemetry with a night between them are two intervals: what nobody looked at must
    not count as free of episodes.

    Raises:
        CalibrationError: There are no link rates.
    """
    if rates.is_empty():
        raise CalibrationError(
            "the lake holds no link rates: no episode and not looked cannot be told apart",
            "collect link counters and run xtune rebuild",
        )
    # The first sample after a night closes an interval as long as the night: a rate, but no
    # episode could have been seen in it.
    longest = LONGEST_INTERVAL * float(rates["interval_s"].median())  # type: ignore[arg-type]
    seen = rates.filter(pl.col("interval_s") <= longest).select(
        (pl.col("ts") - (pl.col("interval_s") * 1e9).cast(pl.Int64)).alias("start_ts"),
        pl.col("ts").alias("end_ts"),
    )
    return busy_intervals(seen.unique().sort("start_ts", "end_ts"))


def fit_episodes(
    episodes: pl.DataFrame, covered: Intervals, edge_links: frozenset[str]
) -> tuple[Parameter, ...]:
    """Rate, length (mean, shape), depth (median slowdown, spread) of the episode process.

    Args:
        episodes: From ``read_episodes``.
        covered: From ``covered_intervals``.
        edge_links: Links of the job's own hosts, which no path avoids.
    """
    hours = float((covered[:, 1] - covered[:, 0]).sum()) / 3.6e12
    n = len(episodes)
    low, high = poisson_interval(n)
    rate = Parameter(
        name="episode_rate_per_h", value=n / hours, low=low / hours, high=high / hours,
        unit="1/h", n=n, tables=("derived/episodes", "derived/link_rates"),
        why=f"{n} episodes in {hours:.3g} h of link rates; interval: Poisson count",
    )  # fmt: skip
    return (rate, *_length(episodes, covered), *_depth(episodes, edge_links))


def _length(episodes: pl.DataFrame, covered: Intervals) -> tuple[Parameter, Parameter]:
    lengths = (episodes["end_ts"] - episodes["start_ts"]).to_numpy() / 1e9
    # An episode that the edge of the telemetry, or an unknown interval, cuts off lasted at least
    # as long as was seen: its time counts, its end does not (the exponential's estimate).
    starts, ends = episodes["start_ts"].to_numpy(), episodes["end_ts"].to_numpy()
    cut = episodes["evidence"].fill_null("").str.contains("end_unknown", literal=True).to_numpy()
    cut = cut | np.isin(starts, covered[:, 0]) | np.isin(ends, covered[:, 1])
    ended = int((~cut).sum())
    if not ended:
        mean = Parameter(
            name="episode_length_s", value=60.0, unit="s", assumed=True,
            why="no episode has a known start and end: one minute",
        )  # fmt: skip
        return mean, _assumed_shape(0)
    value = float(lengths.sum()) / ended
    low, high = bootstrap(lengths, lambda v: float(v.sum()) / ended * len(lengths) / len(v))
    mean = Parameter(
        name="episode_length_s", value=value, low=low, high=high, unit="s", n=len(lengths),
        tables=TABLE, why=f"time in episodes over the {ended} that ended in sight",
    )  # fmt: skip
    whole = lengths[~cut]
    if len(whole) < ENOUGH_FOR_SHAPE or whole.std() == 0:
        return mean, _assumed_shape(len(whole))
    low, high = bootstrap(whole, _gamma_shape, rounds=400)
    return mean, Parameter(
        name="episode_length_shape", value=_gamma_shape(whole), low=low, high=high, n=len(whole),
        tables=TABLE,
        why="gamma shape, (mean / standard deviation)^2; 1 is exponential",
    )  # fmt: skip


def _gamma_shape(lengths: Floats) -> float:
    """From the coefficient of variation; beyond 100 lengths are as good as fixed."""
    spread = float(lengths.std(ddof=1))
    return min(100.0, (float(lengths.mean()) / spread) ** 2) if spread > 0 else 100.0


def _assumed_shape(n: int) -> Parameter:
    return Parameter(
        name="episode_length_shape", value=1.0, assumed=True,
        why=f"{n} whole episodes are too few for a spread of lengths: exponential",
    )  # fmt: skip


def _depth(episodes: pl.DataFrame, edge_links: frozenset[str]) -> tuple[Parameter, ...]:
    known = episodes.filter(pl.col("slowdown").is_not_null())
    if known.is_empty():
        why = "no collective was seen inside an episode"
        return (
            _assume("episode_hit_share", 1.0, f"{why}: every episode taken to slow the job"),
            _assume("episode_slowdown", ASSUMED_SLOWDOWN, f"{why}: the second default level"),
            _assume("episode_slowdown_sigma", ASSUMED_SIGMA, why),
            _assume("episode_edge_share", 0.0, f"{why}: all of them between switches"),
        )
    # Below the threshold an episode elsewhere in the fabric and one that costs the job nothing
    # look the same, and are the same for it.
    hits = known.filter(pl.col("slowdown") >= HIT_SLOWDOWN)
    low, high = share_interval(len(hits), len(known))
    share = Parameter(
        name="episode_hit_share", value=len(hits) / len(known), low=low, high=high,
        n=len(known), tables=TABLE,
        why=f"share of episodes with a slowdown of at least {HIT_SLOWDOWN}",
    )  # fmt: skip
    if hits.is_empty():
        why = "no episode slowed the job"
        return (
            share,
            _assume("episode_slowdown", 1.0, why),
            _assume("episode_slowdown_sigma", 0.0, why),
            _assume("episode_edge_share", 0.0, why),
        )
    slowdown = hits["slowdown"].to_numpy()
    value, low, high = median_interval(slowdown)
    sigma = bootstrap(np.log(slowdown), robust_sigma, rounds=200)
    few = len(hits) < ENOUGH_FOR_SHAPE
    edge = int(hits["root_link"].is_in(sorted(edge_links)).fill_null(False).sum())
    edge_low, edge_high = share_interval(edge, len(hits))
    return (
        share,
        Parameter(
            name="episode_slowdown", value=value, low=low, high=high, n=len(hits), tables=TABLE,
            why="median over the episodes that slowed the job's collectives",
        ),
        _assume("episode_slowdown_sigma", ASSUMED_SIGMA,
                f"{len(hits)} episodes are too few for a spread of depths")
        if few else Parameter(
            name="episode_slowdown_sigma", value=robust_sigma(np.log(slowdown)), low=sigma[0],
            high=sigma[1], n=len(hits), tables=TABLE,
            why="standard deviation of the log of the slowdown (MAD)",
        ),
        Parameter(
            name="episode_edge_share", value=edge / len(hits), low=edge_low, high=edge_high,
            n=len(hits),
            tables=(*TABLE, "topology_links", "collectives"),
            why="share of them whose root is the own link of a host seen in the job's traces",
        ),
    )  # fmt: skip


def _assume(name: str, value: float, why: str) -> Parameter:
    return Parameter(name=name, value=value, assumed=True, why=why)


def fit_background(
    rates: pl.DataFrame, busy: Intervals, own_gbps: float, rate_gbps: float
) -> Parameter:
    """Share of a link that others use outside episodes."""
    frame = rates.filter(pl.col("tx_gbps").is_not_null())
    times = frame["ts"].to_numpy()
    clear = np.ones(len(times), dtype=bool)
    for low, high in busy:
        clear &= (times < low) | (times > high)
    frame = frame.filter(pl.Series("clear", clear))
    if frame.is_empty():
        return Parameter(
            name="background_load", value=0.0, assumed=True,
            why="no link rate outside episodes: others assumed silent",
        )  # fmt: skip
    per_link = frame.group_by("link").agg(
        (pl.col("tx_gbps") * pl.col("interval_s")).sum() / pl.col("interval_s").sum()
    )
    # Idle ports (unused, management) would hide the load of the ports that carry traffic.
    used = per_link.filter(pl.col("tx_gbps") > 0.01 * rate_gbps)["tx_gbps"].to_numpy()
    if not len(used):
        return Parameter(
            name="background_load", value=0.0, high=0.01, n=len(frame),
            tables=("derived/link_rates",), why="no port sends 1 % of its rate outside episodes",
        )  # fmt: skip
    others = np.clip((used - own_gbps) / rate_gbps, 0.0, 0.95)
    value, low, high = median_interval(others)
    return Parameter(
        name="background_load", value=value, low=low, high=high, n=len(used),
        tables=("derived/link_rates",), fit=robust_sigma(others), fit_kind="spread over links",
        why=f"median load of {len(used)} used ports outside episodes, less the job's own"
        f" {own_gbps:.4g} Gb/s",
    )  # fmt: skip


def clear_gap_s(rate_per_h: float, length_s: float) -> float:
    """Mean time between the end of an episode and the start of the next; inf for none."""
    if rate_per_h <= 0:
        return math.inf
    return max(3600.0 / rate_per_h - length_s, 0.05 * length_s)

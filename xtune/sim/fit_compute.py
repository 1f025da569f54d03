"""How much of a step is compute, from the clean step and its collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

# Backward costs about twice the forward pass in operations (two matrix products for one), so a
# third of the compute time has passed before the first gradient can exist.
FORWARD_SHARE = 1 / 3


def chain_end(ready: Sequence[float], durations: Sequence[float]) -> float:
    """When the last of several messages that share one ordered queue is done."""
    end = 0.0
    for at, takes in zip(ready, durations, strict=True):
        end = max(at, end) + takes
    return end


def compute_seconds(
    rows: pl.DataFrame, step_s: float, collective_s: float, buckets: int
) -> tuple[float, float, str]:
    """Compute time for which the simulator's own overlap model gives the clean step.

    Returns compute seconds, the share of it that has passed when the first bucket is ready, and
    how that was found.
    """
    durations = [collective_s] * buckets
    offset, why = _first_offset(rows, buckets)

    def ready(compute: float) -> list[float]:
        share = FORWARD_SHARE + (1 - FORWARD_SHARE) / buckets
        first = min(offset, compute) if offset is not None else compute * share
        return [first + (compute - first) * i / max(1, buckets - 1) for i in range(buckets)]

    if buckets == 1:
        compute = max(0.0, step_s - collective_s)
        return compute, 1.0, "one collective a step, wholly exposed"
    if offset is not None and step_s <= 1.02 * (offset + sum(durations)):
        # The network never idles after the first bucket, so nothing shows when the others were
        # ready: the share of compute before the first bucket has to be assumed.
        share = FORWARD_SHARE + (1 - FORWARD_SHARE) / buckets
        compute = min(max(offset / share, offset), max(offset, step_s - collective_s))
        return compute, offset / compute if compute > 0 else 1.0, f"network-bound step; {why}"
    low, high = 0.0, step_s
    for _ in range(80):  # bisection: the end of the chain grows with compute
        middle = (low + high) / 2
        if max(middle, chain_end(ready(middle), durations)) < step_s:
            low = middle
        else:
            high = middle
    compute = (low + high) / 2
    return compute, ready(compute)[0] / compute if compute > 0 else 1.0, why


def _first_offset(rows: pl.DataFrame, buckets: int) -> tuple[float | None, str]:
    """Seconds from the end of a step's last bucket to the start of the next step's first one.

    By the collectives' own clock: a training log may cut its times to whole seconds. The first
    bucket of a step is the one with the longest silence before it, since a forward pass
    lies there.
    """
    silences: list[list[float]] = [[] for _ in range(buckets)]
    for _, group in rows.group_by("comm"):
        known = group.filter(pl.col("start_ns").is_not_null(), pl.col("duration_ns").is_not_null())
        ordered = known.sort("seq")
        starts = ordered["start_ns"].to_numpy()
        ends = starts + ordered["duration_ns"].to_numpy()
        clean = ordered["clean"].to_numpy()
        next_one = np.diff(ordered["seq"].to_numpy()) > 0
        use = next_one & clean[1:] & clean[:-1]
        places = np.arange(1, len(starts)) % buckets
        for place in range(buckets):
            pick = use & (places == place)
            silences[place].extend(((starts[1:] - ends[:-1])[pick] / 1e9).tolist())
    medians = [float(np.median(s)) for s in silences if len(s) >= 3]
    if len(medians) < buckets or max(medians) <= 0:
        return (
            None,
            "first bucket assumed ready after the forward third and one bucket of backward",
        )
    return max(medians), f"first bucket {max(medians):.4g} s after the last step's last one"

"""Figures of a demonstration: of flows by sequence numbers, of paths by probes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Plain = dict[str, Any]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not below so large a share of them; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1e6) * len(ordered) // 10**6) - 1))]


def median_interval(values: Sequence[float], seed: int, draws: int = 2000) -> list[float] | None:
    """95 % bootstrap interval of the median; None of fewer than two values."""
    if len(values) < 2:
        return None
    rng = random.Random(seed)
    medians = sorted(
        quantile(rng.choices(values, k=len(values)), 0.5) or 0.0 for _ in range(draws)
    )
    return [medians[int(0.025 * draws)], medians[int(0.975 * draws)]]


def packets(sent: Mapping[str, Any], arrived: Mapping[str, Any] | None) -> Plain:
    """One UDP flow over one burst.

    Args:
        sent: What its sender told.
        arrived: What its receiver told of that burst, None where nothing came.
    """
    found: Plain = {
        "received": 0, "bytes": 0, "reordered": 0, "delay_ns": {}, "longest_gap_ns": None
    }  # fmt: skip
    found |= arrived or {}
    seconds = sent["seconds"]
    return {
        "sent": sent["sent"], "unsent": sent["unsent"], "received": found["received"],
        "loss": 1.0 - found["received"] / sent["sent"] if sent["sent"] else None,
        "seconds": seconds, "received_mbps": found["bytes"] * 8 / seconds / 1e6,
        "reordered": found["reordered"], "delay_ms": delays_ms(found),
        "longest_gap_ms": None if found["longest_gap_ns"] is None
        else found["longest_gap_ns"] / 1e6,
    }  # fmt: skip


def delays_ms(arrived: Mapping[str, Any]) -> dict[str, float]:
    """Quantiles of a burst's one-way delay in ms, and its jitter: p99.9 less the median.

    Args:
        arrived: What a receiver told of it.
    """
    found = {q: ns / 1e6 for q, ns in arrived["delay_ns"].items()}
    return found | {"jitter": found["0.999"] - found["0.5"]} if found else {}


def probes(log: Path, path: int, first_ns: int, last_ns: int) -> Plain:
    """Round trips of one path between two times of the wall clock.

    Args:
        log: Of the agent.
        path: Its number.
        first_ns: From when on probes were sent.
        last_ns: Until when.
    """
    lines = [x for x in _lines(log) if x["path"] == path and first_ns <= x["ts_ns"] <= last_ns]
    trips = [x["rtt_ns"] / 1e6 for x in lines if not x["lost"]]
    return {
        "probes": len(lines), "lost": len(lines) - len(trips),
        "rtt_ms": {f"{q:g}": quantile(trips, q) for q in (0.5, 0.9, 0.99)},
    }  # fmt: skip


def reasons(log: Path, first_ns: int, last_ns: int) -> dict[str, int]:
    """Why an engine moved its flow between two times of the wall clock, with counts.

    Args:
        log: Its decisions; none where there is no file.
        first_ns: From when on.
        last_ns: Until when.
    """
    if not log.exists():
        return {}
    lines = [x for x in _lines(log) if x["kind"] == "path" and first_ns <= x["ts_ns"] <= last_ns]
    return dict(Counter(line["reason"].rpartition(": ")[2] for line in lines))


def _lines(log: Path) -> Iterator[Plain]:
    for line in log.read_bytes().split(b"\n"):
        if line.endswith(b"}"):  # an agent that was killed leaves half a line
            yield json.loads(line)

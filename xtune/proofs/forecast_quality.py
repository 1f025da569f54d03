"""How well forecasts warn of full queues, on traces from the simulator and of real ones.

    python -m xtune.proofs.forecast_quality [--seed S] [--tc] [--out F.json]

An event is a queue that reaches ``enter_occupancy`` after it was below ``exit_occupancy``. Every
forecaster of the engine sees the same readings, at 1, 10 and 50 us (1, 5 and 20 ms of the kernel's
queues), without and with noise, and its warnings are judged by the fine trace. Moves are those of
the real router, whose flows have two paths each; the trace does not change by them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.policies import BurstSchedule, ForecastTable, Policy, Router
from xtune.policies.forecast_gains import Gains, estimate_gains
from xtune.policies.spec import Routing
from xtune.proofs.command import check_out, write_report
from xtune.proofs.forecast_scores import Truth, find_events, score
from xtune.proofs.forecast_tc import measure
from xtune.proofs.forecast_traces import BUFFERS, REGIMES, Trace, simulate

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEAST_SCALE = 0.05  # shorter traces have no whole burst
NOISE = 0.05  # standard deviation of a noisy reading, as occupancy
MOST_TURNS = 5_000  # of a router on one trace
LENGTHS_NS = {"1 MB": 40_000_000, "16 MB": 200_000_000}
CASES = ((1_000, 0.0), (10_000, 0.0), (50_000, 0.0), (10_000, NOISE))  # interval, noise
TC_EVERY_NS = (1_000_000, 5_000_000)
HEADINGS = (
    "readings", "forecast", "base rate", "precision", "recall", "lead p50 / p10, us",
    "false alarms a link-second", "moves a flow and ms", "units into a full queue",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One forecaster under comparison.

    Attributes:
        forecast: As `Routing.forecast` names it.
        threshold: A forecast at or above it is a warning; None: the policy's.
        marks: It is told of congestion marks.
        schedule: It is told of the own job's bursts.
        fitted: Its gains are estimated from the readings.
        blind: It is not told of the queue.
    """

    forecast: str = "holt"
    threshold: float | None = None
    marks: bool = False
    schedule: bool = False
    fitted: bool = False
    blind: bool = False


METHODS = {
    "reading": Method(forecast="reading"),
    "level 40 %": Method(forecast="reading", threshold=0.4),
    "ewma": Method(forecast="ewma"),
    "slope": Method(forecast="slope"),
    "holt": Method(),
    "holt fitted": Method(fitted=True),
    "holt + marks": Method(marks=True),
    "holt + schedule": Method(schedule=True),
    "marks alone": Method(forecast="reading", marks=True, blind=True),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Readings:
    """What a forecaster sees of a trace.

    Attributes:
        index: Time index of each reading.
        occupancy: Shape (readings, links).
        marks: Share of packets marked since the reading before, the probe among them.
    """

    index: I64
    occupancy: F64
    marks: F64


def take_readings(
    trace: Trace, every_ns: int, noise: float, routing: Routing, rng: np.random.Generator
) -> Readings:
    """Readings of a trace at equal intervals, and marks as switches would set them.

    Args:
        trace: The trace.
        every_ns: Interval.
        noise: Standard deviation that is added; what leaves 0..1 is cut.
        routing: Has the marking curve.
        rng: Draws noise and marks.
    """
    times = np.arange(trace.at_ns[0], trace.at_ns[-1], every_ns)
    index = np.unique(np.searchsorted(trace.at_ns, times))  # a gap gives one reading
    exact = trace.occupancy[index]
    readings = exact
    if noise:
        readings = np.clip(exact + rng.normal(0.0, noise, exact.shape), 0.0, 1.0)
    low, high = routing.mark_low_occupancy, routing.mark_high_occupancy
    fine = np.clip((trace.occupancy - low) / (high - low), 0.0, 1.0) * routing.mark_top_share
    fine[trace.occupancy >= high] = 1.0
    busy = trace.occupancy > 0.0
    starts = np.concatenate([[0], index[:-1] + 1])  # since the reading before, with this one
    # And one probe, which meets the queue as it is read.
    packets = np.add.reduceat(busy, starts, dtype=np.int64) * trace.packets + 1
    chances = np.add.reduceat(fine * busy, starts) * trace.packets + fine[index]
    marked = rng.binomial(packets, np.minimum(chances / packets, 1.0))
    return Readings(index=index, occupancy=readings, marks=marked / packets)


class _Bursts:
    """Tells a schedule of a trace's bursts as time goes on."""

    def __init__(self, trace: Trace) -> None:
        begins = [(int(begin), True) for begin, _ in trace.bursts]
        ends = [(int(end), False) for _, end in trace.bursts]
        self.schedule = BurstSchedule()
        self._told = sorted(begins + ends, reverse=True)

    def until(self, at_ns: int) -> None:
        while self._told and self._told[-1][0] <= at_ns:
            when, begins = self._told.pop()
            (self.schedule.begin if begins else self.schedule.end)(when)


def warnings(
    trace: Trace, readings: Readings, method: Method, routing: Routing
) -> NDArray[np.bool_]:
    """Which readings made a forecaster warn, shape (readings, links)."""
    table = ForecastTable(readings.occupancy.shape[1], routing)
    bursts = _Bursts(trace)
    if method.schedule:
        table.expect(bursts.schedule)
    threshold = routing.enter_occupancy if method.threshold is None else method.threshold
    warned = np.zeros(readings.occupancy.shape, np.bool_)
    for i, at_ns in enumerate(trace.at_ns[readings.index]):
        bursts.until(int(at_ns))
        marks = readings.marks[i] if method.marks else None
        table.update(readings.occupancy[i], int(at_ns), marks)
        warned[i] = table.peak(routing.horizon_ns) >= threshold
    return warned


def moves(
    trace: Trace, readings: Readings, method: Method, routing: Routing, truth: Truth
) -> tuple[float, float]:
    """What the router makes of the same readings: a unit of each flow at each reading.

    Returns:
        Moves of a flow in a millisecond, and the share of units that met a hot link.
    """
    if method.threshold is not None:
        routing = replace(routing, enter_occupancy=method.threshold, exit_occupancy=0.3)
    links = [f"l{i}" for i in range(readings.occupancy.shape[1])]
    paths = {
        (str(i), "far"): [[links[k] for k in path] for path in pair]
        for i, pair in enumerate(trace.flows)
    }
    used = sorted({k for pair in trace.flows for path in pair for k in path})
    router = Router(paths, Policy(routing=routing), clock=int)
    bursts = _Bursts(trace)
    if method.schedule:
        router.expect(bursts.schedule)
    met, turns = 0, min(MOST_TURNS, len(readings.index))
    for i in range(turns):
        now = int(trace.at_ns[readings.index[i]])
        bursts.until(now)
        for k in used:
            marks = float(readings.marks[i, k]) if method.marks else None
            router.observe(
                links[k], occupancy=float(readings.occupancy[i, k]), marks=marks, at_ns=now
            )
        for number, pair in enumerate(trace.flows):
            path = pair[router.choose((str(number), "far", 0), at_ns=now)]
            met += bool(truth.hot[readings.index[i], list(path)].any())
    lasted_ms = (trace.at_ns[readings.index[turns - 1]] - trace.at_ns[readings.index[0]]) / 1e6
    count = len(trace.flows)
    return router.moves / count / float(lasted_ms), met / (count * turns)


def judge(
    trace: Trace, every_ns: int, noise: float, seed: int, *, route: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method on one trace at one interval: its name and its figures."""
    base = routing_of(trace, every_ns)
    rng = np.random.default_rng([seed, every_ns, round(1e6 * noise)])
    readings = take_readings(trace, every_ns, noise, base, rng)
    truth = find_events(trace.at_ns, trace.occupancy, base.enter_occupancy, base.exit_occupancy)
    gains = estimate_gains(readings.occupancy, every_ns, trace.horizon_ns)
    nothing = replace(readings, occupancy=np.full_like(readings.occupancy, np.nan))
    for name, method in METHODS.items():
        if method.marks and not trace.packets:
            continue
        seen = nothing if method.blind else readings
        routing = _with_gains(replace(base, forecast=method.forecast), gains, method.fitted)
        warned = warnings(trace, seen, method, routing)
        figures = asdict(score(truth, readings.index, warned, trace.horizon_ns))
        if route and trace.flows:
            figures["moves_per_ms"], figures["met_hot"] = moves(
                trace, seen, method, routing, truth
            )
        yield name, figures | {"gains": gains if method.fitted else None}


def routing_of(trace: Trace, every_ns: int) -> Routing:
    """The policy's defaults, with the times scaled as the trace's horizon is to 200 us."""
    scale = trace.horizon_ns / Routing().horizon_ns
    default = Routing(pairs=1)
    return replace(
        default,
        horizon_ns=trace.horizon_ns,
        probe_interval_ns=every_ns,
        stale_ns=max(int(default.stale_ns * scale), 2 * every_ns),
        hold_ns=int(default.hold_ns * scale),
        moves_per_ms=default.moves_per_ms / scale,
    )


def _with_gains(routing: Routing, gains: Gains | None, fitted: bool) -> Routing:
    if not fitted or gains is None:
        return routing
    return replace(routing, level_gain=gains.level_gain, slope_gain=gains.slope_gain)


def study(seed: int, *, scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """All cases of the simulator: a row for each method.

    Args:
        seed: Of traces, noise and marks.
        scale: Length of the traces, in those of the documentation.
    """
    for buffer in BUFFERS:
        for regime in REGIMES:
            length_ns = int(LENGTHS_NS[buffer] * scale)
            trace = simulate(regime, buffer, seed=seed, length_ns=length_ns)
            for every_ns, noise in CASES:
                # Single microseconds matter where a queue fills in some.
                if every_ns >= 10_000 or buffer == "1 MB":
                    yield from _rows(trace, every_ns, noise, seed)


def tc_study(seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    """The same of the kernel's queues."""
    for trace in measure(seconds, seed):
        for every_ns in TC_EVERY_NS:
            yield from _rows(trace, every_ns, 0.0, seed)


def _rows(trace: Trace, every_ns: int, noise: float, seed: int) -> Iterator[dict[str, Any]]:
    route = every_ns * 20 == trace.horizon_ns
    for method, figures in judge(trace, every_ns, noise, seed, route=route):
        about = {"trace": trace.name, "every_us": every_ns / 1e3, "noise": noise}
        yield about | {"method": method} | figures


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for a page, one case after another."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    case = None
    for row in rows:
        this = (row["trace"], row["every_us"], row["noise"])
        noise = f", noise {row['noise']:g}" if row["noise"] else ""
        about = f"{row['trace']}, each {row['every_us']:g} us{noise}"
        lines.append(f"| {'' if this == case else about} | {' | '.join(_cells(row))} |")
        case = this
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    lead = " / ".join(_number(row[name] / 1e3, ".0f") for name in ("lead_p50_ns", "lead_p10_ns"))
    return [
        row["method"],
        _number(row["base_rate"], ".3f"),
        _number(row["precision"], ".2f"),
        _number(row["recall"], ".2f"),
        lead,
        _number(row["false_per_s"], ".3g"),
        _number(row.get("moves_per_ms"), ".3g"),
        _number(row.get("met_hot"), ".2%"),
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study as the command line says.

    Returns:
        0; 1 where the kernel's queues were asked for and cannot be had, or --out cannot be.
    """
    parser = argparse.ArgumentParser(description="Measure how well forecasts warn.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="length of the traces")
    parser.add_argument("--tc", action="store_true", help="the kernel's queues instead")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the kernel's queues")
    parser.add_argument("--out", type=Path, help="also keep the figures here, as JSON")
    given = parser.parse_args(arguments)
    if not LEAST_SCALE <= given.scale <= 100 or not 1 <= given.seconds <= 3600:
        parser.error(f"--scale is from {LEAST_SCALE:g} to 100, --seconds from 1 to 3600")
    try:
        if given.out is not None:
            check_out(given.out)
        found = (
            tc_study(given.seconds, given.seed)
            if given.tc
            else study(given.seed, scale=given.scale)
        )
        rows = list(found)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    print(as_markdown(rows), end="")
    if given.out is not None:
        document = {"seed": given.seed, "rows": [_plain(row) for row in rows]}
        write_report(given.out, document)
    return 0


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is not known is null."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
    }


if __name__ == "__main__":
    raise SystemExit(main())

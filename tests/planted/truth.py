"""What must be reported: the contract's rules on the exact signals, at the times of the samples.

The rules are a second, plain implementation: mean wait of each interval, level by thresholds with
hysteresis, gaps joined, short ones left out. Bounds are not those of intervals but the moments at
which the port really began and ceased to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.planted.run import History
from tests.planted.tallies import Tallies, joined
from xtune.pipelines import EpisodeRules

GPUS = 8  # ranks of a host
# A stretch must be found if it is one also with thresholds this much lower and higher.
_SURE = (0.85, 1.15)
# A saturated port is seen as such when it is so for this many intervals.
_INTERVALS = 3

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """How one port is seen.

    Attributes:
        times: True moments of its samples, seconds after the beginning, rising.
        interval_s: Nominal time between them.
    """

    times: np.ndarray
    interval_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueStretch:
    """One congested stretch of one link.

    Attributes:
        required: It must be found; else it may be, being marginal or seen too coarsely.
        plants: Episodes it belongs to.
        role: ``root`` where it is the root of one of them.
    """

    link: str
    start_s: float
    end_s: float
    interval_s: float
    required: bool
    plants: frozenset[int]
    role: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueEpisode:
    """One planted episode, as far as it can be seen.

    Attributes:
        links: Every link that waits for it at any time.
        required: Something of it must be found.
        gpu_hours: Steps that it slowed: time lost in them, times the ranks of their jobs.
    """

    number: int
    cause: str
    roots: frozenset[str]
    links: frozenset[str]
    start_s: float
    end_s: float
    required: bool
    gpu_hours: float
    jobs: frozenset[str]


@dataclass(kw_only=True)
class Truth:
    """All of it.

    Attributes:
        masks: Link -> spans of which nothing is known.
        gpu_hours: Lost in all, each step counted once.
    """

    t0_ns: int
    stretches: list[TrueStretch]
    episodes: list[TrueEpisode]
    masks: dict[str, list[Span]] = field(default_factory=dict)
    gpu_hours: float = 0.0


def reported(
    times: np.ndarray,
    signals: Sequence[tuple[np.ndarray, float, float]],
    rules: EpisodeRules,
    scale: float = 1.0,
) -> list[Span]:
    """Stretches at the reported level, by intervals.

    Args:
        times: Ends of intervals, and before them the first one's start.
        signals: For each signal its mean in each interval, and the thresholds to enter and leave.
        rules: Lengths and gaps.
        scale: Of thresholds.
    """
    enters = np.any([mean >= enter * scale for mean, enter, _ in signals], axis=0)
    leaves = np.all([mean < leave * scale for mean, _, leave in signals], axis=0)
    on = False
    out: list[tuple[float, float, int]] = []
    for k, (rises, falls) in enumerate(zip(enters, leaves, strict=True)):
        on = bool(rises) or (on and not falls)
        if not on:
            continue
        start, end = float(times[k]), float(times[k + 1])
        if out and start - out[-1][1] <= rules.max_gap_s:
            out[-1] = out[-1][0], end, out[-1][2] + 1
        else:
            out.append((start, end, 1))
    return [
        (start, end)
        for start, end, samples in out
        if samples >= rules.min_samples and end - start >= rules.min_length_s
    ]


def likeness(a: Span, b: Span) -> float:
    """Time in common over the time that either lasts."""
    shared = min(a[1], b[1]) - max(a[0], b[0])
    return max(0.0, shared) / (max(a[1], b[1]) - min(a[0], b[0]))


def find_truth(
    tallies: Tallies, watched: Mapping[int, Watched], rules: EpisodeRules, t0_ns: int
) -> Truth:
    """The truth of what happened, for ports that are watched so."""
    history = tallies.history
    ports = history.plan.fabric.ports
    stretches = []
    for port, view in sorted(watched.items()):
        stretches += _waits(tallies, port, view, rules)
    hit = {number for stretch in stretches if stretch.required for number in stretch.plants}
    for number, plant in enumerate(history.plan.plants):
        for root in plant.roots - (plant.slow.keys() if not plant.deaf else set()):
            span = joined(plant.bursts, rules.max_gap_s)
            stretches += [
                TrueStretch(
                    link=ports[root].link,
                    start_s=a,
                    end_s=b,
                    interval_s=watched[root].interval_s if root in watched else 1.0,
                    required=number in hit
                    and root in watched
                    and _full(plant.bursts, a, b, watched[root]),
                    plants=frozenset({number}),
                    role="root",
                )
                for a, b in span
            ]
    return Truth(
        t0_ns=t0_ns,
        stretches=_merged(stretches),
        episodes=_episodes(history, hit),
        gpu_hours=sum(s.lost_s * _ranks(history, s.job) for s in history.steps if s.plants) / 3600,
    )


def _full(bursts: Sequence[Span], start: float, end: float, view: Watched) -> bool:
    """Whether a port is saturated over some whole intervals."""
    return any(b - a >= _INTERVALS * view.interval_s for a, b in bursts if a >= start and b <= end)


def _waits(tallies: Tallies, port: int, view: Watched, rules: EpisodeRules) -> list[TrueStretch]:
    history = tallies.history
    times = view.times
    level = rules.report_level - 1
    enter, leave = rules.enter_wait[level], rules.exit_wait[level]
    mean = np.diff(tallies.at("wait", port, times)) / np.diff(times)
    signals = [(mean, enter, leave)]
    found = reported(times, signals, rules)
    if not found:
        return []
    others = [reported(times, signals, rules, scale) for scale in _SURE]
    really = tallies.above("wait", port, enter)
    link = history.plan.fabric.ports[port].link
    out = []
    for start, end in found:
        low, high = start - view.interval_s, end + view.interval_s
        inside = [(max(a, low), min(b, high)) for a, b in really if a < high and b > low]
        plants = _behind(history, port, inside)
        own = any(port in history.plan.plants[n].roots for n in plants)
        out.append(
            TrueStretch(
                link=link,
                start_s=min((a for a, _ in inside), default=start),
                end_s=max((b for _, b in inside), default=end),
                interval_s=view.interval_s,
                required=all(
                    any(likeness((start, end), other) > 0.5 for other in found_so)
                    for found_so in others
                ),
                plants=plants,
                role="root" if own else "victim",
            )
        )
    return out


def _behind(history: History, port: int, spans: Sequence[Span]) -> frozenset[int]:
    """Episodes that a port waits for during some spans."""
    plants: set[int] = set()
    for index, (steady, active) in enumerate(history.states):
        roots = steady.roots.get(port)
        if not roots:
            continue
        mine = {n for n in active if history.plan.plants[n].roots & roots}
        if mine - plants:
            for i in np.flatnonzero(history.state == index):
                a, b = history.edges[i], history.edges[i + 1]
                if any(a < end and b > start for start, end in spans):
                    plants |= mine
                    break
    return frozenset(plants)


def _merged(stretches: list[TrueStretch]) -> list[TrueStretch]:
    """Those of one link that overlap as one: it waits for one root while it is another."""
    out: list[TrueStretch] = []
    for s in sorted(stretches, key=lambda s: (s.link, s.start_s)):
        last = out[-1] if out else None
        if last is not None and last.link == s.link and s.start_s < last.end_s:
            out[-1] = TrueStretch(
                link=s.link,
                start_s=last.start_s,
                end_s=max(last.end_s, s.end_s),
                interval_s=s.interval_s,
                required=last.required or s.required,
                plants=last.plants | s.plants,
                role="root" if "root" in (last.role, s.role) else "victim",
            )
        else:
            out.append(s)
    return out


def _ranks(history: History, job: int) -> int:
    return len(history.plan.jobs[job].hosts) * GPUS


def _episodes(history: History, hit: set[int]) -> list[TrueEpisode]:
    ports, out = history.plan.fabric.ports, []
    for number, plant in enumerate(history.plan.plants):
        waiting = {
            port
            for steady, active in history.states
            if number in active
            for port, roots in steady.roots.items()
            if roots & plant.roots
        }
        steps = [s for s in history.steps if number in s.plants]
        out.append(
            TrueEpisode(
                number=number,
                cause=plant.cause,
                roots=frozenset(ports[p].link for p in plant.roots),
                links=frozenset(ports[p].link for p in waiting | plant.roots),
                start_s=plant.start_s,
                end_s=plant.end_s,
                required=number in hit,
                gpu_hours=sum(s.lost_s * _ranks(history, s.job) for s in steps) / 3600,
                jobs=frozenset(history.plan.jobs[s.job].name for s in steps),
            )
        )
    return out

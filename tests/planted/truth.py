"""What must be reported: the contract's rules on the exact signals, at the times of the samples.

The rules are a second, plain implementation: mean of each interval, level by thresholds with
hysteresis, gaps joined, short ones left out. Bounds are not those of intervals but the moments at
which the port really began and ceased to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    """What the samples of one port tell, whoever took them.

    Attributes:
        times: True moments of samples, seconds after the beginning, rising.
        interval_s: Nominal time between them.
        known: Whether an interval's counters tell something (no reset within).
        masks: Spans of which they tell nothing.
    """

    times: np.ndarray
    interval_s: float
    known: np.ndarray
    masks: tuple[Span, ...] = ()

    def hides(self, start: float, end: float) -> bool:
        """Whether a mask touches a span."""
        return any(low < end and high > start for low, high in self.masks)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueStretch:
    """One congested stretch of one link.

    Attributes:
        seen: Its bounds in whole intervals: what exact rules give.
        required: It must be found; else it may be, being marginal or seen too coarsely.
        plants: Episodes it belongs to.
        role: ``root`` where it is the root of one of them.
    """

    link: str
    start_s: float
    end_s: float
    seen: Span
    interval_s: float
    required: bool
    plants: frozenset[int]
    role: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueEpisode:
    """One planted episode, as far as it can be seen.

    Attributes:
        links: Every link that shows it at any time.
        required: Something of it must be found.
        visible: Its root is watched closely enough to be named.
        gpu_hours: Steps that it slowed: time lost in them, times the ranks of their jobs.
    """

    number: int
    cause: str
    roots: frozenset[str]
    links: frozenset[str]
    start_s: float
    end_s: float
    required: bool
    visible: bool
    gpu_hours: float
    jobs: frozenset[str]


@dataclass(kw_only=True)
class Truth:
    """All of it.

    Attributes:
        masks: Link -> spans of which nothing is known.
        gpu_hours: Lost in all, each step counted once.
        seen_gpu_hours: Of these, in steps that an episode slowed which must be found.
        gap_s: Stretches of a link no further apart are one.
    """

    t0_ns: int
    stretches: list[TrueStretch]
    episodes: list[TrueEpisode]
    masks: dict[str, list[Span]] = field(default_factory=dict)
    gpu_hours: float = 0.0
    seen_gpu_hours: float = 0.0
    gap_s: float = 10.0


def reported(
    times: np.ndarray,
    known: np.ndarray,
    signals: Sequence[tuple[np.ndarray, float, float]],
    rules: EpisodeRules,
    scale: float = 1.0,
) -> list[Span]:
    """Stretches at the reported level, by intervals.

    Args:
        times: Ends of intervals, and before them the first one's start.
        known: Whether anything is known of an interval.
        signals: For each signal its mean in each interval, and the thresholds to enter and leave.
        rules: Lengths and gaps.
        scale: Of thresholds.
    """
    enters = np.any([mean >= enter * scale for mean, enter, _ in signals], axis=0)
    leaves = np.all([mean < leave * scale for mean, _, leave in signals], axis=0)
    on = False
    out: list[tuple[float, float, int]] = []
    for k in np.flatnonzero(known):
        on = bool(enters[k]) or (on and not leaves[k])
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
    tallies: Tallies,
    watched: Mapping[int, Watched],
    rules: EpisodeRules,
    t0_ns: int,
    topology: bool = True,
) -> Truth:
    """The truth of what happened, for ports that are watched so.

    Without topology a root that does not itself wait cannot be told from any busy port.
    """
    history = tallies.history
    ports = history.plan.fabric.ports
    stretches: list[TrueStretch] = []
    for port in sorted(watched):
        stretches += _own(tallies, port, watched[port], rules)
    hit = {number for stretch in stretches if stretch.required for number in stretch.plants}
    for number, plant in enumerate(history.plan.plants):
        for root in sorted(plant.roots - (plant.slow.keys() if not plant.deaf else set())):
            view = watched.get(root) if topology else None
            for a, b in joined(plant.bursts, rules.max_gap_s):
                span = _with_victims((a, b), number, stretches)
                stretches.append(
                    TrueStretch(
                        link=ports[root].link,
                        start_s=span[0],
                        end_s=span[1],
                        seen=span,
                        interval_s=view.interval_s if view else 1.0,
                        required=number in hit
                        and view is not None
                        and _full(plant.bursts, span, view),
                        plants=frozenset({number}),
                        role="root",
                    )
                )
    sure = {
        (number, s.link)
        for s in stretches
        if topology and s.required and s.role == "root"
        for number in s.plants
    }
    masks = {ports[p].link: list(view.masks) for p, view in watched.items() if view.masks}
    lost = [(s, s.lost_s * _ranks(history, s.job) / 3600) for s in history.steps if s.plants]
    return Truth(
        t0_ns=t0_ns,
        stretches=_merged(_unmasked(stretches, masks), rules.max_gap_s),
        gap_s=rules.max_gap_s,
        episodes=_episodes(tallies, hit, sure, watched if topology else {}),
        masks=masks,
        gpu_hours=sum(hours for _, hours in lost),
        seen_gpu_hours=sum(hours for step, hours in lost if hit & step.plants.keys()),
    )


def _with_victims(span: Span, number: int, stretches: Sequence[TrueStretch]) -> Span:
    """A root's span, while somebody is reported because of it."""
    victims = [
        s
        for s in stretches
        if number in s.plants and s.role != "root" and s.start_s < span[1] and s.end_s > span[0]
    ]
    start = max(span[0], min((s.start_s for s in victims), default=span[0]))
    return start, min(span[1], max((s.end_s for s in victims), default=span[1]))


def _full(bursts: Sequence[Span], span: Span, view: Watched) -> bool:
    """Whether a port is seen saturated over some whole intervals."""
    return any(
        min(b, span[1]) - max(a, span[0]) >= _INTERVALS * view.interval_s
        for a, b in bursts
        if not view.hides(max(a, span[0]), min(b, span[1]))
    )


def _own(tallies: Tallies, port: int, view: Watched, rules: EpisodeRules) -> list[TrueStretch]:
    """Stretches of a port that is itself at the reported level.

    Packets that arrive marked, counted at the receiver's adapter, tell of the path towards it and
    not of the port that counts them: nobody must report them there, and anybody may.
    """
    times, level = view.times, rules.report_level - 1
    spans = np.diff(times)
    limits = {
        "wait": (rules.enter_wait[level], rules.exit_wait[level]),
        "cnp": (rules.enter_marks[level], rules.exit_marks[level]),
        "drops": (rules.enter_discards[level], rules.exit_discards[level]),
        "marked": (rules.enter_marks[level], rules.exit_marks[level]),
    }
    means = {kind: np.diff(tallies.at(kind, port, times)) / spans for kind in limits}

    def found(kinds: Sequence[str], scale: float = 1.0) -> list[Span]:
        signals = [(means[kind], *limits[kind]) for kind in kinds]
        return reported(times, view.known, signals, rules, scale)

    own, every = ("wait", "cnp", "drops"), tuple(limits)
    out: list[TrueStretch] = []
    for kinds in (own, every):
        really = tallies.above(port, [(kind, limits[kind][0]) for kind in kinds])
        sure = [found(own, scale) for scale in _SURE]
        for span in found(kinds):
            stretch = _stretch(tallies, port, view, span, really)
            required = kinds == own and all(
                any(likeness(span, other) > 0.5 for other in others) for others in sure
            )
            if not any(likeness(span, s.seen) > 0.99 for s in out):
                out.append(replace(stretch, required=required))
    return out


def _stretch(
    tallies: Tallies, port: int, view: Watched, span: Span, really: Sequence[Span]
) -> TrueStretch:
    history = tallies.history
    low, high = span[0] - view.interval_s, span[1] + view.interval_s
    inside = [(max(a, low), min(b, high)) for a, b in really if a < high and b > low]
    plants = _shown(tallies, port, inside)
    own = any(port in history.plan.plants[n].roots for n in plants)
    return TrueStretch(
        link=history.plan.fabric.ports[port].link,
        start_s=min((a for a, _ in inside), default=span[0]),
        end_s=max((b for _, b in inside), default=span[1]),
        seen=span,
        interval_s=view.interval_s,
        required=False,
        plants=plants,
        role="root" if own else "victim",
    )


def _shown(tallies: Tallies, port: int, spans: Sequence[Span]) -> frozenset[int]:
    """Episodes that a port shows during some spans."""
    history = tallies.history
    plants: set[int] = set()
    for index, shown in enumerate(tallies.shown):
        mine = shown.get(port, set())
        if mine - plants:
            for i in np.flatnonzero(history.state == index):
                a, b = history.edges[i], history.edges[i + 1]
                if any(a < end and b > start for start, end in spans):
                    plants |= mine
                    break
    return frozenset(plants)


def _unmasked(
    stretches: Sequence[TrueStretch], masks: Mapping[str, list[Span]]
) -> list[TrueStretch]:
    """What is hidden but for some intervals need not be found."""
    return [
        replace(s, required=False)
        if s.required
        and s.link in masks
        and max((b - a for a, b in cut([s.seen], masks[s.link])), default=0.0)
        < _INTERVALS * s.interval_s
        else s
        for s in stretches
    ]


def cut(spans: list[Span], masks: Sequence[Span]) -> list[Span]:
    """Spans without what is masked; a rest of no length is nothing."""
    for low, high in masks:
        spans = [
            piece
            for a, b in spans
            for piece in ((a, min(b, low)), (max(a, high), b))
            if piece[1] - piece[0] > 1e-6
        ]
    return spans


def _merged(stretches: list[TrueStretch], gap_s: float) -> list[TrueStretch]:
    """Those of one link as one: it waits for one root, then for another, or is one itself.

    What need not be found is left beside what must, as another form in which it may be found.
    """
    out: list[TrueStretch] = []
    for wanted in (True, False):
        last: TrueStretch | None = None
        for s in sorted(stretches, key=lambda s: (s.link, s.start_s)):
            if s.required != wanted:
                continue
            if last is not None and last.link == s.link and s.start_s <= last.end_s + gap_s:
                out.pop()
                s = replace(
                    s,
                    start_s=last.start_s,
                    end_s=max(last.end_s, s.end_s),
                    seen=(min(last.seen[0], s.seen[0]), max(last.seen[1], s.seen[1])),
                    plants=last.plants | s.plants,
                    role="root" if "root" in (last.role, s.role) else "victim",
                )
            out.append(s)
            last = s
    return sorted(out, key=lambda s: (s.link, s.start_s, not s.required))


def _ranks(history: History, job: int) -> int:
    return len(history.plan.jobs[job].hosts) * GPUS


def _episodes(
    tallies: Tallies,
    hit: set[int],
    sure: set[tuple[int, str]],
    watched: Mapping[int, Watched],
) -> list[TrueEpisode]:
    history = tallies.history
    fabric, out = history.plan.fabric, []
    for number, plant in enumerate(history.plan.plants):
        showing = {
            port for shown in tallies.shown for port, plants in shown.items() if number in plants
        }
        steps = [s for s in history.steps if number in s.plants]
        roots = frozenset(fabric.ports[p].link for p in plant.roots)
        # A port that sends to a host is also seen there, by what arrives.
        whole = plant.start_s, plant.end_s
        receivers = [fabric.of_link[fabric.ports[p].peer] for p in plant.roots]
        at_host = plant.cause == "incast" and all(
            r.host and r.index in watched and _full(plant.bursts, whole, watched[r.index])
            for r in receivers
        )
        out.append(
            TrueEpisode(
                number=number,
                cause=plant.cause,
                roots=roots,
                links=frozenset(fabric.ports[p].link for p in showing | plant.roots),
                start_s=plant.start_s,
                end_s=plant.end_s,
                required=number in hit,
                visible=all((number, root) in sure for root in roots) or at_host,
                gpu_hours=sum(s.lost_s * _ranks(history, s.job) for s in steps) / 3600,
                jobs=frozenset(history.plan.jobs[s.job].name for s in steps),
            )
        )
    return out

"""What a stretch waits for: what waits beyond it, or the root and its cause, with the evidence.

In a lossless fabric waiting spreads upstream: a port that is refused credits, or paused, fills up
and refuses them to the ports that feed its node. So from any waiting port the way onward leads to
the port beyond which nothing waits. That port, or one that it feeds and that merely sends at line
rate, is the root. Several ports onward may be the reason; those whose time agrees with the wait
are, and as many as it takes to explain all of it.

Without flow control (marks, discards) nobody waits: a switch's port that drops or marks is itself
the congested one, and an adapter's marks tell of one on the way to it or from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from xtune.pipelines._spans import Covered, Overlaps, by_node
from xtune.pipelines._stretches import Stretch, Timeline, fit, overlap_ns, together
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

# An adapter that sends less than this share of its rate answers, at most: what is marked is what
# it receives.
_SENDS = 0.05
# A port that is congested for this share of the time in which an adapter is marked explains it.
_COVERS = 0.8
# A port that never comes this close to what another one sends holds back nobody.
_ROOM = 0.03
# A port that something waits for is never idle: in an interval within the wait it sends at its
# rate, less what headers that no counter knows take.
_FULL = 0.95

Kind = Literal["onward", "saturated", "sick", "receiver", "alone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a port waits.

    Attributes:
        kind: ``onward``: another port waits beyond; else a root: ``saturated``, ``sick`` (link),
            ``receiver`` (a host that drains slowly) or ``alone`` (nothing explains it).
        stretch: What waits beyond, or the root's own stretch.
        fit: How well it agrees with the wait in time, 0 to 1.
        evidence: What it rests on.
    """

    kind: Kind
    stretch: Stretch
    fit: float
    evidence: dict[str, Any] = field(default_factory=dict)


class Causes:
    """Finds the reasons of waiting ports; looks at each port's neighbourhood only.

    Args:
        timelines: Stretches by kind.
        topology: The fabric.
        rules: What counts.
        sampled: Ports of which there are counters; None where that is not known, and all are
            taken to be.
    """

    def __init__(
        self,
        timelines: dict[str, Timeline],
        topology: Topology,
        rules: EpisodeRules,
        sampled: Collection[str] | None = None,
    ) -> None:
        self._wait, self._busy = timelines["wait"], timelines["busy"]
        self._errors = timelines["errors"]
        self._signal = timelines.get("signal", Timeline(()))
        self._topology, self._rules, self._sampled = topology, rules, sampled
        waits = [s for s in self._wait if topology.hop(s.link)]
        busy = [s for s in self._busy if topology.hop(s.link)]
        sick = list(self._sick_stretches())
        self._coarsest_ns = max((s.step_ns for s in waits), default=0)
        self._waits_at = by_node((self._node(s), s) for s in waits)
        self._busy_at = by_node((self._node(s), s) for s in busy)
        self._sick_at = by_node((self._node(s), s) for s in sick)
        self._all = {
            "onward": Overlaps(waits),
            "saturated": Overlaps(busy),
            "sick": Overlaps(sick),
        }
        self._used: dict[str, tuple[Covered, Covered]] = {}

    def reasons(self, stretch: Stretch) -> tuple[list[Reason], list[Reason]]:
        """The reasons of a wait, and those that were thought of and passed over."""
        if not self.flow_controlled(stretch):
            return self._of_lossy(stretch), []
        near = self._near(stretch)
        if max((r.fit for r in near), default=0.0) < 0.5:
            near += self._farther(stretch)
        kept, passed = choose(stretch, near, self._rules)
        return [self._with_signal(r) for r in kept or [self._alone(stretch)]], passed

    def flow_controlled(self, stretch: Stretch) -> bool:
        """Whether a stretch is one of waiting, not of marks or discards alone."""
        if stretch.signal in ("wait", "pause"):
            return True
        lowest = 0.9 * self._rules.exit_wait[self._rules.report_level - 1]
        return (stretch.mean_wait_fraction or 0.0) >= lowest

    def _node(self, stretch: Stretch) -> str:
        hop = self._topology.hop(stretch.link)
        return hop.node if hop else ""

    def _next(self, stretch: Stretch) -> str:
        hop = self._topology.hop(stretch.link)
        return hop.next_node if hop else ""

    def _near(self, stretch: Stretch) -> list[Reason]:
        """What may be the reason at the port itself and one hop onward."""
        topology, node = self._topology, self._next(stretch)
        span = stretch.start_ns, stretch.end_ns
        found = self._sick_here(stretch)
        if topology.is_host(node):
            return found or [self._last_hop(stretch)]
        for other in _overlapping(self._waits_at, node, *span):
            if topology.feeds(stretch.link, other.link) and together(stretch, other):
                found.append(Reason(kind="onward", stretch=other, fit=fit(stretch, other)))
        for busy in _overlapping(self._busy_at, node, *span):
            if topology.feeds(stretch.link, busy.link):
                found += self._saturated(stretch, busy)
        for errors in _overlapping(self._sick_at, node, *span):
            if topology.feeds(stretch.link, errors.link):
                found += self._sick_onward(stretch, errors)
        return _fullest(found)

    def _farther(self, stretch: Stretch) -> list[Reason]:
        """What waits, or else is saturated or sick, over the same span two or more hops onward.

        For a port that nothing next to it explains: the ports between are not watched, or wait
        less than is reported. What is found nearest counts.
        """
        for kind in ("onward", "saturated", "sick"):
            at: dict[int, list[Reason]] = defaultdict(list)
            for other in self._of_like_span(kind, stretch):
                hops = self._topology.distance(stretch.link, other.link)
                if hops is None or hops < 2:
                    continue
                if kind == "onward":
                    found = [Reason(kind="onward", stretch=other, fit=fit(stretch, other))]
                elif kind == "saturated":
                    found = self._saturated(stretch, other)
                else:
                    found = self._sick_onward(stretch, other)
                at[hops] += [r for r in found if r.fit >= self._rules.alike]
            for hops in sorted(at):
                if at[hops]:
                    return _fullest(at[hops])
        return []

    def _of_like_span(
        self, kind: str, stretch: Stretch, *, longer: bool = False
    ) -> Iterable[Stretch]:
        """Stretches that may last as long, or longer: bounds are known to a sample only."""
        shortest = 0.5 * max(0, stretch.length_ns - 2 * stretch.step_ns)
        # What is saturated or sick may be so for longer than anyone waits for it.
        bounded = kind == "onward" and not longer
        longest = 2 * stretch.length_ns if bounded else float("inf")
        return [
            s
            for s in self._all[kind].within(
                stretch.start_ns,
                stretch.end_ns,
                shortest=shortest,
                longest=longest + 2 * self._coarsest_ns,
            )
            if s.length_ns <= longest + 2 * s.step_ns
        ]

    def _saturated(self, stretch: Stretch, busy: Stretch) -> list[Reason]:
        """A port at line rate as the reason: it must be so while there is waiting, and no more."""
        shared = overlap_ns(stretch, busy)
        start, end = max(stretch.start_ns, busy.start_ns), min(stretch.end_ns, busy.end_ns)
        if not together(stretch, busy):
            return []
        if 2 * self._wait.covered_ns(busy.link, start, end) > shared:
            return []
        agrees = shared / stretch.length_ns * self._precision(stretch, busy)
        # Nobody waits longer for a port than it is full, give or take its own samples.
        waited_ns = (stretch.mean_wait_fraction or 0.0) * stretch.length_ns
        if busy.length_ns + 2 * busy.step_ns >= waited_ns:
            agrees = max(agrees, fit(stretch, busy))
        if self.flow_controlled(stretch) and _has_room(stretch, busy):
            if self._passes_on(busy, start, end):
                return []
            agrees /= 2
        evidence: dict[str, Any] = {
            "saturated": True,
            "root_utilization": busy.mean_utilization,
        }
        if busy.seen_from is not None:
            evidence["seen_from"] = busy.seen_from
        return [Reason(kind="saturated", stretch=busy, fit=agrees, evidence=evidence)]

    def _passes_on(self, busy: Stretch, start: int, end: int) -> bool:
        """Whether a port with room carries what one other sends, at the same time, unhindered."""
        least = (busy.mean_utilization or 0.0) - _ROOM
        return any(
            (other.mean_utilization or 0.0) >= least
            and fit(other, busy) >= self._rules.alike
            and self._topology.distance(other.link, busy.link) is not None
            and not any(self.flow_controlled(s) for s in self._wait.within(other.link, start, end))
            for other in self._all["saturated"].within(start, end)
            if other.link != busy.link
        )

    def _precision(self, stretch: Stretch, busy: Stretch) -> float:
        """Share of a port's saturated time, around a wait, in which something waits for its node.

        A port that is just as busy while nobody waits is innocent.
        """
        used, both = self._in_use(busy.link)
        margin = max(stretch.length_ns, int(self._rules.context_s * 1e9))
        start, end = stretch.start_ns - margin, stretch.end_ns + margin
        waited = max(both.within(start, end), overlap_ns(stretch, busy))
        return min(1.0, waited / max(1, used.within(start, end)))

    def _in_use(self, link: str) -> tuple[Covered, Covered]:
        """When a port is saturated, and when something waits for its node meanwhile."""
        if link not in self._used:
            used = Covered((s.start_ns, s.end_ns) for s in self._busy.of(link))
            behind = Covered(
                (s.start_ns, s.end_ns)
                for feeder in self._topology.behind(link)
                for s in self._wait.of(feeder)
                if self.flow_controlled(s)
            )
            self._used[link] = used, used.common(behind)
        return self._used[link]

    def _last_hop(self, stretch: Stretch) -> Reason:
        """The port towards a host waits: for the host, or for its own line rate."""
        hop = self._topology.hops[stretch.link]
        utilization = stretch.mean_utilization
        if utilization is not None and utilization >= self._rules.busy_utilization:
            full: dict[str, Any] = {"saturated": True, "root_utilization": utilization}
            return Reason(kind="saturated", stretch=stretch, fit=1.0, evidence=full)
        evidence: dict[str, Any] = {
            "receiver": hop.receiver,
            "receiver_utilization": utilization,
        }
        if stretch.seen_from is not None:
            evidence |= {"seen_from": stretch.seen_from}
        return Reason(kind="receiver", stretch=stretch, fit=1.0, evidence=evidence)

    def _alone(self, stretch: Stretch) -> Reason:
        """A waiting port that nothing explains."""
        onward = self._topology.onward(stretch.link)
        # Around the wait only: what other days bring changes nothing here.
        margin = max(stretch.length_ns, int(self._rules.context_s * 1e9))
        around = stretch.start_ns - margin, stretch.end_ns + margin
        seen = sum(
            bool(self._wait.within(link, *around) or self._busy.within(link, *around))
            for link in onward
        )
        evidence: dict[str, Any] = {"onward_ports": len(onward), "onward_ports_busy": seen}
        if self._sampled is not None:
            evidence["onward_ports_sampled"] = sum(link in self._sampled for link in onward)
        if not self._topology.lists(stretch.link):
            evidence["far_end"] = "not in the topology"
        if (stretch.mean_utilization or 0.0) >= self._rules.busy_utilization:
            evidence["root_utilization"] = stretch.mean_utilization
            return Reason(kind="saturated", stretch=stretch, fit=0.0, evidence=evidence)
        return Reason(kind="alone", stretch=stretch, fit=0.0, evidence=evidence)

    # Sick links

    def _sick_stretches(self) -> Iterable[Stretch]:
        """Stretches of errors, each at the link that it makes sick: that of the sending port.

        A port whose far end is not sampled speaks for both directions of its cable.
        """
        for errors in self._errors:
            hop = self._topology.hops.get(errors.link)
            if hop is None:
                continue
            links = [hop.receiver]
            if self._sampled is not None and hop.receiver not in self._sampled:
                links.append(errors.link)
            for link in links:
                yield Stretch(
                    link=link,
                    start_ns=errors.start_ns,
                    end_ns=errors.end_ns,
                    samples=errors.samples,
                    errors=errors.errors,
                    seen_from=errors.link,
                )

    def _sick(self, link: str, span: Stretch) -> tuple[float, dict[str, Any]] | None:
        """How surely errors make a link wait in a span, and the evidence."""
        hop = self._topology.hop(link)
        if hop is None:
            return None
        ends = [hop.receiver, link]
        if self._sampled is not None and hop.receiver in self._sampled:
            ends = [hop.receiver]
        for by in ends:
            errors = self._errors.errors_in(by, span.start_ns, span.end_ns)
            per_s = errors / (span.length_ns / 1e9)
            if per_s >= self._rules.sick_errors_per_s:
                break
        else:
            return None
        margin = max(span.length_ns, int(self._rules.context_s * 1e9))
        around = self._errors.errors_in(by, span.start_ns - margin, span.end_ns + margin) - errors
        usual = around / (2 * margin / 1e9)
        # A link as sick while nothing waits may be so for years: half a reason.
        surely = max(per_s / (per_s + usual), *self._edges(by, span), 0.0)
        covered = self._errors.covered_ns(by, span.start_ns, span.end_ns) / span.length_ns
        evidence = {
            "receiver": hop.receiver,
            "errors_counted_by": by,
            "errors_per_s": per_s,
            "errors_per_s_around": usual,
        }
        return surely * (1.0 if covered > 0.5 else 0.5 + covered), evidence

    def _edges(self, link: str, span: Stretch) -> list[float]:
        return [fit(e, span) for e in self._errors.within(link, span.start_ns, span.end_ns)]

    def _sick_here(self, stretch: Stretch) -> list[Reason]:
        found = self._sick(stretch.link, stretch)
        if found is None:
            return []
        surely, evidence = found
        return [Reason(kind="sick", stretch=stretch, fit=surely, evidence=evidence)]

    def _sick_onward(self, stretch: Stretch, errors: Stretch) -> list[Reason]:
        """A sick link that does not wait itself."""
        if not together(stretch, errors) or any(
            together(stretch, s)
            for s in self._wait.within(errors.link, stretch.start_ns, stretch.end_ns)
        ):
            return []
        found = self._sick(errors.link, stretch)
        if found is None:
            return []
        surely, evidence = found
        return [Reason(kind="sick", stretch=errors, fit=surely, evidence=evidence)]

    def _with_signal(self, reason: Reason) -> Reason:
        """A root with what the signal of the port that receives from it tells.

        It decides where nothing else is known and it was bad for half of the wait at least:
        readings are minutes apart, and their errors need not be of the time of the wait.
        """
        hop, span = self._topology.hop(reason.stretch.link), reason.stretch
        if reason.kind == "onward" or hop is None:
            return reason
        bad_ns = self._signal.covered_ns(hop.receiver, span.start_ns, span.end_ns)
        if not bad_ns:
            return reason
        errors = self._signal.errors_in(hop.receiver, span.start_ns, span.end_ns)
        evidence = {"receiver": hop.receiver, "signal_errors_per_s": errors * 1e9 / bad_ns}
        decides = reason.kind == "alone" and 2 * bad_ns >= span.length_ns
        return replace(
            reason,
            kind="sick" if decides else reason.kind,
            evidence=reason.evidence | evidence,
        )

    # Lossy fabrics

    def _of_lossy(self, stretch: Stretch) -> list[Reason]:
        topology, node = self._topology, self._node(stretch)
        evidence: dict[str, Any] = {"lossy": True}
        if stretch.mark_rate is not None:
            evidence["marks_per_s"] = stretch.mark_rate
        if stretch.discard_rate is not None:
            evidence["discards_per_s"] = stretch.discard_rate
        if not topology.is_host(node):
            evidence["root_utilization"] = stretch.mean_utilization
            return [Reason(kind="saturated", stretch=stretch, fit=1.0, evidence=evidence)]
        for reasons in self._on_its_ways(stretch):
            likely = [r for r in reasons if r.fit >= self._rules.alike]
            kept, _ = choose(stretch, likely, self._rules)
            if kept:
                return kept
        return [Reason(kind="alone", stretch=stretch, fit=0.0, evidence=evidence)]

    def _on_its_ways(self, stretch: Stretch) -> tuple[list[Reason], ...]:
        """Ports on the way to an adapter, or from it where it sends at all.

        First those with a sign of their own: they drop, are sick, or something waits for them;
        then those that wait; then those that are merely saturated.
        """
        topology = self._topology
        towards = topology.hops[stretch.link].receiver
        sends = stretch.mean_utilization is None or stretch.mean_utilization >= _SENDS
        seen: list[Reason] = []
        waits: list[Reason] = []
        merely: list[Reason] = []
        for kind in ("onward", "saturated", "sick"):
            for other in self._of_like_span(kind, stretch, longer=True):
                if topology.is_host(self._node(other)):
                    continue
                ahead = topology.distance(stretch.link, other.link) if sends else None
                behind = 0 if other.link == towards else topology.distance(other.link, towards)
                if ahead is None and behind is None:
                    continue
                if kind == "saturated":
                    _, both = self._in_use(other.link)
                    waited = both.within(stretch.start_ns, stretch.end_ns)
                    found = seen if 2 * waited >= stretch.length_ns else merely
                    found += self._saturated(stretch, other)
                elif kind == "sick":
                    seen += self._sick_onward(stretch, other)
                elif self._ends_here(other):
                    # A sender that comes late, or leaves early, is marked while it is there.
                    covers = overlap_ns(stretch, other) / stretch.length_ns
                    agrees = max(fit(stretch, other), self._rules.alike * (covers >= _COVERS))
                    seen.append(Reason(kind="onward", stretch=other, fit=agrees))
                else:
                    waits.append(Reason(kind="onward", stretch=other, fit=fit(stretch, other)))
        return seen, waits, merely

    def _ends_here(self, stretch: Stretch) -> bool:
        """Whether a port is congested for no other port's sake."""
        if not self.flow_controlled(stretch) or self._sick(stretch.link, stretch):
            return True
        return self._topology.is_host(self._next(stretch))


def choose(
    stretch: Stretch, reasons: list[Reason], rules: EpisodeRules
) -> tuple[list[Reason], list[Reason]]:
    """The reasons that agree best with a wait, and those it takes to explain the rest of it."""
    ranked = sorted(reasons, key=lambda r: (-r.fit, r.kind, r.stretch.key))
    best = ranked[0].fit if ranked else 0.0
    kept = [r for r in ranked if r.fit > 0 and r.fit >= rules.rival * best]
    passed = [r for r in ranked if r not in kept]
    for reason in list(passed):
        s = reason.stretch
        told = Covered((r.stretch.start_ns, r.stretch.end_ns) for r in kept)
        start, end = max(s.start_ns, stretch.start_ns), min(s.end_ns, stretch.end_ns)
        gain = end - start - told.within(start, end)
        if reason.fit > 0 and gain >= rules.explains * stretch.length_ns:
            kept.append(reason)
            passed.remove(reason)
    return kept, passed


def _has_room(stretch: Stretch, busy: Stretch) -> bool:
    """Whether a saturated port does not fill its line while something waits.

    Two of its intervals within the wait, whose bounds are known to a sample, hold a whole one.
    """
    certain = overlap_ns(stretch, busy) - 2 * stretch.step_ns
    seen = busy.samples >= 2 and certain >= 2 * busy.step_ns
    return seen and (busy.peak_utilization or 1.0) < _FULL


def _fullest(reasons: list[Reason]) -> list[Reason]:
    """Saturated ports that have room left agree half as well, where another one has none."""
    peaks = [r.stretch.peak_utilization or 0.0 for r in reasons if r.kind == "saturated"]
    full = max(peaks, default=0.0) - _ROOM
    return [
        replace(r, fit=r.fit / 2)
        if r.kind == "saturated" and (r.stretch.peak_utilization or 1.0) < full
        else r
        for r in reasons
    ]


def _overlapping(index: dict[str, Overlaps], node: str, start: int, end: int) -> list[Stretch]:
    return index[node].within(start, end) if node in index else []

"""What a waiting port waits for: the root of an episode, its cause, and the evidence.

In a lossless fabric waiting spreads upstream: a port that is refused credits fills up and refuses
them to the ports that feed its node. So from any waiting port the way onward leads to the port
beyond which nothing waits. That port, or one that it feeds and that merely sends at line rate, is
the root.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xtune.pipelines._stretches import Stretch, Timeline, overlap_ns, together, union_ns
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

# A saturated port explains a port that waits and has nothing waiting beyond it when it is
# saturated for this share of the wait.
_COVERS = 0.5
# Where more than one port would: its saturated time must fall into the wait to this share of the
# best one's. A port that is just as busy while nobody waits is innocent.
_PRECISE = 0.8
# Beside another explanation (something waits beyond), saturation and wait must be this nearly the
# same span.
_COINCIDES = 0.7
# Sibling ports as busy as the root for this share of the time: the load is too much for all.
_SIBLINGS = 0.5


@dataclass(kw_only=True, slots=True)
class Root:
    """A root port, the span in which it is one, and why.

    Attributes:
        stretch: The port's own stretch: waiting, or saturated and waiting for nobody.
        cause: As told so far; whether saturation is incast, collision or overload depends on what
            waits behind it.
        evidence: What that rests on.
    """

    stretch: Stretch
    cause: str
    evidence: dict[str, Any] = field(default_factory=dict)


class Causes:
    """Finds the roots of waiting ports."""

    def __init__(
        self, timelines: dict[str, Timeline], topology: Topology, rules: EpisodeRules
    ) -> None:
        self._wait = timelines["wait"]
        self._busy = timelines["busy"]
        self._errors = timelines["errors"]
        self._topology = topology
        self._rules = rules

    def beyond(self, stretch: Stretch) -> list[Stretch]:
        """What waits one hop onward, at the same time."""
        return [
            other
            for link in self._topology.onward(stretch.link)
            for other in self._wait.within(link, stretch.start_ns, stretch.end_ns)
            if together(stretch, other)
        ]

    def behind(self, link: str, span: Stretch) -> list[Stretch]:
        """What waits one hop upstream of ``link`` during ``span``."""
        return [
            other
            for feeder in self._topology.behind(link)
            for other in self._wait.within(feeder, span.start_ns, span.end_ns)
            if together(span, other)
        ]

    def roots(self, stretch: Stretch, *, last: bool) -> list[Root]:
        """Roots that a waiting port points to directly; none where nothing next to it explains it.

        Args:
            stretch: The waiting port.
            last: Nothing waits beyond it.
        """
        if not last:
            return [
                self._saturated(busy)
                for busy in self._saturated_onward(stretch)
                if _likeness(busy, stretch) >= _COINCIDES
            ]
        sick = self._sick(stretch.link, stretch)
        if sick is not None:
            return [Root(stretch=stretch, cause="sick_link", evidence=sick)]
        if self._topology.is_host(self._topology.hops[stretch.link].next_node):
            return [self._last_hop(stretch)]
        saturated = self._explaining(stretch)
        if saturated:
            return [self._saturated(busy) for busy in saturated]
        return self._sick_onward(stretch)

    def farther(self, stretch: Stretch) -> tuple[list[Stretch], list[Root]]:
        """What waits, or else is saturated, over the same span two or more hops onward.

        For a port that nothing next to it explains: the ports between are not watched, or wait
        less than is reported. What is found nearest counts.
        """
        reached = {stretch.link}
        frontier = self._topology.onward(stretch.link)
        while frontier:
            reached.update(frontier)
            links = sorted({b for link in frontier for b in self._topology.onward(link)} - reached)
            waits = self._alike(self._wait, links, stretch)
            if waits:
                return waits, []
            busy = self._alike(self._busy, links, stretch)
            if busy:
                return [], [self._saturated(b) for b in busy]
            frontier = links
        return [], []

    def _alike(self, timeline: Timeline, links: list[str], stretch: Stretch) -> list[Stretch]:
        return [
            other
            for link in links
            for other in timeline.within(link, stretch.start_ns, stretch.end_ns)
            if _likeness(other, stretch) >= _COINCIDES
        ]

    def verdict(self, root: Root, members: list[Stretch]) -> str:
        """Final cause, once it is known what waits behind a root."""
        if root.cause != "saturated":
            return root.cause
        link, span = root.stretch.link, root.stretch
        victims = len({member.link for member in members} - {link})
        siblings = self._siblings(link)
        busy = sum(
            self._busy.covered_ns(other, span.start_ns, span.end_ns) >= _SIBLINGS * span.length_ns
            for other in siblings
        )
        root.evidence |= {"siblings": len(siblings), "siblings_saturated": busy}
        if self._topology.is_host(self._topology.hops[link].next_node):
            return "incast" if victims >= 2 else "overload"
        if siblings and busy >= _SIBLINGS * len(siblings):
            return "overload"
        return "uplink_collision" if victims >= 2 else "overload"

    def _saturated(self, busy: Stretch) -> Root:
        evidence: dict[str, Any] = {
            "saturated": True,
            "root_utilization": busy.mean_utilization,
        }
        if busy.seen_from is not None:
            evidence["seen_from"] = busy.seen_from
        return Root(stretch=busy, cause="saturated", evidence=evidence)

    def _last_hop(self, stretch: Stretch) -> Root:
        """The port towards a host waits: for the host, or for its own line rate."""
        receiver = self._topology.hops[stretch.link].receiver
        utilization = stretch.mean_utilization
        if utilization is not None and utilization >= self._rules.busy_utilization:
            return self._saturated(stretch)
        evidence = {"receiver": receiver, "receiver_utilization": utilization}
        return Root(stretch=stretch, cause="slow_receiver", evidence=evidence)

    def alone(self, stretch: Stretch) -> Root:
        """A waiting port that nothing explains."""
        onward = self._topology.onward(stretch.link)
        seen = sum(link in self._wait or link in self._busy for link in onward)
        evidence = {"onward_ports": len(onward), "onward_ports_ever_busy": seen}
        full = (stretch.mean_utilization or 0.0) >= self._rules.busy_utilization
        return Root(stretch=stretch, cause="saturated" if full else "unknown", evidence=evidence)

    def _sick(self, link: str, span: Stretch) -> dict[str, Any] | None:
        """Evidence that a link is sick: errors at its receiving port, or, unseen, at its own."""
        receiver = self._topology.hops[link].receiver
        counted_by = receiver if receiver in self._errors else link
        errors = self._errors.errors_in(counted_by, span.start_ns, span.end_ns)
        per_s = errors / (span.length_ns / 1e9)
        if per_s < self._rules.sick_errors_per_s:
            return None
        return {"receiver": receiver, "errors_counted_by": counted_by, "errors_per_s": per_s}

    def _sick_onward(self, stretch: Stretch) -> list[Root]:
        """Sick links one hop onward that do not wait themselves."""
        found = []
        for link in self._topology.onward(stretch.link):
            evidence = self._sick(link, stretch)
            if evidence is not None:
                span = Stretch(link=link, start_ns=stretch.start_ns, end_ns=stretch.end_ns)
                found.append(Root(stretch=span, cause="sick_link", evidence=evidence))
        return found

    def _saturated_onward(self, stretch: Stretch) -> list[Stretch]:
        return [
            busy
            for link in self._topology.onward(stretch.link)
            for busy in self._busy.within(link, stretch.start_ns, stretch.end_ns)
            if not self._wait.covered_ns(link, busy.start_ns, busy.end_ns)
        ]

    def _explaining(self, stretch: Stretch) -> list[Stretch]:
        """Saturated ports onward that account for a wait."""
        found = []
        for busy in self._saturated_onward(stretch):
            shared = overlap_ns(busy, stretch)
            if shared >= _COVERS * stretch.length_ns or shared >= _COVERS * busy.length_ns:
                found.append(busy)
        precision = {busy.id: self._precision(busy) for busy in found}
        best = max(precision.values(), default=0.0)
        return [busy for busy in found if precision[busy.id] >= _PRECISE * best]

    def _precision(self, busy: Stretch) -> float:
        """Share of a port's saturated time, in and around a stretch, with a feeder waiting."""
        margin = max(busy.length_ns, int(self._rules.context_s * 1e9))
        start, end = busy.start_ns - margin, busy.end_ns + margin
        waits = [
            (s.start_ns, s.end_ns)
            for feeder in self._topology.behind(busy.link)
            for s in self._wait.within(feeder, start, end)
        ]
        saturated = [(s.start_ns, s.end_ns) for s in self._busy.within(busy.link, start, end)]
        either = union_ns([*waits, *saturated])
        both = union_ns(waits) + union_ns(saturated) - either
        return both / union_ns(saturated)

    def _siblings(self, link: str) -> list[str]:
        """Other ports of the same node that lead the same way, to switches as this one does."""
        topology = self._topology
        hop = topology.hops[link]
        return [
            other
            for other in topology.out_of[hop.node]
            if other != link
            and topology.rises(other) == topology.rises(link)
            and not topology.is_host(topology.hops[other].next_node)
        ]


def _likeness(a: Stretch, b: Stretch) -> float:
    """Shared time over the time that either lasts."""
    shared = overlap_ns(a, b)
    return shared / (a.length_ns + b.length_ns - shared)

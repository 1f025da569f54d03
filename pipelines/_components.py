"""Cuts all stretches into independent pieces: what belongs to one has no bearing on another.

A piece is what hangs together by the reasons that :class:`~xtune.pipelines._causes.Causes` finds
between neighbours in topology and time, so a fabric that is always congested somewhere still
falls into pieces. It carries all that its episodes rest on, and a digest of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from xtune.pipelines._causes import Causes, Reason
from xtune.pipelines._stretches import Stretch, Timeline, fit, hash_id, overlap_ns
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One independent piece.

    Attributes:
        waits: Its waiting stretches, by start.
        reasons: For each of them, why it waits; empty without topology.
        beside: Saturated stretches of its roots' siblings.
        pauses: Stretches in which its ports, or those they send to, pause the network.
        errors: Stretches of errors of its ports, where there is no topology.
        host: The host (or node), where the topology does not have these ports.
        known: Whether there is any topology.
        digest: Of all that its episodes rest on, beside the rules and the code.
    """

    waits: tuple[Stretch, ...]
    reasons: tuple[tuple[Reason, ...], ...] = ()
    beside: tuple[Stretch, ...] = ()
    pauses: tuple[Stretch, ...] = ()
    errors: tuple[Stretch, ...] = ()
    host: str | None = None
    known: bool = True
    digest: str = ""

    @property
    def start_ns(self) -> int:
        """Earliest start."""
        return min(s.start_ns for s in self.waits)

    @property
    def end_ns(self) -> int:
        """Latest end."""
        return max(s.end_ns for s in self.waits)


def seen_from_receivers(
    timelines: dict[str, Timeline],
    topology: Topology,
    sampled: Collection[str],
    rules: EpisodeRules | None = None,
) -> dict[str, Timeline]:
    """Add what the port at the other end of a link tells of its sender.

    What arrives at line rate was sent so, and a port that pauses the network makes the port that
    sends to it wait. That tells of ports that are not sampled themselves: most clusters sample
    their hosts and not their switches. And it tells when a port was saturated that is sampled
    too seldom to show it.
    """
    rules = rules or EpisodeRules()
    least = rules.enter_wait[rules.report_level - 1]
    busy: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in timelines.get("received", ()):
        hop = topology.hops.get(stretch.link)
        if hop is not None:
            busy[hop.receiver].append(replace(stretch, link=hop.receiver, seen_from=stretch.link))
    sharper = [
        s for link, found in busy.items() for s in _sharpest(timelines["busy"].of(link), found)
    ]
    wait = list(timelines["wait"])
    for stretch in timelines.get("pauses", ()):
        hop = topology.hops.get(stretch.link)
        if (
            hop is not None
            and hop.receiver not in sampled
            and (stretch.mean_wait_fraction or 0.0) >= least
            and stretch.samples >= rules.min_samples
            and stretch.length_ns >= rules.min_length_s * 1e9
        ):
            wait.append(replace(stretch, link=hop.receiver, seen_from=stretch.link))
    alone = [s for s in timelines["busy"] if s.link not in busy]
    return {**timelines, "busy": Timeline([*alone, *sharper]), "wait": Timeline(wait)}


def _sharpest(own: Sequence[Stretch], seen: list[Stretch]) -> list[Stretch]:
    """Stretches of one port by its own samples and by those at the far end, as one series.

    Where both tell of the same time, the bounds are those of whichever is sampled more often,
    unless the other has known of it for longer.
    """
    series: list[Stretch] = []
    for stretch in sorted([*own, *seen], key=lambda s: (s.start_ns, s.end_ns, s.seen_from or "")):
        if not series or stretch.start_ns >= series[-1].end_ns:
            series.append(stretch)
            continue
        fine, coarse = sorted((series[-1], stretch), key=lambda s: (s.step_ns, s.seen_from or ""))
        start, end = fine.start_ns, fine.end_ns
        if start - coarse.start_ns > coarse.step_ns:
            start = coarse.start_ns
        if coarse.end_ns - end > coarse.step_ns:
            end = coarse.end_ns
        series[-1] = replace(
            fine, start_ns=start, end_ns=end, samples=max(1, (end - start) // max(1, fine.step_ns))
        )
    return series


def components(
    timelines: dict[str, Timeline],
    topology: Topology,
    rules: EpisodeRules,
    sampled: Collection[str] | None = None,
) -> list[Component]:
    """All pieces, by start.

    Args:
        timelines: Stretches by kind, as :func:`seen_from_receivers` gives them.
        topology: The fabric; may be empty or partial.
        rules: What counts.
        sampled: Ports of which there are counters; None where that is not known.
    """
    placed = [s for s in timelines["wait"] if topology.hop(s.link) is not None]
    lost = [s for s in timelines["wait"] if topology.hop(s.link) is None]
    found = _with_topology(placed, timelines, topology, rules, sampled)
    found += _by_host(lost, timelines, topology)
    ordered = sorted(found, key=lambda c: (c.start_ns, c.waits[0].link))
    return [replace(c, digest=_digest(c, topology)) for c in ordered]


def _with_topology(
    stretches: list[Stretch],
    timelines: dict[str, Timeline],
    topology: Topology,
    rules: EpisodeRules,
    sampled: Collection[str] | None,
) -> list[Component]:
    causes = Causes(timelines, topology, rules, sampled)
    reasons: dict[Key, list[Reason]] = {}
    passed: dict[Key, list[Reason]] = {}
    for stretch in stretches:
        reasons[stretch.key], passed[stretch.key] = causes.reasons(stretch)
    _feed(stretches, reasons, passed, topology)
    sets = _Sets()
    for stretch in stretches:
        sets.join(("wait", stretch.key), ("wait", stretch.key))
        for reason in reasons[stretch.key]:
            kind = "wait" if reason.kind in ("onward", "receiver", "alone") else reason.kind
            if reason.stretch.key == stretch.key:
                kind = "wait"
            sets.join(("wait", stretch.key), (kind, reason.stretch.key))
    for a, b in _of_one_host(stretches, reasons, topology, rules):
        sets.join(("wait", a.key), ("wait", b.key))
    for a, b in _of_one_blind_spot(stretches, reasons, topology, rules):
        sets.join(("wait", a.key), ("wait", b.key))
    groups: dict[Any, list[Stretch]] = defaultdict(list)
    for stretch in sorted(stretches, key=lambda s: (s.start_ns, s.link)):
        groups[sets.top(("wait", stretch.key))].append(stretch)
    return [
        Component(
            waits=tuple(group),
            reasons=tuple(tuple(reasons[s.key]) for s in group),
            beside=_beside(group, reasons, timelines, topology),
            pauses=_pauses(group, timelines, topology),
        )
        for group in groups.values()
    ]


def _feed(
    stretches: list[Stretch],
    reasons: dict[Key, list[Reason]],
    passed: dict[Key, list[Reason]],
    topology: Topology,
) -> None:
    """Give a switch's waiting port that nobody waits for the likeliest of those that might.

    Something has to fill it: a port that waits for another reason too, and agrees better with it.
    """
    fed = {r.stretch.key for found in reasons.values() for r in found if r.kind == "onward"}
    could: dict[Key, list[tuple[float, Stretch, Reason]]] = defaultdict(list)
    for stretch in stretches:
        for reason in passed[stretch.key]:
            target = reason.stretch
            covers = overlap_ns(stretch, target) / target.length_ns
            if reason.kind == "onward" and target.key not in fed and covers >= 0.8:
                could[target.key].append((reason.fit, stretch, reason))
    for _, found in sorted(could.items()):
        _, stretch, reason = min(found, key=lambda f: (-f[0], f[1].key))
        hop = topology.hop(reason.stretch.link)
        if hop is not None and not topology.is_host(hop.node):
            reasons[stretch.key].append(reason)


def _of_one_host(
    stretches: list[Stretch],
    reasons: dict[Key, list[Reason]],
    topology: Topology,
    rules: EpisodeRules,
) -> list[tuple[Stretch, Stretch]]:
    """Pairs of waits whose roots lead to adapters of one host over the same span."""
    at: dict[str, list[tuple[Stretch, Stretch]]] = defaultdict(list)
    for stretch in stretches:
        for reason in reasons[stretch.key]:
            hop = topology.hops.get(reason.stretch.link)
            host = topology.host(hop.next_node) if hop else None
            if host is not None and reason.kind in ("receiver", "saturated"):
                at[host].append((reason.stretch, stretch))
    pairs = []
    for _, found in sorted(at.items()):
        found.sort(key=lambda f: (f[0].start_ns, f[0].link, f[1].key))
        for (root, wait), (other, behind) in pairwise(found):
            if root.link != other.link and fit(root, other) >= rules.alike:
                pairs.append((wait, behind))
    return pairs


def _of_one_blind_spot(
    stretches: list[Stretch],
    reasons: dict[Key, list[Reason]],
    topology: Topology,
    rules: EpisodeRules,
) -> list[tuple[Stretch, Stretch]]:
    """Pairs of waits without a reason, over the same span, into a node of which nothing is seen.

    They very likely wait for the same port.
    """
    at: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in stretches:
        hop = topology.hop(stretch.link)
        if hop is not None and all(blind(r) for r in reasons[stretch.key]):
            lossy = any("lossy" in r.evidence for r in reasons[stretch.key])
            at["" if lossy else hop.next_node].append(stretch)
    pairs = []
    for _, found in sorted(at.items()):
        found.sort(key=lambda s: (s.start_ns, s.end_ns, s.link))
        pairs += [(a, b) for a, b in pairwise(found) if fit(a, b) > rules.alike]
    return pairs


def blind(reason: Reason) -> bool:
    """Whether nothing explains a wait and nothing beyond it was looked at."""
    if reason.kind != "alone":
        return False
    return "lossy" in reason.evidence or reason.evidence.get("onward_ports_sampled") == 0


def _beside(
    group: list[Stretch],
    reasons: dict[Key, list[Reason]],
    timelines: dict[str, Timeline],
    topology: Topology,
) -> tuple[Stretch, ...]:
    start, end = min(s.start_ns for s in group), max(s.end_ns for s in group)
    links = {
        sibling
        for stretch in group
        for reason in reasons[stretch.key]
        if reason.kind == "saturated"
        for sibling in topology.siblings(reason.stretch.link)
    }
    return tuple(s for link in sorted(links) for s in timelines["busy"].within(link, start, end))


def _pauses(
    group: list[Stretch], timelines: dict[str, Timeline], topology: Topology
) -> tuple[Stretch, ...]:
    """Where a port that the group sends to pauses it."""
    paused = timelines.get("pauses")
    if paused is None:
        return ()
    start, end = min(s.start_ns for s in group), max(s.end_ns for s in group)
    hops = [topology.hop(stretch.link) for stretch in group]
    links = sorted({hop.receiver for hop in hops if hop is not None})
    return tuple(s for link in links for s in paused.within(link, start, end))


def _by_host(
    stretches: list[Stretch], timelines: dict[str, Timeline], topology: Topology
) -> list[Component]:
    """Waits of one host's ports that overlap; who waits for whom is not known."""
    by_host: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in sorted(stretches, key=lambda s: (s.start_ns, s.link)):
        by_host[topology.host_of_port(stretch.link)].append(stretch)
    found = []
    for host, waits in sorted(by_host.items()):
        group: list[Stretch] = []
        reached = 0
        for stretch in waits:
            if group and stretch.start_ns >= reached:
                found.append(_host_component(host, group, timelines, topology))
                group = []
            group.append(stretch)
            reached = max(reached, stretch.end_ns)
        found.append(_host_component(host, group, timelines, topology))
    return found


def _host_component(
    host: str, group: list[Stretch], timelines: dict[str, Timeline], topology: Topology
) -> Component:
    start, end = min(s.start_ns for s in group), max(s.end_ns for s in group)
    links = sorted({s.link for s in group})

    def beside(kind: str) -> tuple[Stretch, ...]:
        timeline = timelines.get(kind, Timeline(()))
        return tuple(s for link in links for s in timeline.within(link, start, end))

    return Component(
        waits=tuple(group),
        errors=beside("errors"),
        beside=beside("received"),
        pauses=beside("pauses"),
        host=host,
        known=bool(topology.hops),
    )


def _digest(component: Component, topology: Topology) -> str:
    links = {s.link for s in (*component.waits, *component.beside)}
    links |= {r.stretch.link for found in component.reasons for r in found}
    places = [
        (link, topology.hop(link), topology.rises(link), topology.is_host(hop.next_node),
         topology.host(hop.node), topology.host(hop.next_node),
         topology.siblings(link))
        for link in sorted(links)
        if (hop := topology.hop(link)) is not None
    ]  # fmt: skip
    return hash_id("component", component, places)


class _Sets:
    """Disjoint sets of anything (union-find with path halving)."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def top(self, item: Any) -> Any:
        parent = self._parent
        while parent.setdefault(item, item) != item:
            parent[item] = item = parent[parent[item]]
        return item

    def join(self, a: Any, b: Any) -> None:
        a, b = self.top(a), self.top(b)
        if a != b:
            low, high = min(a, b), max(a, b)
            self._parent[high] = low

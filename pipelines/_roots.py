"""The roots of one piece, and which of its waiting stretches belong to each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from xtune.pipelines._causes import Kind, Reason, choose
from xtune.pipelines._components import Component, Key, blind
from xtune.pipelines._stretches import Stretch, Timeline, fit, together
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules


@dataclass(kw_only=True, slots=True)
class Found:
    """Roots of one cause, and what waits for them.

    Attributes:
        kind: As :class:`~xtune.pipelines._causes.Reason` has it.
        own: The roots' own stretches, by start; of several ports where one cause has several.
        victims: Other stretches, by start.
        evidence: What it rests on so far.
        blind: Whether the root itself was not looked at: ``own`` are those that wait for it.
    """

    kind: Kind
    own: list[Stretch]
    victims: list[Stretch] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    blind: bool = False

    @property
    def links(self) -> set[str]:
        """Ports of the roots."""
        return {s.link for s in self.own}

    @property
    def span(self) -> Stretch:
        """One stretch as long as all of the roots' own."""
        first = self.own[0]
        start, end = min(s.start_ns for s in self.own), max(s.end_ns for s in self.own)
        return Stretch(link=first.link, start_ns=start, end_ns=end, samples=first.samples)


@dataclass(kw_only=True, slots=True)
class _Root:
    """A root while members are sought: its stretch, and what waits for it directly."""

    reason: Reason
    span: Stretch
    direct: list[Stretch]
    own: Key | None


def find_roots(component: Component, topology: Topology, rules: EpisodeRules) -> list[Found]:
    """All roots of a piece, each with its victims; joined where they have one cause."""
    roots = _roots(component, rules)
    feeders = _feeders(component)
    chosen = _choose(component, roots, feeders, rules)
    members = [_members(i, root, chosen, feeders) for i, root in enumerate(roots)]
    _place_rest(component, roots, members)
    pairs = zip(roots, members, strict=True)
    found = [one for root, of_root in pairs if (one := _found(root, of_root)) is not None]
    covered = {s.key for f in found for s in (*f.own, *f.victims)}
    found += _circles(component, covered, feeders)
    return _joined(found, Timeline(component.beside), topology, rules)


def _roots(component: Component, rules: EpisodeRules) -> list[_Root]:
    roots: list[_Root] = []
    aside: dict[tuple[Kind, Key], list[tuple[Stretch, Reason]]] = defaultdict(list)
    for wait, reasons in zip(component.waits, component.reasons, strict=True):
        for reason in reasons:
            if reason.kind == "onward":
                continue
            if reason.kind in ("receiver", "alone") or reason.stretch is wait:
                roots.append(_Root(reason=reason, span=wait, direct=[], own=wait.key))
            else:
                aside[reason.kind, reason.stretch.key].append((wait, reason))
    for _, found in sorted(aside.items()):
        group: list[tuple[Stretch, Reason]] = []
        for wait, reason in found:
            reached = max((w.end_ns for w, _ in group), default=0)
            if group and wait.start_ns > reached + rules.max_gap_s * 1e9:
                roots.append(_aside(group))
                group = []
            group.append((wait, reason))
        roots.append(_aside(group))
    return roots


def _aside(group: list[tuple[Stretch, Reason]]) -> _Root:
    """A root that does not wait itself counts from when something waits behind it."""
    waits = [wait for wait, _ in group]
    best = max((reason for _, reason in group), key=lambda r: (r.fit, -r.stretch.start_ns))
    span = _within(best.stretch, waits)
    return _Root(reason=best, span=span, direct=waits, own=None)


def _within(stretch: Stretch, waits: list[Stretch]) -> Stretch:
    start, end = min(w.start_ns for w in waits), max(w.end_ns for w in waits)
    return stretch.part(start, end)


def _feeders(component: Component) -> dict[Key, list[Stretch]]:
    feeders: dict[Key, list[Stretch]] = defaultdict(list)
    for wait, reasons in zip(component.waits, component.reasons, strict=True):
        for reason in reasons:
            if reason.kind == "onward":
                feeders[reason.stretch.key].append(wait)
    return feeders


def _choose(
    component: Component,
    roots: list[_Root],
    feeders: dict[Key, list[Stretch]],
    rules: EpisodeRules,
) -> dict[Key, set[int]]:
    """For each stretch the roots that it waits for, of those that it leads to.

    Chosen by the roots' own time: a chain of waits that each overlap the next a little leads
    from one cause to another that has nothing to do with it.
    """
    leads: dict[Key, list[int]] = defaultdict(list)
    for index, root in enumerate(roots):
        reached = {s.key: s for s in root.direct}
        frontier = list(root.direct)
        if root.own is not None:
            frontier.append(root.span)
        while frontier:
            for other in feeders.get(frontier.pop().key, ()):
                new = other.key not in reached and other.key != root.own
                if new and together(root.span, other):
                    reached[other.key] = other
                    frontier.append(other)
        for key in reached:
            leads[key].append(index)
    chosen: dict[Key, set[int]] = {}
    for wait in component.waits:
        options = [
            Reason(kind="onward", stretch=roots[i].span, fit=fit(wait, roots[i].span),
                   evidence={"root": i})
            for i in leads[wait.key]
        ]  # fmt: skip
        kept, _ = choose(wait, options, rules)
        chosen[wait.key] = {reason.evidence["root"] for reason in kept}
    return chosen


def _members(
    index: int, root: _Root, chosen: dict[Key, set[int]], feeders: dict[Key, list[Stretch]]
) -> dict[Key, Stretch]:
    """What waits for a root, hop by hop."""
    members = {s.key: s for s in root.direct if index in chosen[s.key]}
    frontier = list(members.values())
    if root.own is not None:
        members[root.own] = root.span
        frontier.append(root.span)
    while frontier:
        for other in feeders.get(frontier.pop().key, ()):
            if other.key not in members and index in chosen[other.key]:
                members[other.key] = other
                frontier.append(other)
    return members


def _place_rest(
    component: Component, roots: list[_Root], members: list[dict[Key, Stretch]]
) -> None:
    """Put stretches that lost their way to the root they chose with what they wait for."""
    placed = {key for of_root in members for key in of_root}
    rest = [
        (wait, reasons)
        for wait, reasons in zip(component.waits, component.reasons, strict=True)
        if wait.key not in placed
    ]
    moved = True
    while rest and moved:
        moved = False
        for wait, reasons in list(rest):
            onward = {r.stretch.key for r in reasons}
            options = [
                (fit(wait, root.span), -index)
                for index, root in enumerate(roots)
                if onward & members[index].keys() or wait in root.direct
            ]
            if options:
                members[-max(options)[1]][wait.key] = wait
                rest.remove((wait, reasons))
                moved = True


def _found(root: _Root, members: dict[Key, Stretch]) -> Found | None:
    victims = [s for key, s in members.items() if key != root.own]
    reason = root.reason
    if root.own is None and not victims:
        return None
    return Found(
        kind=reason.kind,
        own=[root.span if root.own is not None else _within(reason.stretch, victims)],
        victims=sorted(victims, key=lambda s: (s.start_ns, s.link)),
        evidence=dict(reason.evidence),
        blind=blind(reason),
    )


def _circles(
    component: Component, covered: set[Key], feeders: dict[Key, list[Stretch]]
) -> list[Found]:
    """What is left waits in a circle: the port that waits most stands for its root."""
    found = []
    left = sorted(
        (s for s in component.waits if s.key not in covered),
        key=lambda s: (-(s.mean_wait_fraction or 0.0), s.link, s.start_ns),
    )
    for stretch in left:
        if stretch.key in covered:
            continue
        members = {stretch.key: stretch}
        frontier = [stretch]
        while frontier:
            for other in feeders.get(frontier.pop().key, ()):
                if other.key not in members and together(stretch, other):
                    members[other.key] = other
                    frontier.append(other)
        covered |= members.keys()
        del members[stretch.key]
        victims = sorted(members.values(), key=lambda s: (s.start_ns, s.link))
        evidence = {"circle": True}
        found.append(Found(kind="alone", own=[stretch], victims=victims, evidence=evidence))
    return found


def _joined(
    found: list[Found], busy: Timeline, topology: Topology, rules: EpisodeRules
) -> list[Found]:
    """Join roots of one cause, one after the other in the order of time."""
    joined: list[Found] = []
    for one in sorted(found, key=lambda f: (f.own[0].start_ns, f.own[0].link, f.kind)):
        for other in joined:
            if _one_cause(one, other, busy, topology, rules):
                other.own += one.own
                known = {s.key for s in (*other.victims, *other.own)}
                other.victims += [s for s in one.victims if s.key not in known]
                other.victims = [s for s in other.victims if s.link not in other.links]
                other.victims.sort(key=lambda s: (s.start_ns, s.link))
                break
        else:
            joined.append(one)
    return joined


def _one_cause(
    one: Found, other: Found, busy: Timeline, topology: Topology, rules: EpisodeRules
) -> bool:
    if one.kind != other.kind:
        return False
    if one.links & other.links:
        # One port with breaks.
        return bool({s.key for s in one.victims} & {s.key for s in other.victims})
    if one.blind and other.blind:
        return fit(one.span, other.span) >= rules.alike
    ends = [{topology.hops[link].next_node for link in f.links if link in topology.hops}
            for f in (one, other)]  # fmt: skip
    hosts = [{topology.host(node) for node in nodes} for nodes in ends]
    if None not in hosts[0] and hosts[0] == hosts[1] and hosts[0]:
        # Adapters of one host, over the same span.
        return fit(one.span, other.span) >= rules.alike
    if one.kind != "saturated" or fit(one.span, other.span) < rules.alike:
        return False
    siblings = {s for link in other.links for s in topology.siblings(link)}
    return one.links <= siblings and overloaded(one, busy, topology, rules)[2]


def overloaded(
    found: Found, busy: Timeline, topology: Topology, rules: EpisodeRules
) -> tuple[int, int, bool]:
    """How many siblings a saturated root has, how many are so too, and if the load is too much."""
    span = found.span
    siblings = {s for own in found.links for s in topology.siblings(own)} - found.links
    # Those that are roots of this episode too are saturated anyway.
    number, full = len(siblings) + len(found.links) - 1, len(found.links) - 1
    for other in siblings:
        covered = busy.covered_ns(other, span.start_ns, span.end_ns)
        full += covered >= 0.5 * span.length_ns
    return number, full, number > 0 and full >= rules.siblings_busy * number

"""Groups waiting stretches into episodes: one root each, and what waits because of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from xtune.pipelines._causes import Causes, Root
from xtune.pipelines._identity import Identity
from xtune.pipelines._stretches import Stretch, Timeline, hash_id, overlap_ns, together
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules


@dataclass(kw_only=True, slots=True)
class Episode:
    """One episode.

    Attributes:
        id: Deterministic: root port and start, or its first member's.
        root: The root port; None where topology does not tell.
        cause: One of the contract's causes.
        members: Stretches in it, the root's first where it is known.
        evidence: JSON-able.
    """

    id: str
    root: str | None
    cause: str
    members: list[Stretch]
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def start_ns(self) -> int:
        """Earliest start."""
        return min(member.start_ns for member in self.members)

    @property
    def end_ns(self) -> int:
        """Latest end."""
        return max(member.end_ns for member in self.members)

    def role(self, member: Stretch) -> str:
        """``root``, ``victim`` or ``unknown``."""
        if self.root is None:
            return "unknown"
        return "root" if member.link == self.root else "victim"

    def evidence_text(self) -> str:
        """The evidence as the table holds it."""
        return json.dumps(self.evidence, sort_keys=True)


def seen_from_receivers(
    timelines: dict[str, Timeline], topology: Topology, sampled: Collection[str]
) -> dict[str, Timeline]:
    """Add saturated ports that were not sampled themselves, only the host they send to.

    Most clusters sample their hosts and not their switches: the port towards a host is seen at
    the host's own port, by what it receives.
    """
    found = list(timelines["busy"])
    for stretch in timelines["received"]:
        hop = topology.hops.get(stretch.link)
        if hop is not None and topology.is_host(hop.node) and hop.receiver not in sampled:
            found.append(replace(stretch, link=hop.receiver, seen_from=stretch.link))
    return {**timelines, "busy": Timeline(found)}


def build_episodes(
    timelines: dict[str, Timeline], topology: Topology, identity: Identity, rules: EpisodeRules
) -> list[Episode]:
    """Episodes of all waiting stretches, by start.

    A stretch that waits because of two roots is in two episodes. Ports that the topology does not
    have are grouped by host.
    """
    placed = [s for s in timelines["wait"] if s.link in topology.hops]
    lost = [s for s in timelines["wait"] if s.link not in topology.hops]
    episodes = _with_topology(placed, timelines, topology, rules)
    episodes += _by_host(lost, timelines, identity, rules, known=bool(topology.hops))
    for episode in episodes:
        if any(member.end_unknown for member in episode.members):
            episode.evidence["end_unknown"] = True
    _note_shared(episodes)
    return sorted(episodes, key=lambda e: (e.start_ns, e.id))


def _with_topology(
    stretches: list[Stretch],
    timelines: dict[str, Timeline],
    topology: Topology,
    rules: EpisodeRules,
) -> list[Episode]:
    causes = Causes(timelines, topology, rules)
    roots: dict[str, Root] = {}
    behind: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in stretches:
        waits = causes.beyond(stretch)
        found = causes.roots(stretch, last=not waits)
        if not waits and not found:
            waits, found = causes.farther(stretch)
        if not waits and not found:
            found = [causes.alone(stretch)]
        for root in found:
            roots.setdefault(root.stretch.id, root)
        for onward in [*waits, *(root.stretch for root in found)]:
            behind[onward.id].append(stretch)
    grown = {name: (root, _upstream(root.stretch, causes, behind)) for name, root in roots.items()}
    covered = {member.id for _, members in grown.values() for member in members}
    # What is left waits in a circle: the port that waits most stands for its root.
    left = sorted(
        (s for s in stretches if s.id not in covered),
        key=lambda s: (-(s.mean_wait_fraction or 0.0), s.link, s.start_ns),
    )
    for stretch in left:
        if stretch.id not in covered:
            root = Root(stretch=stretch, cause="unknown", evidence={"circle": True})
            grown[stretch.id] = root, _upstream(stretch, causes, behind)
            covered.update(member.id for member in grown[stretch.id][1])
    return [_episode(causes, of_link, victims) for of_link, victims in _joined(grown)]


def _upstream(root: Stretch, causes: Causes, behind: dict[str, list[Stretch]]) -> list[Stretch]:
    """The root and all that waits behind it, hop by hop, while it lasts."""
    members = {root.id: root}
    frontier = [root]
    while frontier:
        stretch = frontier.pop()
        for other in [*causes.behind(stretch.link, stretch), *behind[stretch.id]]:
            if other.id not in members and together(root, other):
                members[other.id] = other
                frontier.append(other)
    return list(members.values())


def _joined(
    found: dict[str, tuple[Root, list[Stretch]]],
) -> list[tuple[list[Root], list[Stretch]]]:
    """Roots of one port that share a victim are one root: it was saturated with breaks."""
    by_link: dict[str, list[tuple[Root, list[Stretch]]]] = defaultdict(list)
    for root, members in sorted(found.values(), key=lambda rm: rm[0].stretch.start_ns):
        groups = by_link[root.stretch.link]
        ids = {member.id for member in members if member.link != root.stretch.link}
        if groups and ids & {member.id for member in groups[-1][1]}:
            groups[-1][1].extend(m for m in members if m not in groups[-1][1])
        else:
            groups.append((root, list(members)))
    joined = []
    for groups in by_link.values():
        for root, members in groups:
            stretches = [m for m in members if m.link == root.stretch.link]
            roots = [replace(root, stretch=stretch) for stretch in stretches]
            joined.append((roots, [m for m in members if m.link != root.stretch.link]))
    return joined


def _episode(causes: Causes, roots: list[Root], victims: list[Stretch]) -> Episode:
    root = roots[0]
    own = [r.stretch for r in roots]
    if root.cause == "saturated" and victims:
        own = [_clipped(stretch, victims) for stretch in own]
    victims = sorted(victims, key=lambda s: (s.start_ns, s.link))
    cause = causes.verdict(root, victims)
    link = root.stretch.link
    evidence = {
        **root.evidence,
        "topology": True,
        "victims": len({v.link for v in victims}),
        "root_wait": own[0].mean_wait_fraction,
    }
    start = min(s.start_ns for s in own)
    return Episode(
        id=hash_id("episode", link, start),
        root=link,
        cause=cause if cause != "saturated" else "overload",
        members=[*own, *victims],
        evidence=evidence,
    )


def _clipped(stretch: Stretch, victims: list[Stretch]) -> Stretch:
    """A saturated port's stretch while something waits behind it."""
    start = max(stretch.start_ns, min(v.start_ns for v in victims))
    end = min(stretch.end_ns, max(v.end_ns for v in victims))
    share = (end - start) / stretch.length_ns
    return replace(
        stretch,
        start_ns=start,
        end_ns=end,
        bytes=None if stretch.bytes is None else stretch.bytes * share,
    )


def _by_host(
    stretches: list[Stretch],
    timelines: dict[str, Timeline],
    identity: Identity,
    rules: EpisodeRules,
    *,
    known: bool,
) -> list[Episode]:
    """Stretches that overlap on one host are one episode; who waits for whom is not known."""
    by_host: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in sorted(stretches, key=lambda s: (s.start_ns, s.link)):
        host = identity.host_of_link(stretch.link) or stretch.link.rpartition("/")[0]
        by_host[host].append(stretch)
    episodes = []
    for host, found in sorted(by_host.items()):
        groups: list[list[Stretch]] = []
        for stretch in found:
            if groups and any(overlap_ns(stretch, other) for other in groups[-1]):
                groups[-1].append(stretch)
            else:
                groups.append([stretch])
        episodes += [_host_episode(host, group, timelines, rules, known) for group in groups]
    return episodes


def _host_episode(
    host: str,
    members: list[Stretch],
    timelines: dict[str, Timeline],
    rules: EpisodeRules,
    known: bool,
) -> Episode:
    evidence: dict[str, Any] = {
        "topology": False,
        "why": "these ports are not in the topology" if known else "no topology was collected",
        "host": host,
    }
    cause = "unknown"
    for member in members:
        errors = timelines["errors"].errors_in(member.link, member.start_ns, member.end_ns)
        per_s = errors / (member.length_ns / 1e9)
        if per_s >= rules.sick_errors_per_s:
            cause = "sick_link"
            evidence |= {"errors_counted_by": member.link, "errors_per_s": per_s}
    return Episode(
        id=hash_id("episode", members[0].link, members[0].start_ns),
        root=None,
        cause=cause,
        members=members,
        evidence=evidence,
    )


def _note_shared(episodes: list[Episode]) -> None:
    """Name, in each episode, those that share a victim with it: their costs overlap."""
    homes: dict[str, set[str]] = defaultdict(set)
    for episode in episodes:
        for member in episode.members:
            homes[member.id].add(episode.id)
    for episode in episodes:
        shared = set().union(*(homes[member.id] for member in episode.members)) - {episode.id}
        if shared:
            episode.evidence["shares_victims_with"] = sorted(shared)

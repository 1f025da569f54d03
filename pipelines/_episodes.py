"""From a piece of the fabric's congestion to its episodes: a root each, and what waits for it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xtune.pipelines._components import Component, Key, components, seen_from_receivers
from xtune.pipelines._evidence import of_host, verdict
from xtune.pipelines._identity import Identity
from xtune.pipelines._roots import Found, find_roots
from xtune.pipelines._stretches import Stretch, Timeline, hash_id
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

__all__ = ["Episode", "build_component", "build_episodes", "components", "seen_from_receivers"]


@dataclass(kw_only=True, slots=True)
class Episode:
    """One episode.

    Attributes:
        id: Deterministic: root port and start, or its first member's.
        root: The root port; None where topology does not tell.
        cause: One of the contract's causes.
        members: Stretches in it, the root's first where it is known.
        evidence: JSON-able.
        roots: Ports with the role of a root: several where one cause has several, such as all
            uplinks of a leaf that is overloaded.
        core: Its span where members last beyond it because of another episode.
    """

    id: str
    root: str | None
    cause: str
    members: list[Stretch]
    evidence: dict[str, Any] = field(default_factory=dict)
    roots: frozenset[str] = frozenset()
    core: tuple[int, int] | None = None

    @property
    def start_ns(self) -> int:
        """Earliest start."""
        return self.core[0] if self.core else min(m.start_ns for m in self.members)

    @property
    def end_ns(self) -> int:
        """Latest end."""
        return self.core[1] if self.core else max(m.end_ns for m in self.members)

    def role(self, member: Stretch) -> str:
        """``root``, ``victim`` or ``unknown``."""
        if self.root is None:
            return "unknown"
        return "root" if member.link == self.root or member.link in self.roots else "victim"

    def evidence_text(self) -> str:
        """The evidence as the table holds it."""
        return json.dumps(self.evidence, sort_keys=True)


def build_episodes(
    timelines: dict[str, Timeline],
    topology: Topology,
    identity: Identity,
    rules: EpisodeRules,
    sampled: Collection[str] | None = None,
) -> list[Episode]:
    """Episodes of all waiting stretches, by start.

    A stretch that waits because of two roots is in two episodes. Ports that the topology does not
    have are grouped by host.
    """
    if topology.identity is not identity:
        topology = replace(topology, identity=identity)
    episodes = [
        episode
        for component in components(timelines, topology, rules, sampled)
        for episode in build_component(component, topology, identity, rules)
    ]
    return sorted(episodes, key=lambda e: (e.start_ns, e.id))


def build_component(
    component: Component, topology: Topology, identity: Identity, rules: EpisodeRules
) -> list[Episode]:
    """Episodes of one piece, by start; nothing outside of it has a bearing on them."""
    if topology.identity is not identity:
        topology = replace(topology, identity=identity)
    if component.host is not None:
        episodes = [_of_host(component, rules)]
    else:
        found = find_roots(component, topology, rules)
        homes: dict[Key, int] = defaultdict(int)
        for one in found:
            for member in one.victims:
                homes[member.key] += 1
        episodes = [_of_root(one, homes, component, topology, rules) for one in found]
    for episode in episodes:
        if _end_unknown(episode.members):
            episode.evidence["end_unknown"] = True
    _note_shared(episodes)
    return sorted(episodes, key=lambda e: (e.start_ns, e.id))


def _of_root(
    found: Found,
    homes: Mapping[Key, int],
    component: Component,
    topology: Topology,
    rules: EpisodeRules,
) -> Episode:
    """One episode; what belongs to another one too has no say in how long this one lasts."""
    cause, evidence = verdict(found, component, topology, rules)
    own = sorted(found.own, key=lambda s: (s.start_ns, s.link))
    core = [*own, *(s for s in found.victims if homes[s.key] == 1)]
    start, end = min(s.start_ns for s in core), max(s.end_ns for s in core)
    # The port that held up most stands for all roots of one cause.
    worst = min(
        own, key=lambda s: (-(s.mean_wait_fraction or 0.0), -s.length_ns, s.start_ns, s.link)
    )
    root = own[0].link if len(found.links) == 1 else worst.link
    own.sort(key=lambda s: (s.link != root, s.start_ns, s.link))
    return Episode(
        id=hash_id("episode", root, own[0].start_ns),
        root=None if found.blind else root,
        cause=cause,
        members=[*own, *found.victims],
        evidence=evidence,
        roots=frozenset() if found.blind else frozenset(found.links),
        core=(start, end),
    )


def _of_host(component: Component, rules: EpisodeRules) -> Episode:
    members = list(component.waits)
    cause, evidence = of_host(component, rules)
    return Episode(
        id=hash_id("episode", members[0].link, members[0].start_ns),
        root=None,
        cause=cause,
        members=members,
        evidence=evidence,
    )


def _end_unknown(members: list[Stretch]) -> bool:
    """Whether nothing that is known to have ended lasted longest."""
    end = max(member.end_ns for member in members)
    return any(
        member.end_unknown and end - member.end_ns <= max(m.step_ns for m in members)
        for member in members
    )


def _note_shared(episodes: list[Episode]) -> None:
    """Name, in each episode, those that share a victim with it: their costs overlap."""
    homes: dict[Key, set[str]] = defaultdict(set)
    for episode in episodes:
        for member in episode.members:
            homes[member.key].add(episode.id)
    for episode in episodes:
        shared = set().union(*(homes[member.key] for member in episode.members)) - {episode.id}
        if shared:
            episode.evidence["shares_victims_with"] = sorted(shared)

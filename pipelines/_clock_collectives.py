"""Offsets of hosts from collectives that several ranks finish together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import median_low
from typing import Any

from xtune.pipelines._clock_graph import Component, Edge, components
from xtune.pipelines._clock_steps import STEP_NS, Segment, boundary_ns, segments
from xtune.pipelines._engine import Session, literal

# A day is looked at in this many blocks, of at least a minute.
_BLOCKS = 96
_SHORTEST_NS = 60_000_000_000
PAIR_SAMPLES = 1_000
# Fewer collectives of a pair on a day say nothing.
_FEWEST = 8
_FEWEST_IN_BLOCK = 3
# Hosts that must agree before one is found to differ: of two, nobody knows which is wrong.
_QUORUM = 3
# Hosts in step with NTP are within this of each other.
_AGREE_NS = 500_000_000

Series = Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A host's clock over one stretch of its own time: offset and bounds, nanoseconds."""

    from_ns: int
    to_ns: int
    offset_ns: int
    low_ns: int
    high_ns: int

    def moved(self, shift_ns: int, half_ns: int = 0) -> Stretch:
        """Against a reference that is ``shift_ns`` behind, give or take ``half_ns``."""
        return replace(
            self,
            offset_ns=self.offset_ns + shift_ns,
            low_ns=self.low_ns + shift_ns - half_ns,
            high_ns=self.high_ns + shift_ns + half_ns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Hosts whose clocks were compared with each other, directly or through others.

    Attributes:
        reference: The host of median clock; offsets are against it.
        stretches: Host -> its stretches, in the order of time.
        samples: Host -> collectives it was compared in.
    """

    reference: str
    stretches: Mapping[str, Sequence[Stretch]]
    samples: Mapping[str, int]

    @property
    def agreed(self) -> bool:
        """Whether most hosts agree with the reference: one that differs then errs."""
        near = sum(
            any(abs(stretch.offset_ns) <= _AGREE_NS for stretch in found)
            for found in self.stretches.values()
        )
        return len(self.stretches) >= _QUORUM and 2 * near > len(self.stretches)


def from_collectives(session: Session, start_ns: int, end_ns: int) -> list[Group]:
    """Groups of a day, from relations ``collectives`` and ``host_names``, the largest first."""
    session.set_variables(
        {"day_start_ns": start_ns, "day_end_ns": end_ns, "clock_pair_samples": PAIR_SAMPLES}
    )
    session.create("clock_diffs")
    block_ns = _block_ns(session)
    session.set_variables({"clock_block_ns": block_ns})
    session.create("clock_pairs")
    days: list[dict[str, Any]] = []
    series: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for row in session.arrow("FROM clock_pairs").to_pylist():
        if row["block"] < 0:
            days.append(row)
        elif row["samples"] >= _FEWEST_IN_BLOCK:
            series[row["host"], row["hub"]][row["block"]] = row["diff_ns"]
    edges = [_edge(row, series) for row in days if row["samples"] >= _FEWEST]
    groups = []
    for component in components(edges):
        own = [edge for edge in edges if edge.host in component.offset_ns]
        groups.append(_group(session, component, own, series, start_ns, end_ns, block_ns))
    return sorted(groups, key=lambda g: (-len(g.stretches), g.reference))


def _block_ns(session: Session) -> int:
    """Length of a block: what collectives cover of the day, in equal parts."""
    [(first, last)] = session.rows("SELECT min(hub_end_ns), max(hub_end_ns) FROM clock_diffs")
    return _SHORTEST_NS if first is None else max(_SHORTEST_NS, (last - first) // _BLOCKS)


def _edge(row: Mapping[str, Any], series: Mapping[tuple[str, str], Series]) -> Edge:
    """A pair of a day; its interval also covers how the blocks of the day differ (drift)."""
    medians = series.get((row["host"], row["hub"]), {}).values()
    return Edge(
        host=row["host"],
        hub=row["hub"],
        diff_ns=row["diff_ns"],
        low_ns=min(row["low_ns"], *medians, row["diff_ns"]),
        high_ns=max(row["high_ns"], *medians, row["diff_ns"]),
        # The inverse of a median's standard error; below a microsecond is not measured.
        weight=sqrt(row["samples"]) / max(row["spread_ns"], 1_000),
        samples=row["samples"],
    )


def _group(
    session: Session,
    component: Component,
    edges: Sequence[Edge],
    series: Mapping[tuple[str, str], Series],
    start_ns: int,
    end_ns: int,
    block_ns: int,
) -> Group:
    cut = _steps(component, edges, series)
    if cut:
        [component] = components(_level(edges, series, cut))
    reference = component.reference(without=cut)
    stretches: dict[str, list[Stretch]] = {}
    for host, (offset, low, high) in sorted(component.relative_to(reference).items()):
        whole = Stretch(from_ns=start_ns, to_ns=end_ns, offset_ns=offset, low_ns=low, high_ns=high)
        parts = cut.get(host) or [Segment(first=0, last=0, deviation_ns=0)]
        inner = []
        for before, after in pairwise(parts):
            begin = start_ns + (before.last - 1) * block_ns
            end = start_ns + (after.first + 2) * block_ns
            samples = _around(session, component, host, cut, begin, end)
            default = start_ns + after.first * block_ns
            inner.append(boundary_ns(samples, before, after) if samples else default)
        spans = pairwise([start_ns, *inner, end_ns])
        stretches[host] = [
            replace(whole.moved(part.deviation_ns), from_ns=begin, to_ns=end)
            for part, (begin, end) in zip(parts, spans, strict=True)
        ]
    return Group(reference=reference, stretches=stretches, samples=component.samples)


def _steps(
    component: Component, edges: Sequence[Edge], series: Mapping[tuple[str, str], Series]
) -> dict[str, list[Segment]]:
    """Hosts whose clock stepped within the day -> their segments.

    Each block is solved by itself; what most hosts of a block do together is the reference's.
    """
    if max(edge.high_ns - edge.low_ns for edge in edges) < STEP_NS:
        return {}
    by_block: dict[int, list[Edge]] = defaultdict(list)
    for edge in edges:
        for block, diff in series.get((edge.host, edge.hub), {}).items():
            by_block[block].append(replace(edge, diff_ns=diff, low_ns=diff, high_ns=diff))
    deviations: dict[str, dict[int, int]] = defaultdict(dict)
    for block, found in by_block.items():
        for part in components(found):
            if len(part.offset_ns) < _QUORUM:
                continue
            moved = {h: offset - component.offset_ns[h] for h, offset in part.offset_ns.items()}
            common = median_low(moved.values())
            for host, deviation in moved.items():
                deviations[host][block] = deviation - common
    cut = {host: segments(of_host) for host, of_host in deviations.items()}
    return {host: parts for host, parts in sorted(cut.items()) if len(parts) > 1}


def _level(
    edges: Sequence[Edge],
    series: Mapping[tuple[str, str], Series],
    cut: Mapping[str, list[Segment]],
) -> list[Edge]:
    """The pairs as they would be without the steps."""
    level = []
    for edge in edges:
        blocks = series.get((edge.host, edge.hub), {})
        diffs = [
            diff - _deviation(cut, edge.host, block) + _deviation(cut, edge.hub, block)
            for block, diff in blocks.items()
        ]
        if diffs and (edge.host in cut or edge.hub in cut):
            edge = replace(edge, diff_ns=median_low(diffs), low_ns=min(diffs), high_ns=max(diffs))
        level.append(edge)
    return level


def _deviation(cut: Mapping[str, list[Segment]], host: str, block: int) -> int:
    parts = cut.get(host, [])
    begun = [part for part in parts if part.first <= block]
    return (begun[-1] if begun else parts[0]).deviation_ns if parts else 0


def _around(
    session: Session,
    component: Component,
    host: str,
    cut: Mapping[str, list[Segment]],
    begin_ns: int,
    end_ns: int,
) -> list[tuple[int, int, int]]:
    """Reference time, a host's own time and its deviation, at collectives within a span."""
    rows = session.rows(
        "SELECT host, hub, end_ns, hub_end_ns FROM clock_diffs"
        f" WHERE (host = {literal(host)} OR hub = {literal(host)})"
        f" AND hub_end_ns BETWEEN {begin_ns} AND {end_ns}"
    )
    samples = []
    for one, two, one_ns, two_ns in rows:
        other, own_ns, other_ns = (two, one_ns, two_ns) if one == host else (one, two_ns, one_ns)
        if other in component.offset_ns and other not in cut:
            true_ns = other_ns - component.offset_ns[other]
            samples.append((true_ns, own_ns, own_ns - true_ns - component.offset_ns[host]))
    return samples

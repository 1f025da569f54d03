"""Which ranks a hang comes from, why, and how sure that is.

NVIDIA's resiliency extension orders process groups by hand-given types and names the ranks missing
in the first one; here the order comes from the wait-for graph, whatever the groups are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from xtune.pipelines._dumps import Op
from xtune.pipelines._graph import Node, components, reaching
from xtune.pipelines._incidents import Incident
from xtune.pipelines._waits import Lack, Waits

Disagreement = tuple[str, int, str, tuple[int, ...]]  # comm, seq, kind, ranks that differ


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Where a hang comes from.

    Attributes:
        culprits: Ranks, sorted; empty where no rank differs from the others.
        cause: ``host``, ``device``, ``unanswered``, ``absent``, ``order``, ``type``, ``size``,
            ``circle`` or ``transfer``.
        confidence: ``high``, ``medium`` or ``low``.
        waiting: Ranks beside them with an operation under way that others have not completed.
        explained: Those of them that wait for a culprit, directly or through others.
        lacks: Collectives that a culprit has not enqueued and others wait in.
        op: The operation that waits longest for a culprit.
        reasons: JSON-able.
    """

    culprits: tuple[int, ...]
    cause: str
    confidence: str
    waiting: int
    explained: int
    lacks: tuple[Lack, ...] = ()
    op: Op | None = None
    reasons: dict[str, Any] = field(default_factory=dict)


def judge(incident: Incident, disagreements: Iterable[Disagreement] = ()) -> Verdict | None:
    """The verdict on one incident; None where nothing waits, or nothing tells for whom.

    Args:
        incident: Its dumps.
        disagreements: Operations of it that ranks have enqueued differently.
    """
    waits = Waits(incident=incident)
    waiting = [rank for rank in waits.ranks if waits.pending[rank]]
    clash = _clash(waits, disagreements)
    if clash is not None:
        return clash
    for edges in (waits.strong, _both(waits)):
        culprits, circle = _sinks(edges, waits)
        if culprits:
            if not circle:
                culprits = sorted({*culprits, *_shadowed(waits, culprits)})
            if too_few(incident) and not set(culprits) & incident.dumps.keys():
                return None
            return _verdict(waits, waiting, edges, culprits, circle=circle)
    return _stuck_device(waits, waiting) or _stuck_transfer(waits, waiting)


def too_few(incident: Incident) -> bool:
    """Whether most ranks of a job have no dump: that they are waited for tells nothing."""
    return 2 * len(incident.absent) > len(incident.world)


def _both(waits: Waits) -> dict[Node, set[Node]]:
    nodes = waits.strong.keys() | waits.weak.keys()
    return {n: waits.strong.get(n, set()) | waits.weak.get(n, set()) for n in nodes}


def _sinks(edges: dict[Node, set[Node]], waits: Waits) -> tuple[list[int], bool]:
    """Ranks that are waited for and wait for nobody; else those of a circle, and True."""
    waited_for = {other for onward in edges.values() for other in onward}
    alone: list[int] = []
    circles: list[list[int]] = []
    for found in components(edges):
        inside = set(found)
        if any(other not in inside for node in found for other in edges.get(node, ())):
            continue
        ranks = [node for node in found if isinstance(node, int)]
        if len(found) > 1:
            circles.append(ranks)
        elif ranks and ranks[0] in waited_for:
            alone += ranks
    if alone or not circles:
        return _answering(alone, waits), False
    return sorted(rank for ranks in circles for rank in ranks), True


def _answering(ranks: list[int], waits: Waits) -> list[int]:
    """Those with a dump, where there are any: absence alone is weaker than what a dump shows."""
    present = sorted(rank for rank in ranks if rank in waits.incident.dumps)
    return present or sorted(ranks)


def _shadowed(waits: Waits, culprits: list[int]) -> set[int]:
    """Ranks that stopped as well, although they have something under way that waits for a culprit.

    A host that waits for its device stops where its program makes it. So ranks that have completed
    the same in all their groups, and hence run one program, have enqueued the same beyond that:
    the few that have enqueued less stopped by themselves. So did the few whose device or watchdog
    stopped as a culprit's did.
    """
    found: set[int] = set()
    alike: dict[tuple[int | None, ...], dict[int, int]] = defaultdict(dict)
    for rank in waits.ranks:
        done = tuple(last.completed for last in waits.incident.dumps[rank].last.values())
        if done and rank not in culprits and waits.pending[rank]:
            alike[done][rank] = len(waits.pending[rank])
    for counts in alike.values():
        fewer = {rank for rank, count in counts.items() if count < max(counts.values())}
        if _few(fewer, len(counts)):
            found |= fewer
    least = min((_missed(waits, rank) for rank in culprits), default=0)
    if least:
        stopped = {r for r in waits.ranks if 2 * _missed(waits, r) >= least}
        if _few(stopped, len(waits.ranks)):
            found |= stopped
    return found


def _few(ranks: set[int], of: int) -> bool:
    return len(ranks) * 3 <= of


def _missed(waits: Waits, rank: int) -> int:
    """Operations that a rank takes for under way and others have completed."""
    if rank not in waits.unfinished:
        return 0
    return len(waits.unfinished[rank]) - len(waits.pending[rank])


def _verdict(
    waits: Waits,
    waiting: list[int],
    edges: dict[Node, set[Node]],
    culprits: list[int],
    *,
    circle: bool,
) -> Verdict:
    incident = waits.incident
    behind = reaching(edges, culprits)
    explained = [rank for rank in waiting if rank in behind and rank not in culprits]
    others = [rank for rank in waiting if rank not in culprits]
    lacks = tuple(lack for lack in waits.lacks() if set(culprits) & {*lack.lacking, *lack.absent})
    causes = {rank: _cause(rank, waits) for rank in culprits}
    cause = "circle" if circle else sorted(causes.values())[0]
    if circle:
        confidence = "low"
    elif len(explained) < len(others) or not lacks or cause in ("absent", "unanswered"):
        confidence = "medium"
    else:
        confidence = "high"
    first = min(lacks, key=lambda k: (k.op.enqueue_ns or 0, k.op.comm), default=None)
    return Verdict(
        culprits=tuple(culprits),
        cause=cause,
        confidence=confidence,
        waiting=len(others),
        explained=len(explained),
        lacks=lacks,
        op=first.op if first else None,
        reasons={
            "culprits": {str(rank): _why(rank, causes[rank], lacks, waits) for rank in culprits},
            **_shown(incident, waits),
        },
    )


def _cause(rank: int, waits: Waits) -> str:
    dump = waits.incident.dumps.get(rank)
    if dump is None:
        return "absent"
    if _missed(waits, rank):
        return "device"
    if dump.empty and not dump.last:
        return "unanswered"
    return "host"


_WORDS = {
    "absent": "no dump of it, and others wait for it",
    "device": "operations that other ranks have completed stand as under way in its dump: its"
    " device or its watchdog stopped",
    "unanswered": "its dump is empty, without any count of operations",
    "host": "it has nothing under way and has not enqueued what others wait in",
}


def _why(rank: int, cause: str, lacks: Iterable[Lack], waits: Waits) -> dict[str, Any]:
    missed = {
        lack.op.comm: {
            "waited_for": lack.op.seq,
            "last_enqueued": waits.enqueued(rank, lack.op.comm),
        }
        for lack in lacks
        if rank in lack.lacking
    }
    dump = waits.incident.dumps.get(rank)
    words = _WORDS[cause]
    if cause == "host" and waits.pending[rank]:
        words = "it stopped earlier than ranks that wait in the same operation"
    return {
        "cause": cause,
        "why": words,
        "not_enqueued": missed,
        "empty_dump": dump is not None and dump.empty,
    }


def _shown(incident: Incident, waits: Waits) -> dict[str, Any]:
    return {
        "dumps": len(incident.dumps),
        "world": len(incident.world),
        "absent": incident.absent,
        "empty": sorted(rank for rank, dump in incident.dumps.items() if dump.empty),
        "outdated": sorted(waits.outdated),
    }


def _clash(waits: Waits, disagreements: Iterable[Disagreement]) -> Verdict | None:
    """A verdict from what ranks enqueued differently under one number: it never completes."""
    under_way = {
        (op.comm, op.seq): op
        for rank in waits.ranks
        for op in waits.pending[rank]
        if op.seq is not None
    }
    found = [d for d in disagreements if (d[0], d[1]) in under_way]
    if not found:
        return None
    comm, seq, kind, ranks = min(
        found, key=lambda d: (under_way[d[0], d[1]].enqueue_ns or 0, d[0], d[1])
    )
    waiting = [rank for rank in waits.ranks if waits.pending[rank]]
    majority = len(ranks) * 2 < len(waits.members(comm))
    return Verdict(
        culprits=ranks,
        cause=kind,
        confidence="high" if majority else "low",
        waiting=len(waiting),
        explained=len([rank for rank in waiting if rank not in ranks]),
        op=under_way[comm, seq],
        reasons={
            "why": "ranks enqueued different operations under one number",
            **_shown(waits.incident, waits),
        },
    )


def _stuck_device(waits: Waits, waiting: list[int]) -> Verdict | None:
    """Where all ranks have enqueued all: the few whose devices lag behind the others'."""
    fronts = {
        (op.comm, op.seq): op for rank in waiting if (op := waits.pending[rank][0]).seq is not None
    }
    for (comm, seq), op in sorted(fronts.items(), key=lambda f: (f[1].enqueue_ns or 0, f[0][0])):
        here = [rank for rank in waits.members(comm) if rank in waits.pending]
        started = [r for r in here if _started(waits, r, comm, seq or 0)]
        late = [r for r in here if r not in started] if started else []
        stale = [r for r in here if _missed(waits, r)]
        for ranks, why in (
            (late, "it has not started what other ranks have started"),
            (stale, _WORDS["device"]),
        ):
            if ranks and 2 * len(ranks) < len(here):
                return Verdict(
                    culprits=tuple(ranks),
                    cause="device",
                    confidence="medium" if ranks is late else "low",
                    waiting=len(waiting),
                    explained=len([r for r in waiting if r not in ranks]),
                    op=op,
                    reasons={
                        "culprits": {str(r): {"cause": "device", "why": why} for r in ranks},
                        **_shown(waits.incident, waits),
                    },
                )
    return None


def _started(waits: Waits, rank: int, comm: str, seq: int) -> bool:
    dump = waits.incident.dumps[rank]
    counted = dump.last[comm].started if comm in dump.last else None
    if counted is not None and counted >= seq:
        return True
    return any(op.started for op in dump.ops if (op.comm, op.seq) == (comm, seq))


def _stuck_transfer(waits: Waits, waiting: list[int]) -> Verdict | None:
    """All ranks have joined an operation, and it is under way for longer than its timeout."""
    latest = max((d.last_ns for d in waits.incident.dumps.values() if d.last_ns), default=0)
    for rank in waiting:
        op = waits.pending[rank][0]
        if op.enqueue_ns is None or op.timeout_ms is None:
            continue
        if latest - op.enqueue_ns >= op.timeout_ms * 1_000_000:
            return Verdict(
                culprits=(),
                cause="transfer",
                confidence="low",
                waiting=len(waiting),
                explained=0,
                op=op,
                reasons={
                    "why": "all ranks joined it and none differs: the transfer itself stopped",
                    **_shown(waits.incident, waits),
                },
            )
    return None

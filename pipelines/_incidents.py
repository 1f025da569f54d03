"""Which dumps belong together: those of one job that were written at one hang.

Two attempts of a job have the same name, ranks and groups, and their dumps may lie in one folder
under any names; the dumps of one hang may lie in as many folders as there are hosts. So dumps
are told apart by what is in them. Of one job and one set of groups, they are put in the order of
their last operation, and cut where the same rank comes again, at the widest gap in between, and
wherever nothing happened for longer than a watchdog waits. A dump without entries has no time: it
goes where its rank lacks, to dumps of its own folder before others, then to those whose
counts of operations are nearest to its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from xtune.pipelines._dumps import Dump
from xtune.pipelines._stretches import hash_id

# Longer than this, or than the longest timeout that the dumps name, between two last operations:
# two hangs. PyTorch's default timeout of a process group with NCCL.
_TIMEOUT_MS = 600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """Dumps of one hang, one a rank.

    Attributes:
        id: Deterministic.
        job: Job.
        dumps: Rank -> its dump.
        world: All ranks that the groups of the dumps name.
    """

    id: str
    job: str | None
    dumps: Mapping[int, Dump]
    world: tuple[int, ...]

    @property
    def absent(self) -> list[int]:
        """Ranks that groups name and that no dump is of."""
        return [rank for rank in self.world if rank not in self.dumps]


def incidents(dumps: Iterable[Dump], folder: Callable[[str], str]) -> list[Incident]:
    """Group dumps into incidents.

    Args:
        dumps: All dumps, each once.
        folder: Source id -> the folder that it was read from.
    """
    found = []
    for alike in _by_groups(dumps):
        timed = sorted(
            (dump for dump in alike if dump.last_ns is not None),
            key=lambda d: (d.last_ns or 0, d.rank, d.source),
        )
        parts = _cut(timed)
        for dump in sorted(alike, key=lambda d: (d.rank, d.source)):
            if dump.last_ns is None:
                _place(dump, parts, folder)
        found += [_incident(part) for part in parts]
    return sorted(found, key=lambda i: (i.job or "", i.id))


def _by_groups(dumps: Iterable[Dump]) -> list[list[Dump]]:
    """Dumps of one job whose groups do not contradict each other."""
    parts: list[tuple[str | None, dict[str, tuple[int, ...]], list[Dump]]] = []
    # Those that name most groups first: a dump without any fits wherever its job does.
    for dump in sorted(dumps, key=lambda d: (d.job or "", -len(d.groups), d.rank, d.source)):
        for job, groups, members in parts:
            same = all(groups.get(comm, ranks) == ranks for comm, ranks in dump.groups.items())
            if job == dump.job and same and (dump.groups.keys() & groups.keys() or not groups):
                groups.update(dump.groups)
                members.append(dump)
                break
        else:
            if not dump.groups and (home := _only(parts, dump.job)) is not None:
                home.append(dump)
            else:
                parts.append((dump.job, dict(dump.groups), [dump]))
    return [members for _, _, members in parts]


def _only(
    parts: list[tuple[str | None, dict[str, tuple[int, ...]], list[Dump]]], job: str | None
) -> list[Dump] | None:
    of_job = [members for name, _, members in parts if name == job]
    return of_job[0] if len(of_job) == 1 else None


def _cut(dumps: list[Dump]) -> list[list[Dump]]:
    """Cut dumps in the order of time so that no part has a rank twice."""
    if not dumps:
        return []
    times = [dump.last_ns or 0 for dump in dumps]
    timeouts = [op.timeout_ms for dump in dumps for op in dump.ops if op.timeout_ms]
    longest_ns = max([_TIMEOUT_MS, *timeouts]) * 1_000_000
    gaps = {i: times[i] - times[i - 1] for i in range(1, len(dumps))}
    at: int | None = max(gaps, key=lambda i: (gaps[i], -i), default=None)
    if at is None or gaps[at] <= longest_ns:
        at = None
        last_at: dict[int, int] = {}
        for i, dump in enumerate(dumps):
            if dump.rank in last_at:
                between = range(last_at[dump.rank] + 1, i + 1)
                at = max(between, key=lambda j: (gaps[j], -j))
                break
            last_at[dump.rank] = i
    if at is None:
        return [dumps]
    return [*_cut(dumps[:at]), *_cut(dumps[at:])]


def _place(dump: Dump, parts: list[list[Dump]], folder: Callable[[str], str]) -> None:
    """Put a dump without a time where it belongs; alone where no part lacks its rank."""
    free = [part for part in parts if all(other.rank != dump.rank for other in part)]
    if not free:
        parts.append([dump])
        return
    own = folder(dump.source)
    best = min(
        enumerate(free),
        key=lambda item: (
            all(folder(other.source) != own for other in item[1]),
            _distance(dump, item[1]),
            item[0],
        ),
    )
    best[1].append(dump)


def _distance(dump: Dump, part: list[Dump]) -> int:
    """How far a dump's counts of operations are from those of others in its groups."""
    total = 0
    for comm, last in dump.last.items():
        others = [o.last[comm].enqueued for o in part if comm in o.last]
        known = [count for count in others if count is not None]
        if known and last.enqueued is not None:
            total += abs(median_low(known) - last.enqueued)
    return total


def _incident(dumps: list[Dump]) -> Incident:
    dumps = sorted(dumps, key=lambda d: d.rank)
    members: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for comm, ranks in dump.groups.items():
            members[comm].update(ranks)
    world = set().union(*members.values(), (dump.rank for dump in dumps))
    return Incident(
        id=hash_id("incident", *((d.rank, d.last_ns, sorted(d.last.items())) for d in dumps)),
        job=dumps[0].job,
        dumps={dump.rank: dump for dump in dumps},
        world=tuple(sorted(world)),
    )

"""Operations that ranks did differently under one number of one communicator.

``order``: the same operations in another order, or one more or less than the others; ``type``:
another operation or element type; ``size``: another number of bytes. A stretch in which the same
ranks differ in the same way is one disagreement, at its first number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

# A restarted job names its communicators and counts as before; so far apart in time, rows of one
# number are of two runs.
_APART_NS = 300_000_000_000
# Numbers before and after that are looked at; sql/desync_suspects.sql reads as many.
_NEAR = 4


class Did(NamedTuple):
    """What a rank did under a number; None where its source does not say."""

    op: str
    dtype: str | None
    size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One disagreement.

    Attributes:
        scope: Incident of dumps, or the kind of collector that read it.
        job: Job.
        comm: Communicator.
        seq: First number under which ranks differ.
        kind: ``order``, ``type`` or ``size``.
        ranks: Ranks that differ from most; all of them where no view is the most common.
        views: What each group of ranks did, the most common first.
        numbers: How many numbers it lasts.
        last_seq: The last of them.
        at_ns: Earliest time known of it.
        by_comm_rank: Ranks are those in the communicator: global ones are not known.
    """

    scope: str
    job: str | None
    comm: str
    seq: int
    kind: str
    ranks: tuple[int, ...]
    views: tuple[tuple[Did, tuple[int, ...]], ...]
    numbers: int = 1
    last_seq: int
    at_ns: int | None
    by_comm_rank: bool = False


def find_disagreements(rows: Iterable[Mapping[str, Any]]) -> list[Disagreement]:
    """Disagreements in rows of the model ``desync_suspects``, which are sorted."""
    found: list[Disagreement] = []
    keys = ("scope", "job", "comm", "numbering")
    for _, of_comm in groupby(rows, key=lambda row: [row[key] for key in keys]):
        for run in _runs(list(of_comm)):
            found += _collapsed(_in_run(run))
    return found


def _runs(rows: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rows of one communicator cut at silences under a number: each run's by themselves."""
    runs: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for _, of_number in groupby(rows, key=lambda row: row["seq"]):
        run, before = 0, None
        for row in sorted(of_number, key=lambda r: (r["at_ns"] is not None, r["at_ns"] or 0)):
            at = row["at_ns"]
            if at is not None and before is not None and at - before > _APART_NS:
                run += 1
            before = at if at is not None else before
            runs[run].append(row)
    return [runs[run] for run in sorted(runs)]


def _in_run(rows: list[Mapping[str, Any]]) -> list[Disagreement]:
    did: dict[int, dict[int, Did]] = defaultdict(dict)
    times: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        seq = row["seq"]
        did[seq].setdefault(row["member"], Did(row["op"], row["dtype"], row["size"]))
        if row["at_ns"] is not None:
            times[seq].append(row["at_ns"])
    found = []
    for seq in sorted(did):
        views = _views(did[seq])
        if len(views) < 2:
            continue
        tied = len(views[0][1]) == len(views[1][1])
        differing = [rank for _, ranks in views[0 if tied else 1 :] for rank in ranks]
        found.append(
            Disagreement(
                scope=rows[0]["scope"],
                job=rows[0]["job"],
                comm=rows[0]["comm"],
                seq=seq,
                kind=_kind(seq, did, views),
                ranks=tuple(sorted(differing)),
                views=tuple(views),
                last_seq=seq,
                at_ns=min(times[seq], default=None),
                by_comm_rank=not all(row["global"] for row in rows),
            )
        )
    return found


def _views(did: Mapping[int, Did]) -> list[tuple[Did, tuple[int, ...]]]:
    """Ranks by what they did, the most common first; what is not known differs from nothing."""
    groups: list[tuple[Did, list[int]]] = []
    # Those that say most first, so that one that says less joins a view that it fits.
    for rank in sorted(did, key=lambda r: (sum(v is None for v in did[r]), r)):
        fits = [group for group in groups if _alike(group[0], did[rank])]
        if fits:
            max(fits, key=lambda group: len(group[1]))[1].append(rank)
        else:
            groups.append((did[rank], [rank]))
    views = [(view, tuple(sorted(ranks))) for view, ranks in groups]
    return sorted(views, key=lambda v: (-len(v[1]), v[1]))


def _alike(one: Did, other: Did) -> bool:
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def _kind(
    seq: int, did: Mapping[int, Mapping[int, Did]], views: list[tuple[Did, tuple[int, ...]]]
) -> str:
    """Compare one rank of the most common view with one of each other view."""
    common, usual = views[0][0], views[0][1][0]
    kinds = {
        "order" if _moved(seq, did, ranks[0], usual) else _differs(common, view)
        for view, ranks in views[1:]
    }
    return next(kind for kind in ("order", "type", "size") if kind in kinds)


def _differs(one: Did, other: Did) -> str:
    if one.op != other.op or not _alike(one._replace(size=None), other._replace(size=None)):
        return "type"
    return "size"


def _moved(seq: int, did: Mapping[int, Mapping[int, Did]], one: int, other: int) -> bool:
    """Whether two ranks swapped two operations, or one goes on as the other does, shifted."""

    def of(rank: int, number: int) -> Did | None:
        return did.get(number, {}).get(rank)

    here, there = of(one, seq), of(other, seq)
    if here is None or there is None:
        return False
    for step in (s for s in range(-_NEAR, _NEAR + 1) if s):
        if of(other, seq + step) == here and of(one, seq + step) == there:
            return True
    after = [(of(one, seq + i), of(other, seq + i)) for i in range(1, _NEAR)]
    known = [(x, y) for x, y in after if x is not None and y is not None]
    if known and all(x == y for x, y in known):
        return False  # they agree again at once
    for a, b in ((one, other), (other, one)):
        for step in range(1, _NEAR + 1):
            # Two in a row, so that operations that repeat do not look shifted by chance; or the
            # last that it did is one that the others did later.
            pairs = [(of(a, seq + i), of(b, seq + i + step)) for i in range(_NEAR)]
            known = [(x, y) for x, y in pairs if x is not None and y is not None]
            shifted = bool(known) and known[0] == pairs[0] and all(x == y for x, y in known)
            if shifted and (len(known) > 1 or (a == one and of(one, seq + 1) is None)):
                return True
    return False


def _collapsed(found: list[Disagreement]) -> list[Disagreement]:
    """One for each stretch in which the same ranks differ."""
    joined: list[Disagreement] = []
    for here in found:
        if (
            joined
            and joined[-1].ranks == here.ranks
            and here.seq - joined[-1].last_seq <= _NEAR
            and (joined[-1].kind == here.kind or joined[-1].kind == "order")
        ):
            before = joined[-1]
            joined[-1] = replace(before, numbers=before.numbers + 1, last_seq=here.seq)
        else:
            joined.append(here)
    return joined

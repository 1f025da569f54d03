"""``desync`` and ``desync_verdict``: ranks that disagree, and the ranks a hang comes from.

``missing`` is a collective that a culprit has not enqueued while others wait in it, the first in
each communicator; what ranks lack because they wait for a culprit themselves is no disagreement.
``empty_dump`` is a dump without an operation where other ranks' have some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from xtune.pipelines._disagreements import Did, Disagreement, find_disagreements
from xtune.pipelines._dumps import read_dumps
from xtune.pipelines._engine import Session
from xtune.pipelines._incidents import Incident, incidents
from xtune.pipelines._tables import DayInput, DayTable
from xtune.pipelines._verdicts import Verdict, judge, too_few
from xtune.pipelines._waits import Lack

Row = dict[str, Any]

_RANKS = pa.list_(pa.int32())
_FOUND = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("job", pa.string()),
        ("comm", pa.string()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("ranks", _RANKS),
        ("views", pa.string()),
        ("incident", pa.string()),
    ]
)
_VERDICTS = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("incident", pa.string()),
        ("job", pa.string()),
        ("culprits", _RANKS),
        ("cause", pa.string()),
        ("confidence", pa.string()),
        ("waiting", pa.int64()),
        ("explained", pa.int64()),
        ("comm", pa.string()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("absent", _RANKS),
        ("dumps", pa.int64()),
        ("reasons", pa.string()),
    ]
)


def prepare(given: DayInput) -> list[str]:
    """Load what the models ``desync`` and ``desync_verdict`` read, from ``collectives``.

    A collective that ranks joined on both sides of midnight is of the day of the first.
    """
    records = given.lake.inputs()

    def folder(source: str) -> str:
        record = records.get(source)
        return str(PurePath(record.path).parent) if record is not None else ""

    session = given.session
    parsers = [{"source": key, "parser": record.parser} for key, record in records.items()]
    found, verdicts, notes = desynchronised(session, folder, parsers)
    within = [
        row
        for row in found
        if given.date is None or (row["at_ns"] or 0) in range(given.start_ns, given.end_ns)
    ]
    session.load("desync_found", pa.Table.from_pylist(within, schema=_FOUND))
    session.load("verdicts_found", pa.Table.from_pylist(verdicts, schema=_VERDICTS))
    return notes


def desynchronised(
    session: Session, folder: Callable[[str], str], parsers: Sequence[Row] = ()
) -> tuple[list[Row], list[Row], list[str]]:
    """Rows of both tables, and notes, from the session's ``collectives``.

    Args:
        session: Has ``collectives``.
        folder: Source id -> the folder that it was read from.
        parsers: Rows ``source``, ``parser``: which collector read what.
    """
    session.create("flight_dumps")
    hangs = incidents(read_dumps(session.arrow("FROM flight_dumps").to_pylist()), folder)
    homes = [
        {"source": dump.source, "rank": rank, "incident": hang.id}
        for hang in hangs
        for rank, dump in hang.dumps.items()
    ]
    texts = pa.string()
    schema = pa.schema([("source", texts), ("rank", pa.int32()), ("incident", texts)])
    session.load("dump_incidents", pa.Table.from_pylist(homes, schema=schema))
    schema = pa.schema([("source", texts), ("parser", texts)])
    session.load("collective_parsers", pa.Table.from_pylist(list(parsers), schema=schema))
    session.create("desync_suspects")
    differing = find_disagreements(session.arrow("FROM desync_suspects").to_pylist())
    ids = {hang.id for hang in hangs}
    found = [_differing_row(d, d.scope if d.scope in ids else None) for d in differing]
    verdicts: list[Row] = []
    notes: list[str] = []
    for hang in hangs:
        own = [(d.comm, d.seq, d.kind, d.ranks) for d in differing if d.scope == hang.id]
        verdict = judge(hang, own)
        if verdict is not None:
            found += [_missing_row(hang, lack, verdict) for lack in verdict.lacks]
            verdicts.append(_verdict_row(hang, verdict))
            notes.append(_note(hang, verdict))
        elif too_few(hang):
            notes.append(
                f"{_job(hang)}: dumps of {len(hang.dumps)} of {len(hang.world)} ranks are too few"
                " to say whom they wait for: collect the others' too"
            )
        if verdict is not None or not all(dump.empty for dump in hang.dumps.values()):
            found += _empty_rows(hang)
    return found, verdicts, notes


def _differing_row(found: Disagreement, incident: str | None) -> Row:
    views: Row = {
        "views": [{**_did(did), "ranks": list(ranks)} for did, ranks in found.views],
        "numbers": found.numbers,
        "last_seq": found.last_seq,
        "source": found.scope if incident is None else "flight_recorder",
    }
    if found.by_comm_rank:
        views["ranks_of"] = "communicator"
    return {
        "at_ns": found.at_ns,
        "job": found.job,
        "comm": found.comm,
        "seq": found.seq,
        "kind": found.kind,
        "ranks": list(found.ranks),
        "views": _text(views),
        "incident": incident,
    }


def _did(did: Did) -> Row:
    return {"op": did.op, "dtype": did.dtype, "message_bytes": did.size}


def _missing_row(hang: Incident, lack: Lack, verdict: Verdict) -> Row:
    culprits = [r for r in verdict.culprits if r in lack.lacking or r in lack.absent]
    op = lack.op
    views = {
        "views": [
            {"state": "enqueued", "op": op.op, "ranks": list(lack.entered)},
            {"state": "not enqueued", "ranks": list(lack.lacking)},
            {"state": "no dump", "ranks": list(lack.absent)},
        ],
        "wait_for_a_culprit": [r for r in lack.lacking if r not in culprits],
    }
    return {
        "at_ns": op.enqueue_ns,
        "job": hang.job,
        "comm": op.comm,
        "seq": op.seq,
        "kind": "missing",
        "ranks": culprits,
        "views": _text(views),
        "incident": hang.id,
    }


def _empty_rows(hang: Incident) -> Iterable[Row]:
    for rank, dump in hang.dumps.items():
        if dump.empty:
            counted = {
                comm: {"enqueued": last.enqueued, "completed": last.completed}
                for comm, last in sorted(dump.last.items())
            }
            others = sorted(r for r, other in hang.dumps.items() if not other.empty)
            yield {
                "at_ns": None,
                "job": hang.job,
                "comm": None,
                "seq": None,
                "kind": "empty_dump",
                "ranks": [rank],
                "views": _text(
                    {
                        "views": [
                            {"state": "no operation", "ranks": [rank], "last": counted},
                            {"state": "operations", "ranks": others},
                        ]
                    }
                ),
                "incident": hang.id,
            }


def _verdict_row(hang: Incident, verdict: Verdict) -> Row:
    op = verdict.op
    return {
        "at_ns": op.enqueue_ns if op else None,
        "incident": hang.id,
        "job": hang.job,
        "culprits": list(verdict.culprits),
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "waiting": verdict.waiting,
        "explained": verdict.explained,
        "comm": op.comm if op else None,
        "seq": op.seq if op else None,
        "op": op.op if op else None,
        "absent": hang.absent,
        "dumps": len(hang.dumps),
        "reasons": _text(verdict.reasons),
    }


def _note(hang: Incident, verdict: Verdict) -> str:
    ranks = ", ".join(map(str, verdict.culprits)) or "none"
    where = ""
    if verdict.op is not None:
        number = "" if verdict.op.seq is None else f" {verdict.op.seq}"
        where = f" in {verdict.op.op}{number} of {verdict.op.comm}"
    waits = f"{verdict.explained} of {verdict.waiting} waiting ranks wait for them"
    why = f"{verdict.cause}, confidence {verdict.confidence}"
    return f"{_job(hang)} hangs{where}: ranks {ranks} ({why}; {waits})"


def _job(hang: Incident) -> str:
    return f"job {hang.job}" if hang.job else "a job without a name"


def _text(value: Row) -> str:
    return json.dumps(value, sort_keys=True)


TABLE = DayTable(
    name="desync", inputs=("collectives",), reach_days=1, prepare=prepare, rests_on=()
)
VERDICT_TABLE = DayTable(
    name="desync_verdict", inputs=("collectives",), prepare=prepare, rests_on=()
)

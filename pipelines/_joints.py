"""Joins the runs of chunks to stretches, in steps that later chunks do not change.

A step takes the runs of a few chunks and the runs of each port's last stretch so far. What the
next run of a port does not join is final, and kept; the last stretch of each port and kind goes
on to the next step. So a new hour joins the runs of an hour, and reads no older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import pyarrow as pa

from xtune.pipelines._chunks import by_time
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._state import JointRecord, State, digest

_NONE_KNOWN = "SELECT NULL::VARCHAR AS link, NULL::BIGINT AS known_end_ns WHERE false"


def join_runs(session: Session, state: State, code: str, report_level: int) -> list[str]:
    """Bring the joints up to date; names of the stored stretches, which together are all.

    Args:
        session: With the rules as its variables.
        state: Its chunks have the runs; its joints are brought up to date.
        code: Digest of the source and the rules.
        report_level: Level from which a port that was last known there ends in the unknown.
    """
    keys = by_time(state.chunks)
    if not keys:
        state.joints = {}
        return []
    kept, rest = _kept(state, code, keys)
    tail = state.joints[kept[-1]].tail if kept else ""
    joints = {key: state.joints[key] for key in kept}
    for _, of_date in groupby(rest, key=lambda key: key[:10]):
        group = list(of_date)
        joints[group[-1]] = record = _join(session, state, code, group, tail)
        tail = record.tail
    _forget_tails(joints)
    last = _last_stretches(session, state, tail, keys[-1], report_level)
    state.joints = joints
    return [*(record.closed for record in joints.values()), last]


def stretches(session: Session, state: State, names: Iterable[str], where: str) -> pa.Table:
    """Rows of stored stretches, at least one, that fulfil a condition."""
    relation = files_relation(state.path(name) for name in sorted(set(names)))
    return session.arrow(f"FROM {relation} WHERE {where} ORDER BY kind, link, start_ns")


def _kept(state: State, code: str, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Last chunks of the steps that stay as they are, and the chunks to be joined anew."""
    steps = by_time(state.joints)
    kept: list[str] = []
    tails: list[str] = []
    place, tail = 0, ""
    for step in steps:
        record = state.joints[step]
        group = keys[place : place + len(record.keys)]
        if list(group) != record.keys or not state.has([record.closed]):
            break
        if record.inputs != _digest(state, code, group, tail):
            break
        kept.append(step)
        tails.append(record.tail)
        tail = record.after
        place += len(group)
    while kept and not (tails[-1] and state.has([tails[-1]])):
        place -= len(state.joints[kept.pop()].keys)
        tails.pop()
    return kept, list(keys[place:])


def _digest(state: State, code: str, keys: Sequence[str], tail: str) -> str:
    runs = [part.runs for key in keys for part in state.chunks[key].parts]
    return digest(code, list(keys), runs, tail)


def _join(session: Session, state: State, code: str, keys: list[str], tail: str) -> JointRecord:
    names = sorted({part.runs for key in keys for part in state.chunks[key].parts})
    read = " UNION ALL BY NAME ".join(
        f"FROM {files_relation([state.path(name)])}"
        for name in [*names, *([tail] if tail else [])]
    )
    session.table("joint_runs", read)
    session.view("runs", "FROM joint_runs")
    session.create("link_tails")
    going_on = session.arrow("SELECT * EXCLUDE (last) FROM link_tails WHERE last")
    session.view("runs", "SELECT * EXCLUDE (last) FROM link_tails WHERE NOT last")
    session.view("last_known", _NONE_KNOWN)
    session.create("link_stretches")
    after = state.keep_table("tail", going_on)
    return JointRecord(
        inputs=_digest(state, code, keys, tail),
        keys=keys,
        closed=state.keep_table("stretches", session.arrow("FROM link_stretches")),
        tail=after,
        after=after,
    )


def _forget_tails(joints: dict[str, JointRecord]) -> None:
    """Keep only the tails that a change near the end, or late rows of a date, go on from."""
    steps = list(joints)
    for step, following in pairwise(steps):
        if following[:10] == step[:10] and following != steps[-1]:
            joints[step].tail = ""


def _last_stretches(session: Session, state: State, tail: str, key: str, report_level: int) -> str:
    """The last stretch of each port and kind, as far as it is known."""
    carry = files_relation(state.path(part.carry) for part in state.chunks[key].parts)
    session.view("runs", f"FROM {files_relation([state.path(tail)])}")
    session.view(
        "last_known",
        f"SELECT link, known_end_ns FROM {carry} WHERE level >= {report_level}",
    )
    session.create("link_stretches")
    return state.keep_table("stretches", session.arrow("FROM link_stretches"))

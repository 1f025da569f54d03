"""Reports and snapshots: what agents and a decider send each other, 1400 bytes at most.

Network byte order. Both begin with a head of 20 bytes: magic 2 ("xr" report, "xs" snapshot),
version 1, zero 1, length of the whole 2, zero 2, sequence 4, stamp 8. Both end with a MAC of 8,
keyed BLAKE2s over all before it and over both ends' addresses and ports, as probes have it and
under the same secret, but of another kind: neither passes for a probe or for the other.

A report goes on with: when the agent began 8, epoch that it follows 8, records 1, host name
(length 1, UTF-8), then the records: path 2, outcomes 4, history 8, age of the last outcome 8, age
of the last answer 8 (all ones: none), occupancy 8, error rate 8, margin 8, marks 8, link (length
1, UTF-8).

A snapshot: epoch 8, version 8, stamp of the host's newest report that it knows 8, how long ago
its ages were true 4 (us), block 2 (all ones: none, a sign of life), part 2, parts 2, then the
block's body: links 1, names (length 1, UTF-8 each), weights 8 each, ages 4 each (us, all ones: no
verdict), reporters 1 each.

Numbers with a point are IEEE 754 doubles, NaN is unknown and an infinite weight a blacklisted
link: what the far end computes with are the very same values. Ages count from the moment of
sending, since hosts share no clock.
"""

from __future__ import annotations

import enum
import math
import struct
from functools import cache
from typing import NamedTuple

from ..probe.packet import MAC_BYTES, Drop, Seal  # noqa: TID252 - exported under another name

VERSION = 1
MOST_BYTES = 1400  # of a datagram: nothing on the way has to cut it
MOST_TEXT_BYTES = 255  # of a name
MOST_BLOCKS = 256  # some 40 links each
NO_BLOCK = 0xFFFF

_HEAD = struct.Struct("!HBBHHIQ")
_REPORT = struct.Struct("!QQBB")
_RECORD = struct.Struct("!HIQQQddddB")
_SNAPSHOT = struct.Struct("!QQQIHHH")
_PERSON = b"xtdecide"
_NO_AGE_NS = (1 << 64) - 1
_NO_AGE_US = (1 << 32) - 1
OUTCOMES = 1 << 32  # outcomes are counted modulo this

#: Room for a block's body in a snapshot.
MOST_BODY_BYTES = MOST_BYTES - _HEAD.size - _SNAPSHOT.size - MAC_BYTES


class Kind(enum.IntEnum):
    """Magic of a datagram."""

    REPORT = 0x7872  # "xr"
    SNAPSHOT = 0x7873  # "xs"


class Record(NamedTuple):
    """The newest reading of one path; None is unknown.

    Attributes:
        path: The path's place among the agent's, 0..65535.
        link: What its probes measure.
        finished: Probes answered or given up since the agent began, modulo 2**32.
        history: The last 64 of them, bit 0 the newest; a set bit is a lost probe.
        finished_age_ns: How long ago the last of them ended.
        answered_age_ns: How long ago the last answer arrived.
        occupancy, error_rate, margin, marks: At that answer.
    """

    path: int
    link: str
    finished: int
    history: int
    finished_age_ns: int
    answered_age_ns: int | None = None
    occupancy: float | None = None
    error_rate: float | None = None
    margin: float | None = None
    marks: float | None = None


class Report(NamedTuple):
    """One datagram from an agent.

    Attributes:
        sequence: Of the agent's reports, modulo 2**32.
        stamp_ns: When it was sent, wall clock, never the same twice and never going back.
        born_ns: When the agent began, wall clock: tells counts of this agent from earlier ones.
        epoch: Of the decider that it follows, 0 before the first snapshot.
        host: Its name.
        records: Paths with news; none is a sign of life.
    """

    sequence: int
    stamp_ns: int
    born_ns: int
    epoch: int
    host: str
    records: tuple[Record, ...] = ()


class Snapshot(NamedTuple):
    """One datagram from a decider.

    Attributes:
        sequence: Of its datagrams to this host, modulo 2**32.
        stamp_ns: As of a report.
        epoch: When the decider began, wall clock in ns.
        version: Of the matrix, from 1 in each epoch.
        echo_ns: Stamp of the host's newest report that is part of it, 0 before the first.
        held_us: How long ago the ages in the body were true.
        block: Number of the block, `NO_BLOCK` without one.
        part, parts: Place of this datagram among those that bring this version to this host.
        body: The block, see `unpack_body`; empty without one.
    """

    sequence: int
    stamp_ns: int
    epoch: int
    version: int
    echo_ns: int
    held_us: int = 0
    block: int = NO_BLOCK
    part: int = 0
    parts: int = 1
    body: bytes = b""


class Entry(NamedTuple):
    """What is known of one link.

    Attributes:
        link: Its name.
        weight: Forecast occupancy, 0 or more; inf: blacklisted; NaN: it answers, and that is all.
        age_us: Of the readings behind it; None: no verdict any more.
        reporters: Paths with fresh readings of it.
    """

    link: str
    weight: float = math.nan
    age_us: int | None = None
    reporters: int = 0


def entry_bytes(link: str) -> int:
    """What one link takes in a block."""
    return 1 + len(link.encode()) + 8 + 4 + 1


def pack_body(entries: list[Entry]) -> bytes:
    """The body of a block of at most 255 links."""
    count = len(entries)
    names = b"".join(_text(entry.link) for entry in entries)
    ages = (_NO_AGE_US if e.age_us is None else min(e.age_us, _NO_AGE_US - 1) for e in entries)
    values = _values(count).pack(
        *(entry.weight for entry in entries),
        *ages,
        *(min(entry.reporters, 255) for entry in entries),
    )
    return bytes((count,)) + names + values


def unpack_body(body: bytes) -> list[Entry] | None:
    """The links of a block, or None where it is none."""
    cut = split_body(body)
    if cut is None:
        return None
    try:
        names = unpack_names(cut[0])
    except UnicodeDecodeError:
        return None
    if not all(names) or any(weight < 0.0 for weight, _, _ in cut[1]):
        return None
    return [Entry(name, *values) for name, values in zip(names, cut[1], strict=True)]


def split_body(body: bytes) -> tuple[bytes, list[tuple[float, int | None, int]]] | None:
    """Names, as they were packed, and values (weight, age in us, reporters) of a block.

    Names seldom change between two versions of a block, so a reader need not decode them anew.

    Returns:
        None where the lengths do not fit; names and weights are not looked at.
    """
    end = 1
    count = body[0] if body else 0
    for _ in range(count):
        if end >= len(body):
            return None
        end += 1 + body[end]
    form = _values(count)
    if len(body) != end + form.size:
        return None
    values = form.unpack_from(body, end)
    ages = (None if age == _NO_AGE_US else age for age in values[count : 2 * count])
    return body[1:end], list(zip(values[:count], ages, values[2 * count :], strict=True))


def unpack_names(names: bytes) -> list[str]:
    """The names of a block, as `split_body` gave them."""
    found, at = [], 0
    while at < len(names):
        end = at + 1 + names[at]
        found.append(names[at + 1 : end].decode())
        at = end
    return found


class Wire:
    """Packs and unpacks datagrams under one key.

    Args:
        key: The shared secret, of any length.
    """

    def __init__(self, key: bytes) -> None:
        self._seal = Seal(key, _PERSON)

    def pack_report(self, report: Report, between: bytes) -> bytes:
        """A report's datagram.

        Args:
            report: The report; see `reports_of` for how many records it has room for.
            between: `ends` of the direction it is sent in.
        """
        host = _text(report.host)
        content = _REPORT.pack(report.born_ns, report.epoch, len(report.records), host[0])
        parts = [content, host[1:], *(pack_record(record) for record in report.records)]
        return self._sealed(
            Kind.REPORT, report.sequence, report.stamp_ns, b"".join(parts), between
        )

    def pack_snapshot(self, snapshot: Snapshot, between: bytes) -> bytes:
        """A snapshot's datagram.

        Args:
            snapshot: The snapshot.
            between: `ends` of the direction it is sent in.
        """
        content = _SNAPSHOT.pack(*snapshot[2:9]) + snapshot.body
        return self._sealed(Kind.SNAPSHOT, snapshot.sequence, snapshot.stamp_ns, content, between)

    def unpack_report(self, payload: bytes, between: bytes) -> Report | Drop:
        """The report, or why it is none of ours; never raises.

        Args:
            payload: What arrived.
            between: `ends` of the direction it came in.
        """
        opened = self._opened(payload, between, Kind.REPORT)
        return opened if isinstance(opened, Drop) else _report(*opened)

    def unpack_snapshot(self, payload: bytes, between: bytes) -> Snapshot | Drop:
        """The snapshot, or why it is none of ours; never raises.

        Args:
            payload: What arrived.
            between: `ends` of the direction it came in.
        """
        opened = self._opened(payload, between, Kind.SNAPSHOT)
        return opened if isinstance(opened, Drop) else _snapshot(*opened)

    def _sealed(
        self, kind: Kind, sequence: int, stamp_ns: int, content: bytes, between: bytes
    ) -> bytes:
        length = _HEAD.size + len(content) + MAC_BYTES
        if length > MOST_BYTES:
            raise ValueError(f"a datagram of {length} bytes, {MOST_BYTES} are allowed")
        whole = _HEAD.pack(kind, VERSION, 0, length, 0, sequence, stamp_ns) + content
        return whole + self._seal.mac(whole, between)

    def _opened(
        self, payload: bytes, between: bytes, wanted: Kind
    ) -> tuple[int, int, bytes] | Drop:
        """Sequence, stamp and content of a datagram."""
        if len(payload) < _HEAD.size + MAC_BYTES:
            return Drop.TRUNCATED
        kind, version, _, length, _, sequence, stamp_ns = _HEAD.unpack_from(payload)
        if kind not in (Kind.REPORT, Kind.SNAPSHOT):
            return Drop.FOREIGN
        if version != VERSION:
            return Drop.OTHER_VERSION
        if length != len(payload):
            return Drop.TRUNCATED if len(payload) < length else Drop.FOREIGN
        content, mac = payload[:-MAC_BYTES], payload[-MAC_BYTES:]
        if not self._seal.holds(mac, content, between):
            return Drop.FORGED
        if kind != wanted:
            return Drop.MISDIRECTED
        return sequence, stamp_ns, content[_HEAD.size :]


def record_bytes(record: Record) -> int:
    """What one record takes in a report."""
    return _RECORD.size + len(record.link.encode())


def room_for_records(host: str) -> int:
    """Bytes that the records of one report may take."""
    return MOST_BYTES - _HEAD.size - _REPORT.size - len(host.encode()) - MAC_BYTES


def pack_record(record: Record) -> bytes:
    """One record's bytes."""
    link = _text(record.link)
    answered_ns = record.answered_age_ns
    packed = _RECORD.pack(
        record.path,
        record.finished % OUTCOMES,
        record.history,
        record.finished_age_ns,
        _NO_AGE_NS if answered_ns is None else answered_ns,
        *(
            math.nan if value is None else value
            for value in (record.occupancy, record.error_rate, record.margin, record.marks)
        ),
        link[0],
    )
    return packed + link[1:]


def _report(sequence: int, stamp_ns: int, content: bytes) -> Report | Drop:
    if len(content) < _REPORT.size:
        return Drop.FOREIGN
    born_ns, epoch, count, length = _REPORT.unpack_from(content)
    at = _REPORT.size + length
    try:
        host = content[_REPORT.size : at].decode()
        records = []
        for _ in range(count):
            path, finished, history, done, answered, *shares, length = _RECORD.unpack_from(
                content, at
            )
            at += _RECORD.size + length
            link = content[at - length : at].decode()
            known = (None if share != share else share for share in shares)
            answered_ns = None if answered == _NO_AGE_NS else answered
            records.append(Record(path, link, finished, history, done, answered_ns, *known))
            if not link:
                return Drop.FOREIGN
    except (struct.error, UnicodeDecodeError):
        return Drop.FOREIGN
    if at != len(content) or not host:
        return Drop.FOREIGN
    return Report(sequence, stamp_ns, born_ns, epoch, host, tuple(records))


def _snapshot(sequence: int, stamp_ns: int, content: bytes) -> Snapshot | Drop:
    if len(content) < _SNAPSHOT.size:
        return Drop.FOREIGN
    fields = _SNAPSHOT.unpack_from(content)
    body = content[_SNAPSHOT.size :]
    found = Snapshot(sequence, stamp_ns, *fields)._replace(body=body)
    if found.block == NO_BLOCK:
        return Drop.FOREIGN if body else found
    if found.block >= MOST_BLOCKS or unpack_body(body) is None:
        return Drop.FOREIGN
    return found


@cache  # 256 of them at most
def _values(count: int) -> struct.Struct:
    return struct.Struct(f"!{count}d{count}I{count}B")


def _text(name: str) -> bytes:
    encoded = name.encode()
    if not 0 < len(encoded) <= MOST_TEXT_BYTES:
        raise ValueError(f"a name of {len(encoded)} bytes, 1 to {MOST_TEXT_BYTES} are allowed")
    return bytes((len(encoded),)) + encoded

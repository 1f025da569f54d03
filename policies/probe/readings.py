"""Readings of all paths in shared memory: one process writes, others read without a system call.

The memory is a mapped file, in ``/dev/shm`` or elsewhere. ``multiprocessing.shared_memory`` is not
used: its resource tracker removes a segment as soon as one process that attached to it ends.

Each path has one entry under a sequence lock (odd while it is written) and a CRC-32 over lock and
content: on processors that reorder stores, which plain Python cannot forbid, the CRC tells what
the lock does not. A table is complete before it gets its name, and a writer that starts makes a
new one; the old mapping shows its last heartbeat, and `ReadingsReader.reopen` finds the new one.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

MAGIC = b"xtunePRB"
VERSION = 1
RETRIES = 64  # a write takes about a microsecond; after so many the writer has stopped in one
HISTORY = 64  # outcomes that an entry remembers
STALE_NS = 500_000_000  # without a heartbeat for so long a writer counts as dead
COUNTERS = 32  # room for so many

_HEADER = struct.Struct("=8sIIQQQQ")  # magic, version, paths, generation, pid, text bytes, CRC
_BEAT = _HEADER.size // 8  # words: heartbeat, updates, counters, then text and entries
_UPDATES = _BEAT + 1
_COUNTERS = _UPDATES + 1
_TEXT_AT = 8 * (_COUNTERS + COUNTERS)
_ENTRY = struct.Struct("=QQqqqddddQQQ")
_CRC = struct.Struct("=Q")
_ENTRY_BYTES = 128  # two cache lines: no entry shares one with another
_CONTENT_BYTES = _ENTRY.size + _CRC.size


class ReadingsError(ValueError):
    """A file that holds no readings of ours, or that another writer holds; the text says which."""


class Reading(NamedTuple):
    """What is known of one path; None is unknown. Times are on CLOCK_MONOTONIC.

    Attributes:
        finished: Probes that were answered in time or given up, since the writer began.
        history: The last 64 of them, bit 0 the newest; a set bit is a lost probe.
        finished_ns: When the last one was.
        answered_ns: When the last answer arrived, None before the first.
        rtt_ns: Round trip of that answer.
        jitter_ns: Smoothed difference of successive round trips (RFC 3550, 6.4.1).
        occupancy, error_rate, margin: The worse of both ends at that answer.
        sent, lost, late: Probes; a late answer's probe is among the lost.
    """

    finished: int = 0
    history: int = 0
    finished_ns: int = 0
    answered_ns: int | None = None
    rtt_ns: int | None = None
    jitter_ns: float | None = None
    occupancy: float | None = None
    error_rate: float | None = None
    margin: float | None = None
    sent: int = 0
    lost: int = 0
    late: int = 0


class ReadingsWriter:
    """The one writer of a table.

    Args:
        path: The file; it appears whole, in place of an earlier one.
        names: The paths, in order.
        counters: Names of counts that are published beside the readings.
        clock: CLOCK_MONOTONIC in ns.
        generation: Tells this table from earlier ones; the wall clock by default.

    Raises:
        ReadingsError: Another writer holds the path.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        names: Sequence[str],
        counters: Sequence[str] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        generation: int | None = None,
    ) -> None:
        if len(counters) > COUNTERS or len(set(names)) != len(names):
            raise ReadingsError("too many counters, or two paths of one name")
        self._path = Path(path)
        self._clock = clock
        self._lock = _locked(self._path)
        try:
            text = json.dumps({"paths": list(names), "counters": list(counters)}).encode()
            born = time.time_ns() if generation is None else generation
            self._map = _create(self._path, text, len(names), born)
        except BaseException:
            os.close(self._lock)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._entries = _entries_at(len(text))
        self.beat()

    def publish(self, index: int, reading: Reading) -> None:
        """Replace the entry of one path.

        Args:
            index: The path's place in the names.
            reading: What is known of it.
        """
        at = self._entries + index * _ENTRY_BYTES
        word = at // 8
        content = _pack(reading)
        odd = self._words[word] + 1
        even = odd + 1
        self._words[word] = odd
        self._map[at + 8 : at + 8 + _CONTENT_BYTES] = content + _CRC.pack(_crc(content, even))
        self._words[word] = even
        self._words[_UPDATES] += 1

    def count(self, place: int, value: int) -> None:
        """Publish one count.

        Args:
            place: Of its name in ``counters``.
            value: The count.
        """
        self._words[_COUNTERS + place] = value

    def beat(self) -> None:
        """Say that the writer lives."""
        self._words[_BEAT] = self._clock()

    def close(self) -> None:
        """End the table: readers see at once that nobody writes it; the file goes."""
        self._words[_BEAT] = 0
        self._words.release()
        self._map.close()
        self._path.unlink(missing_ok=True)
        os.close(self._lock)


class ReadingsReader:
    """Reads a table from its mapping; no method but `reopen` and `close` makes a system call.

    Args:
        path: The writer's file.
        clock: CLOCK_MONOTONIC in ns.
        stale_ns: Without a heartbeat for so long the writer counts as dead.

    Attributes:
        names: The paths, in order.
        generation: Of the writer; it changes when one starts.
        torn: Entries given up as half written.

    Raises:
        ReadingsError: No table of this version, or not one of this user or root.
        OSError: There is none, or it cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
    ) -> None:
        self._path = Path(path)
        self._clock = clock
        self._stale_ns = stale_ns
        self.torn = 0
        self._open()

    def read(self, index: int) -> Reading | None:
        """The newest reading of one path, whatever its age.

        Args:
            index: The path's place in `names`.

        Returns:
            The reading, or None where none was written or none could be read whole.
        """
        at = self._entries + index * _ENTRY_BYTES
        word = at // 8
        for _ in range(RETRIES):
            before = self._words[word]
            if before == 0:
                return None
            if before & 1:
                continue
            content = self._map[at + 8 : at + 8 + _CONTENT_BYTES]
            if self._words[word] != before:
                continue
            if _CRC.unpack_from(content, _ENTRY.size)[0] == _crc(content[: _ENTRY.size], before):
                return _unpack(content)
        self.torn += 1
        return None

    def updates(self) -> int:
        """Changes whenever any entry does."""
        return self._words[_UPDATES]

    def version(self, index: int) -> int:
        """Changes whenever the entry does; equal versions need no second look."""
        return self._words[(self._entries + index * _ENTRY_BYTES) // 8]

    def alive(self) -> bool:
        """Whether the writer was heard of lately; a heartbeat of the future is another boot's."""
        return 0 <= self._clock() - self._words[_BEAT] < self._stale_ns

    def counters(self) -> dict[str, int]:
        """The writer's counts by name."""
        return {name: self._words[_COUNTERS + i] for i, name in enumerate(self._counted)}

    def reopen(self) -> bool:
        """Look for the table of a writer that started since.

        Returns:
            Whether there is one; else the old table stays.
        """
        old_map, old_words, old_generation = self._map, self._words, self.generation
        try:
            self._open()
        except (OSError, ReadingsError):
            return False
        old_words.release()
        old_map.close()
        return self.generation != old_generation

    def close(self) -> None:
        """Let go of the mapping."""
        self._words.release()
        self._map.close()

    def _open(self) -> None:
        file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            # The owner can truncate the file under the mapping, which kills who reads it.
            if status.st_uid not in (0, os.geteuid()):
                raise ReadingsError(f"{self._path}: neither this user's nor root's")
            if status.st_size < _TEXT_AT:
                raise ReadingsError(f"{self._path}: no table of readings")
            mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        try:
            generation, text = _parse(mapped, self._path)
        except ReadingsError:
            mapped.close()
            raise
        known = json.loads(text)
        self.names: tuple[str, ...] = tuple(known["paths"])
        self._counted: tuple[str, ...] = tuple(known["counters"])
        self.generation = generation
        self._map = mapped
        self._words = memoryview(mapped).cast("Q")
        self._entries = _entries_at(len(text))


def _locked(path: Path) -> int:
    """A lock beside the table, freed by the kernel however its holder ends."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path.with_name(path.name + ".lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ReadingsError(f"{path}: another process writes it") from error
    return lock


def _create(path: Path, text: bytes, count: int, generation: int) -> mmap.mmap:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o644)
    try:
        size = _entries_at(len(text)) + count * _ENTRY_BYTES
        os.posix_fallocate(file, 0, size)  # a full disk says so here, not by a signal later
        mapped = mmap.mmap(file, size)
        mapped[: _HEADER.size] = _HEADER.pack(
            MAGIC, VERSION, count, generation, os.getpid(), len(text), zlib.crc32(text)
        )
        mapped[_TEXT_AT : _TEXT_AT + len(text)] = text
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return mapped


def _parse(mapped: mmap.mmap, path: Path) -> tuple[int, bytes]:
    """Generation and text of a table, all of it checked."""
    magic, version, count, generation, _, length, crc = _HEADER.unpack_from(mapped)
    if magic != MAGIC:
        raise ReadingsError(f"{path}: no table of readings")
    if version != VERSION:
        raise ReadingsError(f"{path}: a table of version {version}, not {VERSION}")
    text = mapped[_TEXT_AT : _TEXT_AT + length]
    size = _entries_at(length) + count * _ENTRY_BYTES
    if len(mapped) != size or zlib.crc32(text) != crc:
        raise ReadingsError(f"{path}: a damaged table of readings")
    return generation, text


def _entries_at(text_bytes: int) -> int:
    return -(-(_TEXT_AT + text_bytes) // _ENTRY_BYTES) * _ENTRY_BYTES


def _crc(content: bytes, version: int) -> int:
    return zlib.crc32(content, version & 0xFFFFFFFF)


def _pack(reading: Reading) -> bytes:
    return _ENTRY.pack(
        reading.finished,
        reading.history,
        reading.finished_ns,
        -1 if reading.answered_ns is None else reading.answered_ns,
        -1 if reading.rtt_ns is None else reading.rtt_ns,
        *(
            math.nan if value is None else value
            for value in (
                reading.jitter_ns,
                reading.occupancy,
                reading.error_rate,
                reading.margin,
            )
        ),
        reading.sent,
        reading.lost,
        reading.late,
    )


def _unpack(content: bytes) -> Reading:
    (
        done,
        history,
        done_ns,
        answered_ns,
        rtt_ns,
        jitter,
        share,
        rate,
        margin,
        sent,
        lost,
        late,
    ) = _ENTRY.unpack_from(content)
    return Reading(
        done,
        history,
        done_ns,
        None if answered_ns < 0 else answered_ns,
        None if rtt_ns < 0 else rtt_ns,
        None if jitter != jitter else jitter,
        None if share != share else share,
        None if rate != rate else rate,
        None if margin != margin else margin,
        sent,
        lost,
        late,
    )

"""A table in shared memory: one process writes, others read without a system call.

The memory is a mapped file, in ``/dev/shm`` or elsewhere. ``multiprocessing.shared_memory`` is not
used: its resource tracker removes a segment as soon as one process that attached to it ends.

Each entry is under a sequence lock (odd while it is written) and a CRC-32 over lock and content:
on processors that reorder stores, which plain Python cannot forbid, the CRC tells what the lock
does not. Those of the x86 kind do not reorder them, and their readers save that time. A table is
complete before it gets its name, and a writer that starts makes a new one; the old mapping shows
its last heartbeat, and `TableReader.reopen` finds the new one.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import platform
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .._files import foreign, open_regular  # noqa: TID252 - exported under another name

RETRIES = 64  # a write takes about a microsecond; after so many the writer has stopped in one
STALE_NS = 500_000_000  # without a heartbeat for so long a writer counts as dead
IN_ORDER = platform.machine() in ("x86_64", "AMD64")  # others see stores in the order they came
COUNTERS = 32  # room for so many

_HEADER = struct.Struct("=8sIIQQQQ")  # magic, version, entries, generation, pid, text bytes, CRC
_BEAT = _HEADER.size // 8  # words: heartbeat, updates, counters, then text and entries
_UPDATES = _BEAT + 1
_COUNTERS = _UPDATES + 1
_TEXT_AT = 8 * (_COUNTERS + COUNTERS)
_CRC = struct.Struct("=Q")


class TableError(ValueError):
    """A file that holds no table of ours, or that another writer holds; the text says which."""


class Form(NamedTuple):
    """What tells one kind of table from another.

    Attributes:
        magic: 8 bytes.
        version: Of the content.
        what: Its name in messages.
        content_bytes: Of an entry.
    """

    magic: bytes
    version: int
    what: str
    content_bytes: int

    @property
    def entry_bytes(self) -> int:
        """With lock and CRC, in whole pairs of cache lines: no entry shares one with another."""
        return -(-(8 + self.content_bytes + _CRC.size) // 128) * 128


class TableWriter:
    """The one writer of a table.

    Args:
        form: Of the table.
        path: The file; it appears whole, in place of an earlier one.
        names: The entries, in order.
        counters: Names of counts that are published beside the entries.
        clock: CLOCK_MONOTONIC in ns.
        generation: Tells this table from earlier ones; the wall clock by default.

    Raises:
        TableError: Another writer holds the path.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        form: Form,
        path: str | Path,
        names: Sequence[str],
        counters: Sequence[str] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        generation: int | None = None,
    ) -> None:
        if len(counters) > COUNTERS or len(set(names)) != len(names):
            raise TableError("too many counters, or two entries of one name")
        self._form = form
        self._path = Path(path)
        self._clock = clock
        self._lock = _locked(self._path)
        try:
            text = json.dumps({"paths": list(names), "counters": list(counters)}).encode()
            born = time.time_ns() if generation is None else generation
            self._map = _create(form, self._path, text, len(names), born)
        except BaseException:
            os.close(self._lock)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._entries = _entries_at(form, len(text))
        self._entry_bytes = form.entry_bytes
        self.beat()

    def write(self, index: int, content: bytes) -> None:
        """Replace the content of one entry.

        Args:
            index: Its place in the names.
            content: Of the form's length.
        """
        at = self._entries + index * self._entry_bytes
        word = at // 8
        odd = self._words[word] + 1
        even = odd + 1
        self._words[word] = odd
        sealed = content + _CRC.pack(_crc(content, even))
        self._map[at + 8 : at + 8 + len(sealed)] = sealed
        self._words[word] = even
        self._words[_UPDATES] += 1

    def version(self, index: int) -> int:
        """0 before the entry was written."""
        return self._words[(self._entries + index * self._entry_bytes) // 8]

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


class TableReader:
    """Reads a table from its mapping; no method but `reopen` and `close` makes a system call.

    Args:
        form: Of the table.
        path: The writer's file.
        clock: CLOCK_MONOTONIC in ns.
        stale_ns: Without a heartbeat for so long the writer counts as dead.

    Attributes:
        names: The entries, in order.
        generation: Of the writer; it changes when one starts.
        torn: Entries given up as half written.

    Raises:
        TableError: No table of this form, or not one of this user or root.
        OSError: There is none, or it cannot be read.
    """

    def __init__(
        self,
        form: Form,
        path: str | Path,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
    ) -> None:
        self._form = form
        self._entry_bytes = form.entry_bytes
        self._content_bytes = form.content_bytes
        self._path = Path(path)
        self._clock = clock
        self._stale_ns = stale_ns
        self.torn = 0
        self._open()

    def content(self, index: int) -> bytes | None:
        """The newest content of one entry, whatever its age.

        Args:
            index: Its place in `names`.

        Returns:
            The content with its CRC behind it, or None where none was written or none could be
            read whole.
        """
        at = self._entries + index * self._entry_bytes
        word = at // 8
        size = self._content_bytes
        for _ in range(RETRIES):
            before = self._words[word]
            if before == 0:
                return None
            if before & 1:
                continue
            content = self._map[at + 8 : at + 8 + size + _CRC.size]
            if self._words[word] != before:
                continue
            if IN_ORDER or _CRC.unpack_from(content, size)[0] == _crc(content[:size], before):
                return content
        self.torn += 1
        return None

    def updates(self) -> int:
        """Changes whenever any entry does."""
        return self._words[_UPDATES]

    def version(self, index: int) -> int:
        """Changes whenever the entry does; equal versions need no second look."""
        return self._words[(self._entries + index * self._entry_bytes) // 8]

    def versions(self) -> list[int]:
        """All of them, in the order of the names."""
        step = self._entry_bytes // 8
        start = self._entries // 8
        return self._words[start : start + step * len(self.names) : step].tolist()

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
        except (OSError, TableError):
            return False
        old_words.release()
        old_map.close()
        return self.generation != old_generation

    def close(self) -> None:
        """Let go of the mapping."""
        self._words.release()
        self._map.close()

    def _open(self) -> None:
        file, status = open_regular(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            # Who can write the file can truncate it under the mapping, which kills who reads it.
            if foreign(status):
                raise TableError(f"{self._path}: neither this user's nor root's")
            if status.st_mode & 0o022:
                raise TableError(f"{self._path}: others may write it")
            if status.st_size < _TEXT_AT:
                raise TableError(f"{self._path}: no table of {self._form.what}")
            mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        try:
            generation, count, text = _parse(self._form, mapped, self._path)
            names, counted = _names(text, count, self._path)
        except TableError:
            mapped.close()
            raise
        self.names: tuple[str, ...] = names
        self._counted: tuple[str, ...] = counted
        self.generation = generation
        self._map = mapped
        self._words = memoryview(mapped).cast("Q")
        self._entries = _entries_at(self._form, len(text))


def _locked(path: Path) -> int:
    """A lock beside the table, freed by the kernel however its holder ends."""
    name = path.with_name(path.name + ".lock")
    lock, status = open_regular(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        if foreign(status):
            raise TableError(f"{name}: neither this user's nor root's")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise TableError(f"{path}: another process writes it") from error
    except TableError:
        os.close(lock)
        raise
    return lock


def _create(form: Form, path: Path, text: bytes, count: int, generation: int) -> mmap.mmap:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o644)
    try:
        size = _entries_at(form, len(text)) + count * form.entry_bytes
        os.posix_fallocate(file, 0, size)  # a full disk says so here, not by a signal later
        mapped = mmap.mmap(file, size)
        mapped[: _HEADER.size] = _HEADER.pack(
            form.magic, form.version, count, generation, os.getpid(), len(text), zlib.crc32(text)
        )
        mapped[_TEXT_AT : _TEXT_AT + len(text)] = text
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return mapped


def _parse(form: Form, mapped: mmap.mmap, path: Path) -> tuple[int, int, bytes]:
    """Generation, entries and text of a table, whose lengths and CRC are checked."""
    magic, version, count, generation, _, length, crc = _HEADER.unpack_from(mapped)
    if magic != form.magic:
        raise TableError(f"{path}: no table of {form.what}")
    if version != form.version:
        raise TableError(f"{path}: a table of version {version}, not {form.version}")
    text = mapped[_TEXT_AT : _TEXT_AT + length]
    size = _entries_at(form, length) + count * form.entry_bytes
    if len(mapped) != size or zlib.crc32(text) != crc:
        raise TableError(f"{path}: a damaged table of {form.what}")
    return generation, count, text


def _names(text: bytes, count: int, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of entries and of counts."""
    try:
        known = json.loads(text)
        names, counted = known["paths"], known["counters"]
        fit = len(names) == count and len(counted) <= COUNTERS
        if fit and all(isinstance(name, str) for name in (*names, *counted)):
            return tuple(names), tuple(counted)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass  # JSON of another form, or none
    raise TableError(f"{path}: no names of {count} entries")


def _entries_at(form: Form, text_bytes: int) -> int:
    return -(-(_TEXT_AT + text_bytes) // form.entry_bytes) * form.entry_bytes


def _crc(content: bytes, version: int) -> int:
    return zlib.crc32(content, version & 0xFFFFFFFF)

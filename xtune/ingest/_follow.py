"""Follows files that are being written: what is added is read soon, and read once.

Files of which each line stands alone are read piece by piece (:mod:`xtune.ingest._tail`). Others
are read whole again when they have grown, and replace their earlier rows in one transaction: once
they are quiet, or while they grow at most a tenth of the time. Compressed and binary files are
read when they are quiet: half of one is damage. In the end the lake holds the rows that a plain
``xtune collect`` of the same files would have given.
"""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from xtune.collectors import _registry
from xtune.collectors._base import Collector, Context, Reject, Source
from xtune.collectors._open_files import allow_many
from xtune.errors import LakeError, UsageError
from xtune.ingest import _content
from xtune.ingest._claim import Claims
from xtune.ingest._collect import Run, check_context
from xtune.ingest._content import Content
from xtune.ingest._identity import Identity
from xtune.ingest._read import Reading, read_input, utf8, write_rejects
from xtune.ingest._tail import Piece, Tail
from xtune.ingest._walk import STDIN, Found, Walk, expand
from xtune.ingest.host_map import HostMap
from xtune.ingest.summary import FileResult, IngestSummary
from xtune.lake import ConflictError, InputRecord, Lake

QUIET_POLLS = 2
FINAL_ATTEMPTS = 20  # where others write the same files' rows meanwhile
#: Reading a file whole again may take a tenth of the time.
REST = 9

_Sign = tuple[int, int, int, int]


@dataclass(slots=True)
class _Whole:
    """A file that is read whole, and when it was."""

    found: Found
    sign: _Sign | None = None
    quiet: int = 0
    looked: bool = False  # whether it is one to be read line by line
    done: bool = False
    read: _Sign | None = None
    due_s: float = 0.0  # not again before


class Follower:
    """Follows paths into a lake.

    Args:
        lake: Where rows go.
        paths: Files, folders, patterns; a pattern may match nothing yet.
        context: What the user says that files do not.
        kind: The collector to read everything with; None finds it by content.
        host_map: Names in files -> hosts.
        strict: For the summary.
        debug: Let an exception of a collector through.
        say: Told what a user should know.
        flush_s: Time between writes of what was added.
        clock: Seconds that never step.
        collectors: By name; all by default.

    Raises:
        InputError: A path does not exist.
        UsageError: The kind or the zone is unknown, or standard input is named.
    """

    def __init__(
        self,
        lake: Lake,
        paths: Sequence[str],
        *,
        context: Context,
        kind: str | None = None,
        host_map: HostMap | None = None,
        strict: bool = False,
        debug: bool = False,
        say: Callable[[str], None] = lambda text: None,
        flush_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        collectors: Mapping[str, Collector] | None = None,
    ) -> None:
        check_context(context)
        if STDIN in paths:
            raise UsageError("--follow: standard input cannot be followed", "pipe it into a file")
        expand([path for path in paths if not glob.has_magic(path)])
        known = _registry.all_collectors() if collectors is None else collectors
        self._run = Run(
            lake=lake,
            context=context,
            hosts=host_map or HostMap(),
            claims=Claims(known, kind),
            dry_run=False,
            debug=debug,
            stdin=None,
        )
        self._paths = list(paths)
        self._say = say
        self._flush_s = flush_s
        self._clock = clock
        self._flushed_s = -flush_s
        # Each holds its file open; beyond this, files are read whole.
        self._most_tails = allow_many() // 2
        self._tails: dict[Path, Tail] = {}
        self._wholes: dict[Path, _Whole] = {}
        self._folders: dict[Path, bool] = {}
        self._results: dict[str, FileResult] = {}
        self._strict = strict
        self._problem = ""

    @property
    def files(self) -> int:
        """Number of files followed now."""
        return len(self._tails) + len(self._wholes)

    @property
    def rows(self) -> int:
        """Rows written so far, those replaced since not counted."""
        return sum(sum(result.rows.values()) for result in self._results.values())

    def summary(self) -> IngestSummary:
        """What was read so far."""
        return IngestSummary(files=list(self._results.values()), strict=self._strict)

    def poll(self) -> None:
        """Look at every file once, and read what is due.

        Raises:
            LakeError: The lake is damaged. One that cannot be written now is told to ``say``;
                the files keep what is not in it.
        """
        self._poll(last=False)

    def finish(self) -> None:
        """Read what is there now, last lines without an end included.

        Raises:
            LakeError: The lake cannot be written.
        """
        for _ in range(FINAL_ATTEMPTS):
            if self._poll(last=True):
                break
        else:
            raise LakeError(
                f"{self._run.lake.root}: others write what is followed here all the time",
                "run the same command again to read the rest",
            )
        if self._problem:
            raise LakeError(self._problem, "make room or check permissions, then go on")
        for tail in self._tails.values():
            if tail.size() > tail.offset:
                self._keep(self._run.one(Found(path=tail.path, name=tail.name)))
            tail.close()
        self._tails = {}

    def _poll(self, *, last: bool) -> bool:
        """Whether all that was due was read, or could not be."""
        self._discover()
        due = last or self._clock() - self._flushed_s >= self._flush_s
        try:
            if due:
                self._flushed_s = self._clock()
                self._read_tails()
            for whole in list(self._wholes.values()):
                if not (whole.done and whole.sign == whole.read) and self._due(whole, last):
                    self._read_whole(whole)
        except OSError as error:
            self._failed(LakeError.unwritable(self._run.lake.root, error).message)
        except ConflictError:
            return False  # the lake changed under us: it is looked at anew
        except LakeError as error:
            self._failed(error.message)
        else:
            if self._problem and due:
                self._say(f"{self._run.lake.root} can be written again")
                self._problem = ""
        return True

    def _failed(self, problem: str) -> None:
        if not self._problem:
            self._say(f"{problem}; what is not in it yet is read again later")
        self._problem = problem

    def _found(self) -> Iterator[Found]:
        walk = Walk(self._run.lake.root, self._claims_folder)
        for path in self._paths:
            literal = os.path.lexists(path) or not glob.has_magic(path)
            for one in [path] if literal else sorted(glob.glob(path, recursive=True)):
                if os.path.lexists(one):
                    yield from walk.find(one)

    def _claims_folder(self, folder: Path) -> bool:
        if folder not in self._folders:
            self._folders[folder] = self._run.claims.folder(folder)
        return self._folders[folder]

    def _discover(self) -> None:
        """Find new files, and what became of those that are followed."""
        found = {one.path: (one, _sign(one)) for one in self._found()}
        at_inode = {sign[:2]: one for one, sign in found.values() if sign is not None}
        for path, tail in list(self._tails.items()):
            sign = found[path][1] if path in found else None
            if sign is not None and sign[:2] == tail.inode:
                continue
            del self._tails[path]
            now = at_inode.get(tail.inode)
            if now is not None:  # renamed, as logs are rotated
                tail.move(now.path, utf8(now.name), self._run.lake.inputs())
                self._tails[now.path] = tail
            else:
                self._drain(tail)
        for path in [path for path in self._wholes if path not in found]:
            del self._wholes[path]
        for path, (one, sign) in found.items():
            if path in self._tails:
                continue
            whole = self._wholes.setdefault(path, _Whole(found=one))
            whole.found = one
            whole.quiet = whole.quiet + 1 if whole.sign == sign else 0
            whole.sign = sign
            if not whole.looked and sign is not None and sign[2]:
                whole.looked = True
                if self._begin_tail(one):
                    del self._wholes[path]

    def _begin_tail(self, found: Found) -> bool:
        """Follow a file line by line if that is what it is."""
        if len(self._tails) >= self._most_tails or not found.path.is_file():
            return False  # a FIFO would hold us
        try:
            head = _content.read_head(found.path)
            with found.path.open("rb") as stream:
                if not head or stream.read(len(head)) != head:  # empty, or compressed
                    return False
            collector = self._run.claims.of(found.path, head)
            if isinstance(collector, Reject) or not collector.tail_lines:
                return False
            self._tails[found.path] = self._tail(found.path, utf8(found.name), collector)
        except OSError:
            return False
        return True

    def _tail(self, path: Path, name: str, collector: Collector) -> Tail:
        def identify(at: Path, content: Content) -> Identity:
            return self._run.identity(utf8(str(at.absolute())), content, collector, None)

        return Tail(path, name, collector, identify, self._run.lake.inputs())

    def _drain(self, tail: Tail) -> None:
        """Read the rest of a file that has no name here any more, and let it go."""
        try:
            while tail.intact() and (piece := tail.piece(rest=True)):
                self._write([(tail, piece)])
        except (OSError, LakeError) as error:
            self._say(f"{tail.path} is gone, and its last lines could not be read: {error}")
        tail.close()

    def _read_tails(self) -> None:
        """Read what is there now; what comes meanwhile waits, or a fast writer would hold us."""
        ends: dict[Path, int] = {}
        more = True
        while more:
            pieces: list[tuple[Tail, Piece]] = []
            ids: set[str] = set()
            for path, tail in list(self._tails.items()):
                size = tail.size()
                if size == tail.offset:
                    continue
                if not tail.intact():  # cut, or written anew: another content at the same path
                    tail.close()
                    del self._tails[path]
                    with suppress(FileNotFoundError):
                        self._tails[path] = self._tail(tail.path, tail.name, tail.collector)
                    if path not in self._tails:
                        continue
                    tail, size = self._tails[path], self._tails[path].size()
                if tail.offset >= ends.setdefault(path, size):
                    continue
                piece = tail.piece()
                if piece is None or self._is_known(tail, piece):
                    continue
                id = tail.record.id if tail.record else tail.identity(piece).id
                if id not in ids:  # a copy waits for the first to be in the lake
                    ids.add(id)
                    pieces.append((tail, piece))
            more = bool(pieces)
            try:
                self._write(pieces)
            except (OSError, LakeError):
                # Whether it is in the lake or not, the ledger tells; so does another reader's.
                for tail, _ in pieces:
                    tail.close()
                    del self._tails[tail.path]
                raise

    def _is_known(self, tail: Tail, piece: Piece) -> bool:
        """Whether the lake has this content from another file, a copy."""
        if tail.record is not None:
            return False
        return tail.identity(piece).known(self._run.lake.inputs()) is not None

    def _write(self, pieces: Sequence[tuple[Tail, Piece]]) -> None:
        """Write pieces of several files in one transaction."""
        if not pieces:
            return
        run = self._run
        now = run.context.now_ns()
        done: list[tuple[Tail, Piece, InputRecord, Reading]] = []
        with (
            tempfile.TemporaryDirectory(prefix="xtune-") as folder,
            run.lake.begin() as transaction,
        ):
            for tail, piece in pieces:
                file = Path(folder, "piece")
                file.write_bytes(piece.data)
                identity = tail.identity(piece)
                id = tail.record.id if tail.record else identity.id
                source = Source(file, tail.name)
                reading = read_input(
                    tail.collector, source, run.context, run.hosts, transaction, id,
                    debug=run.debug,
                )  # fmt: skip
                reading.stored = [tail.place(reject) for reject in reading.stored]
                begins = () if tail.record else identity.begins(run.lake.inputs())
                record = tail.next_record(identity, reading, now, begins)
                result = _result(tail.name, record, reading)
                write_rejects(transaction, reading, result, now)
                supersedes = tail.supersedes(identity)
                transaction.record(record, supersedes, extends=tail.record)
                done.append((tail, piece, record, reading))
            transaction.commit()
        for tail, piece, record, reading in done:
            tail.accept(piece, record)
            self._keep(_merged(self._results.get(tail.name), _result(tail.name, record, reading)))

    def _due(self, whole: _Whole, last: bool) -> bool:
        if last:
            return True
        if self._clock() < whole.due_s:
            return False
        if whole.found.problem is not None or whole.quiet >= QUIET_POLLS:
            return True
        if whole.due_s == 0.0:  # first seen: give it time to become quiet
            whole.due_s = self._clock() + self._flush_s
            return False
        return _is_text(whole.found.path)

    def _read_whole(self, whole: _Whole) -> None:
        began = self._clock()
        if self._begin_tail(whole.found):  # too little of it was there to tell before
            del self._wholes[whole.found.path]
            return
        whole.read, whole.done = whole.sign, True
        for result in self._run.each(whole.found):
            self._keep(result)
        whole.due_s = self._clock() + max(self._flush_s, REST * (self._clock() - began))

    def _keep(self, result: FileResult) -> None:
        old = self._results.get(result.path)
        if old is not None and result.state == "unchanged":
            return
        self._results[result.path] = result


def _sign(found: Found) -> _Sign | None:
    """What a changed file cannot have in common with what it was."""
    try:
        status = found.path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    return not head.startswith(b"\x1f\x8b") and b"\0" not in head and head[:1] != b"\x80"


def _result(name: str, record: InputRecord, reading: Reading) -> FileResult:
    return reading.result(name, collector=record.parser, source=record.id, state="read")


def _merged(old: FileResult | None, new: FileResult) -> FileResult:
    """What several pieces of one file gave."""
    if old is None:
        return new
    firsts = [ns for ns in (old.first_ns, new.first_ns) if ns is not None]
    lasts = [ns for ns in (old.last_ns, new.last_ns) if ns is not None]
    return replace(
        new,
        rows=_sum(old.rows, new.rows),
        rejects=old.rejects + new.rejects,
        reasons=old.reasons or new.reasons,
        notes=_sum(old.notes, new.notes),
        unknown=_sum(old.unknown, new.unknown),
        first_ns=min(firsts, default=None),
        last_ns=max(lasts, default=None),
    )


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    names = dict.fromkeys([*first, *second])
    return {name: first.get(name, 0) + second.get(name, 0) for name in names}

"""Collects inputs into the lake, one transaction each."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO
from zoneinfo import ZoneInfo

from xtune.collectors import _registry
from xtune.collectors._base import Collector, Context, Reject, Source
from xtune.errors import LakeError, UsageError
from xtune.ingest import _archive, _content, _identity
from xtune.ingest._claim import Claims
from xtune.ingest._content import Content
from xtune.ingest._identity import Identity
from xtune.ingest._read import Reading, read_input, utf8, write_rejects
from xtune.ingest._walk import STDIN, Found, Walk, expand
from xtune.ingest.host_map import HostMap
from xtune.ingest.summary import FileResult, FileState, IngestSummary
from xtune.lake import ConflictError, InputRecord, Inputs, InputState, Lake, Transaction

ARCHIVES_DEEP = 3  # archives within archives
TIMES_FROM = ("mtime", "name", "now")


def collect(
    lake: Lake,
    paths: Sequence[str],
    *,
    context: Context,
    kind: str | None = None,
    host_map: HostMap | None = None,
    strict: bool = False,
    dry_run: bool = False,
    debug: bool = False,
    on_file: Callable[[FileResult], None] | None = None,
    stdin: BinaryIO | None = None,
    collectors: Mapping[str, Collector] | None = None,
) -> IngestSummary:
    """Read files, folders, patterns and ``-`` into the lake.

    Each input is one transaction: after an interrupt or a kill, what was finished is kept and the
    same call reads the rest. Memory does not grow with an input.

    Args:
        lake: Where rows go.
        paths: What the user named.
        context: What the user says that files do not.
        kind: The collector to read everything with; None finds it by content.
        host_map: Names in files -> hosts.
        strict: Makes the summary's ``exit_code`` 3 where something was rejected.
        dry_run: Read, and write nothing.
        debug: Let an exception of a collector through instead of rejecting the input.
        on_file: Told of each input when it is done.
        stdin: What ``-`` reads; the process's own by default.
        collectors: By name; all by default.

    Raises:
        InputError: A path does not exist, or a pattern matches nothing; nothing was read.
        UsageError: The kind or the zone is unknown.
        LakeError: The lake cannot be written.
    """
    check_context(context)
    run = Run(
        lake=lake,
        context=context,
        hosts=host_map or HostMap(),
        claims=Claims(
            _registry.all_collectors() if collectors is None else collectors,
            kind,
            mapped=bool(context.column_map),
        ),
        dry_run=dry_run,
        debug=debug,
        stdin=stdin,
    )
    summary = IngestSummary(strict=strict, dry_run=dry_run)
    walk = Walk(lake.root, run.claims.folder)
    expanded = expand(paths)
    if not dry_run:
        lake.sweep()  # also where all inputs are known and nothing is written
    for path in expanded:
        for found in walk.find(path):
            for result in run.each(found):
                summary.files.append(result)
                if on_file is not None:
                    on_file(result)
    return summary


def check_context(context: Context) -> None:
    """Refuse flags whose values are unknown.

    Raises:
        UsageError: The zone or ``time_from`` is unknown.
    """
    if context.time_from is not None and context.time_from not in TIMES_FROM:
        raise UsageError(f"--time-from {context.time_from}: unknown", "mtime, name or now")
    if context.tz is not None:
        try:
            ZoneInfo(context.tz)
        except (ValueError, OSError, KeyError):
            raise UsageError(
                f"--tz {context.tz}: no such time zone", "an IANA name, such as Asia/Shanghai"
            ) from None


class Run:
    """One call of :func:`collect`."""

    def __init__(
        self,
        *,
        lake: Lake,
        context: Context,
        hosts: HostMap,
        claims: Claims,
        dry_run: bool,
        debug: bool,
        stdin: BinaryIO | None,
    ) -> None:
        self.lake = lake
        self.context = context
        self.hosts = hosts
        self.claims = claims
        self.dry_run = dry_run
        self.debug = debug
        self.stdin = stdin
        self._unpacked: dict[str, Path] = {}  # where members of archives stand -> where they are

    def each(self, found: Found) -> Iterator[FileResult]:
        """Read one input, or the members of one archive as if it were a folder."""
        if found.problem is None and (found.name == STDIN or found.path.is_fifo()):
            with self._spooled(found) as path:
                yield from self._members(replace(found, path=path, place=""), 0)
        else:
            yield from self._members(found, 0)

    def _members(self, found: Found, depth: int) -> Iterator[FileResult]:
        if not _is_archive(found):
            yield self.one(found)
            return
        if depth == ARCHIVES_DEEP:
            reason = f"an archive within {ARCHIVES_DEEP} archives"
            yield self.one(replace(found, problem=Reject("file", reason, "unpack it first")))
            return
        with tempfile.TemporaryDirectory(prefix="xtune-") as made:
            folder = Path(made)
            stands = found.stands or found.name
            self._unpacked[stands] = folder
            for problem in _archive.unpack(found.path, folder):
                name, place = (f"{at}, {problem.offset}" for at in (found.name, stands))
                yield self._unreadable(utf8(name), utf8(place), replace(problem, offset="file"))
            for member in Walk(self.lake.root, self.claims.folder).find(str(folder)):
                below = member.path.relative_to(folder)
                place, name = str(Path(stands, below)), str(Path(found.name, below))
                yield from self._members(replace(member, name=name, place=place), depth + 1)
            del self._unpacked[stands]

    def one(self, found: Found) -> FileResult:
        """Read one input that is no pipe."""
        name, place = utf8(found.name), utf8(found.stands)
        if found.problem is not None:
            return self._unreadable(name, place, found.problem)
        return self._input(name, found.path, place)

    @contextmanager
    def _spooled(self, found: Found) -> Iterator[Path]:
        """A file with what a pipe gives: collectors may seek."""
        with tempfile.TemporaryDirectory(prefix="xtune-") as folder:
            path = Path(folder, "stdin")
            with path.open("wb") as file:
                if found.name == STDIN:
                    shutil.copyfileobj(self.stdin or sys.stdin.buffer, file)
                else:
                    with found.path.open("rb") as pipe:
                        shutil.copyfileobj(pipe, file)
            yield path

    def _input(self, name: str, path: Path, place: str) -> FileResult:
        """Read a file or folder; ``place`` is its absolute path, empty for a pipe."""
        try:
            if path.is_dir():
                collector, content = self.claims.of(path, b""), _content.measure_tree(path)
            elif head := _content.read_head(path):
                collector, content = self.claims.of(path, head), self._measure(path, place)
            else:
                return self._unreadable(name, place, _nothing(path))
            time = self._time(path, place)
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
            problem = Reject("file", reason, "check its permissions, then collect it again")
            return self._unreadable(name, place, problem)
        if isinstance(collector, Reject):
            identity = self.identity(place, content, None, None)
            return self._store(name, identity, lambda _: Reading.of(collector))
        identity = self.identity(place, content, collector, time)
        if longer := self._longer(identity, path):
            return _unchanged(name, longer)
        source = Source(path, name)

        def read(transaction: Transaction | None) -> Reading:
            return read_input(
                collector,
                source,
                self.context,
                self.hosts,
                transaction,
                identity.id,
                debug=self.debug,
            )

        return self._store(name, identity, read)

    def _unreadable(self, name: str, place: str, problem: Reject) -> FileResult:
        """Note a place without content; its key is the place and what is wrong there."""
        key = hashlib.sha256(f"{place}\0{problem.reason}".encode()).hexdigest()
        identity = self.identity(place, Content(digest=key, size=0), None, None)
        return self._store(name, identity, lambda _: Reading.of(problem), "rejected")

    def _measure(self, path: Path, place: str) -> Content:
        inputs = self.lake.inputs()
        here = self.identity(place, Content(digest="", size=0), None, None)
        return _content.measure(path, lambda sign: here.earlier_sizes(inputs, sign))

    def _longer(self, identity: Identity, path: Path) -> InputRecord | None:
        """The reading of a longer file that begins with this one, where that file is still."""
        for record in identity.within(self.lake.inputs()):
            longer = Path(record.path)
            for stands, folder in self._unpacked.items():
                if longer.is_relative_to(stands):
                    longer = folder / longer.relative_to(stands)
            try:
                if (
                    longer.is_file()
                    and _content.is_beginning(path, longer)
                    and _content.first_digest(longer, record.size) == record.content
                ):
                    return record
            except OSError:
                continue
        return None

    def _time(self, path: Path, place: str) -> str | None:
        """What ``--time-from`` takes from the file's place, as part of whose it is.

        A pipe is read once: what comes from it now is not what came before, though it is equal.
        """
        if not place and self.context.time_from in ("mtime", "now"):
            return str(self.context.now_ns())
        if place and self.context.time_from == "mtime":
            return str(_content.newest_mtime_ns(path))
        return place if place and self.context.time_from == "name" else None

    def identity(
        self, place: str, content: Content, collector: Collector | None, time: str | None
    ) -> Identity:
        """The ledger's key of an input."""
        name = Path(place).name if place and collector and collector.name_tells else None
        return Identity(
            path=place,
            content=content,
            parser=collector.name if collector else "",
            parser_version=collector.version if collector else 0,
            reading=_identity.reading_flags(self.context, self.hosts) if collector else {},
            whose=_identity.whose_flags(self.context, time, name),
        )

    def _store(
        self,
        name: str,
        identity: Identity,
        read: Callable[[Transaction | None], Reading],
        without_collector: FileState = "unknown",
    ) -> FileResult:
        """Read an input that the lake does not have yet, in one transaction."""
        if known := self._known(name, identity):
            return known
        if self.dry_run:
            reading = read(None)
            replaced = bool(identity.supersedes(self.lake.inputs()))
            return _result(name, identity, reading, without_collector, replaced)
        try:
            with self.lake.begin() as transaction:
                reading = read(transaction)
                result = _result(name, identity, reading, without_collector, False)
                write_rejects(transaction, reading, result, self.context.now_ns())
                replaced = self._commit(transaction, identity, result)
        except ConflictError:
            if known := self._known(name, identity):
                return known
            raise
        except OSError as error:
            raise LakeError.unwritable(self.lake.root, error) from error
        return _result(name, identity, reading, without_collector, replaced)

    def _commit(self, transaction: Transaction, identity: Identity, result: FileResult) -> bool:
        """Make an input's rows visible; whether they replace those of an earlier reading."""
        state: InputState = "read"
        if result.state == "rejected" or result.state == "unknown":
            state = result.state
        record = InputRecord(
            id=identity.id,
            name=result.path,
            path=identity.path,
            content=identity.content.digest,
            size=identity.content.size,
            head=identity.content.sign,
            marks=identity.content.marks,
            parser=identity.parser,
            parser_version=identity.parser_version,
            reading=identity.reading,
            whose=identity.whose,
            time_ns=self.context.now_ns(),
            state=state,
            rows=result.rows,
            rejects=result.rejects,
            first_reject=asdict(result.reasons[0]) if result.reasons else {},
            begins=identity.begins(self.lake.inputs()),
        )
        replaced: frozenset[str] = frozenset()

        def supersedes(inputs: Inputs) -> frozenset[str]:
            nonlocal replaced
            replaced = identity.supersedes(inputs)
            if self.claims.forced and state == "rejected":  # the wrong --kind, most likely
                replaced = frozenset(id for id in replaced if inputs[id].state != "read")
            return replaced

        transaction.record(record, supersedes)
        transaction.commit()
        return bool(replaced)

    def _known(self, name: str, identity: Identity) -> FileResult | None:
        """The result where the lake has this reading already."""
        record = identity.known(self.lake.inputs())
        return None if record is None else _unchanged(name, record)


def _unchanged(name: str, record: InputRecord) -> FileResult:
    return FileResult(
        path=name,
        collector=record.parser or None,
        source=record.id,
        state="unchanged" if record.state == "read" else record.state,
        rejects=record.rejects,
        reasons=(Reject(**record.first_reject),) if record.first_reject else (),
    )


def _is_archive(found: Found) -> bool:
    if found.problem is not None or not found.path.is_file():
        return False
    try:
        return _archive.is_tar(found.path, _content.read_head(found.path))
    except OSError:
        return False


def _nothing(path: Path) -> Reject:
    if path.stat().st_size == 0:
        return Reject("file", "is empty")
    return Reject("file", "has no content: empty or damaged gzip", "copy it again")


def _result(
    name: str,
    identity: Identity,
    reading: Reading,
    without_collector: FileState,
    replaced: bool,
) -> FileResult:
    state: FileState = reading.state
    if not identity.parser:
        state = without_collector
    elif state == "read" and replaced:
        state = "replaced"
    return reading.result(name, collector=identity.parser or None, source=identity.id, state=state)

"""What ``xtune doctor`` says about a lake."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from xtune.errors import LakeError, reason_of
from xtune.lake._lake import Lake
from xtune.lake._parquet import open_parquet, table_named
from xtune.lake._records import DataFile
from xtune.lake._scratch import abandoned, unnamed

# A source's clock may run ahead of the collecting host's by this much without a word.
CLOCK_SLACK_NS = 60_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a lake.

    Attributes:
        unfinished: What killed writers left; the next write, or :meth:`Lake.sweep`, deletes it.
        damaged: One line for each live file that is missing, torn or of another schema.
        mends: What to do about each of them.
        versions: Live files by (table schema, xtune version) that wrote them.
        bytes_per_day: Table -> date -> bytes on disk.
        ahead: Live raw files with rows later than the lake's clock: a source's clock is wrong.
        backwards: Ledger entries dated later than now: this host's clock was set back.
    """

    unfinished: tuple[Path, ...]
    damaged: tuple[str, ...]
    mends: tuple[str, ...]
    versions: dict[tuple[int, str], int]
    bytes_per_day: dict[str, dict[str, int]]
    ahead: tuple[DataFile, ...]
    backwards: bool


def inspect(
    lake: Lake,
    *,
    open_files: bool = True,
    read_through: bool = False,
    on_file: Callable[[int, str], None] = lambda done, path: None,
) -> Health:
    """Look a lake over; changes nothing.

    Args:
        lake: The lake.
        open_files: Also open each live file (a footer read each).
        read_through: Also decode all that stands in them, a row group at a time.
        on_file: Told how many files were opened, and the last one's name.
    """
    try:
        with lake.ledger.lock():
            unfinished = [*abandoned(lake.ledger), *unnamed(lake.ledger)]
    except PermissionError:  # a lake that this user may only read: whoever writes it sweeps it
        unfinished = []
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        unfinished = []
    state = lake.ledger.load()
    files = sorted(state.files.values(), key=lambda f: (f.table, f.date, f.path))
    damaged, mends = [], []
    for done, file in enumerate(files if open_files else (), 1):
        try:
            _open(file.path, read_through)
        except LakeError as error:
            damaged.append(str(error))
            mends.append(mend_of(file))
        on_file(done, file.path.name)
    sizes: dict[str, dict[str, int]] = {}
    for file in files:
        days = sizes.setdefault(file.table, {})
        days[file.date] = days.get(file.date, 0) + file.bytes
    latest_ns = lake.clock() + CLOCK_SLACK_NS
    return Health(
        unfinished=tuple(unfinished),
        damaged=tuple(damaged),
        mends=tuple(mends),
        versions=dict(Counter((f.schema, f.xtune) for f in files)),
        bytes_per_day=sizes,
        ahead=tuple(f for f in files if f.max_ts_ns is not None and f.max_ts_ns > latest_ns),
        backwards=int(state.last.partition("-")[0] or 0) > latest_ns,
    )


def mend_of(file: DataFile) -> str:
    """What to do about a damaged file."""
    if table_named(file.table).derived:
        return "delete it; the next xtune rebuild makes it again"
    return "restore it, or collect its inputs into a new lake"


def torn(files: Iterable[DataFile]) -> Iterator[tuple[DataFile, str]]:
    """Files that are missing or have another size than was written, and what is wrong; cheap."""
    for file in files:
        try:
            size = file.path.stat().st_size
        except OSError as error:
            yield file, f"{file.path}: {reason_of(error)}"
            continue
        if size != file.bytes:
            yield file, f"{file.path}: damaged: {size} bytes, {file.bytes} were written"


def _open(path: Path, read_through: bool) -> None:
    """Raise :class:`LakeError` where the file cannot be opened, or not be read to its end."""
    with open_parquet(path) as file:
        try:
            for group in range(file.num_row_groups if read_through else 0):
                file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise LakeError(f"{path}: damaged: {str(error).splitlines()[0]}") from error

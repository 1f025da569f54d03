"""Finds the inputs below the paths that a user names."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xtune.collectors._base import Reject
from xtune.errors import InputError

STDIN = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One input, or one place that cannot be one.

    Attributes:
        path: Where it is; ``-`` for standard input.
        name: As the user typed it, or the path below that.
        problem: Why it cannot be read.
        place: Where it stands for the user, where ``path`` is a copy (a member of an archive);
            empty for a pipe.
    """

    path: Path
    name: str
    problem: Reject | None = None
    place: str | None = None

    @property
    def stands(self) -> str:
        """Absolute path, for the ledger; empty for a pipe."""
        return str(self.path.absolute()) if self.place is None else self.place


def expand(paths: Sequence[str]) -> list[str]:
    """Patterns replaced by what they match.

    Raises:
        InputError: A path does not exist, or a pattern matches nothing.
    """
    expanded: list[str] = []
    for path in paths:
        if path == STDIN or os.path.lexists(path):
            expanded.append(path)
        elif glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise InputError(f"{path}: matches no file", "check the pattern")
            expanded += matches
        else:
            raise InputError(f"{path}: no such file or folder", "check the path")
    return expanded


class Walk:
    """Walks files and folders in name order; each file is found once, however it is reached.

    Links to folders are followed, each folder once, so a loop of links ends.

    Args:
        skip: A folder to leave out: the lake itself.
        claims_folder: Whether a collector reads a folder whole.
    """

    def __init__(self, skip: Path, claims_folder: Callable[[Path], bool]) -> None:
        self._skip = skip.resolve()
        self._claims_folder = claims_folder
        self._seen: set[tuple[int, int]] = set()

    def find(self, path: str) -> Iterator[Found]:
        """Inputs at or below one path of :func:`expand`."""
        if path == STDIN:
            yield Found(path=Path(STDIN), name=STDIN)
        else:
            yield from self._find(Path(path), explicit=True)

    def _find(self, path: Path, *, explicit: bool = False) -> Iterator[Found]:
        try:
            status = path.stat()
        except OSError as error:
            yield _problem(path, f"cannot be opened: {_text(error)}")
            return
        identity = (status.st_dev, status.st_ino)
        if identity in self._seen:
            return
        self._seen.add(identity)
        if stat.S_ISDIR(status.st_mode):
            yield from self._find_below(path)
        elif stat.S_ISREG(status.st_mode) or (explicit and _is_pipe_of_a_shell(path, status)):
            yield Found(path=path, name=str(path))
        else:
            yield _problem(path, "is not a regular file", "pipe its content into: xtune collect -")

    def _find_below(self, folder: Path) -> Iterator[Found]:
        if folder.resolve() == self._skip:
            return
        if self._claims_folder(folder):
            yield Found(path=folder, name=str(folder))
            return
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            yield _problem(folder, f"cannot be listed: {_text(error)}")
            return
        for name in names:
            yield from self._find(folder / name)


def _is_pipe_of_a_shell(path: Path, status: os.stat_result) -> bool:
    """Whether it is what ``<(command)`` gives: a pipe that ends, not a FIFO that may block."""
    return stat.S_ISFIFO(status.st_mode) and path.parent == Path("/dev/fd")


def _problem(path: Path, reason: str, hint: str = "check its permissions and links") -> Found:
    return Found(path=path, name=str(path), problem=Reject("file", reason, hint))


def _text(error: OSError) -> str:
    return error.strerror or str(error)

"""Unpacks tar archives, so that each member is an input of its own."""

from __future__ import annotations

import bz2
import errno
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from xtune.collectors._base import Reject

# POSIX ustar, pax and GNU tar say so here; inside bzip2 and xz only unpacking tells.
_MAGIC_AT, _MAGIC = 257, b"ustar"
_OPENERS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
# Text packs some 100 times smaller at best; an archive that claims far more is a bomb.
RATIO, FREE_BYTES = 1000, 1 << 30
MEMBERS = 1_000_000
_CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)


def is_tar(path: Path, head: bytes) -> bool:
    """Whether a file is a tar archive; ``head`` is its beginning after gzip."""
    for magic, opened in _OPENERS.items():
        if head.startswith(magic):
            try:
                with opened(path) as stream:
                    head = stream.read(512)
            except _DAMAGED:
                return False
    return head[_MAGIC_AT:].startswith(_MAGIC)


def unpack(path: Path, folder: Path) -> Iterator[Reject]:
    """Write the members of an archive below ``folder``; yields what could not be.

    Nothing lands outside ``folder``: a member with an absolute path or ``..`` is a reject, files
    are written before any link is made, and a link that leads outside is none.
    """
    limit = max(FREE_BYTES, RATIO * path.stat().st_size)
    unpacked = count = 0
    links: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                unpacked += member.size
                count += 1
                if unpacked > limit or count > MEMBERS:
                    reason = f"unpacks to more than {limit} bytes or {MEMBERS} members"
                    yield Reject(f"member {member.name}", reason, "unpack it, if it is genuine")
                    break
                if problem := _place(archive, member, folder, links):
                    yield Reject(f"member {member.name}", problem)
    except _DAMAGED as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        reason = "no room to unpack it" if full else f"damaged archive: {error}"
        hint = "set TMPDIR to a larger disk" if full else "copy it again"
        yield Reject(f"after member {count}", reason, f"{hint}; the members before are kept")
    for member in _link(links, folder):
        yield Reject(f"member {member.name}", f"a link to {member.linkname}: not followed")


def _place(
    archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, links: list[tarfile.TarInfo]
) -> str | None:
    """Write a member, or say why not; links are kept for later."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        return "its path leads out of the archive: not unpacked"
    target = folder / name
    if member.issym() or member.islnk():
        links.append(member)
        return None
    if not (member.isdir() or member.isfile()):
        return "is a device or a pipe: not unpacked"
    try:
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    except _CLASHES:
        return "its path clashes with that of another member"
    except ValueError:
        return "its name cannot be one of a file"
    except OSError as error:
        if error.errno in _FULL:
            raise
        return f"cannot be unpacked: {error.strerror}"
    with file:
        if content := archive.extractfile(member):
            shutil.copyfileobj(content, file)
    with suppress(OverflowError, ValueError, OSError):  # a time that no file can have
        os.utime(target, (member.mtime, member.mtime))
    return None


def _link(links: list[tarfile.TarInfo], folder: Path) -> Iterator[tarfile.TarInfo]:
    """Make links; yields those that lead outside ``folder`` or cannot be made."""
    root = folder.resolve()
    made: dict[Path, tarfile.TarInfo] = {}
    for member in links:
        place = folder / member.name
        target = member.linkname if member.issym() else folder / member.linkname
        try:
            if not _inside(place.parent, root):
                raise PermissionError(errno.EPERM, "leads outside")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
            made[place] = member
        except (OSError, ValueError):
            yield member
    # Links may lead through one another: look when all are there, until none leads outside.
    while outside := [p for p in made if not _inside(p, root)]:
        for place in outside:
            place.unlink()
            yield made.pop(place)


def _inside(place: Path, root: Path) -> bool:
    try:
        return place.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a loop of links leads nowhere
        return True

"""Folders and locks on a plain filesystem."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xtune.errors import LakeError
from xtune.files import fsync


def make_folder(path: Path) -> None:
    """Make a folder and its parents; the names survive a power cut."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    fsync(path.parent)


def try_lock(path: Path) -> int | None:
    """Take an exclusive lock if nobody holds it: its descriptor, else None.

    The lock ends with the descriptor, so also with the process, however that ends. It belongs to
    the open file, not to a process id, so it also tells apart processes of different containers.
    """
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def take_lock(path: Path) -> int:
    """Wait for an exclusive lock and take it: its descriptor."""
    return _lock(path, fcntl.LOCK_EX)


def share_lock(path: Path) -> int:
    """Wait until nobody holds an exclusive lock and take a shared one: its descriptor."""
    return _lock(path, fcntl.LOCK_SH)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; waits for it."""
    with held(take_lock(path)):
        yield


@contextmanager
def held(descriptor: int) -> Iterator[None]:
    """Give a lock back at the end."""
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, how: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise LakeError(
                f"{path}: this filesystem has no file locks",
                "put the lake on a local disk, or mount with locks (Lustre: -o flock)",
            ) from error
        raise
    return descriptor

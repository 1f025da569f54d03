"""Files under names that anybody may have taken: opened without waiting, looked at before use.

Whoever opens a named pipe waits until somebody opens its other end, so a pipe under the name of a
table, a key or a log would hold a process for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def at_once(path: str, flags: int) -> int:
    """An opener for ``open`` that never waits for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def open_regular(path: str | Path, flags: int, mode: int = 0o600) -> tuple[int, os.stat_result]:
    """Open a regular file.

    Args:
        path: Its name.
        flags: As for ``os.open``.
        mode: Where the flags create it.

    Returns:
        The descriptor, which is the caller's to close, and what the file is.

    Raises:
        OSError: It cannot be opened, or is a pipe, a device or a directory.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file, status


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: It cannot be read, or is a pipe, a device or a directory.
    """
    file, _ = open_regular(path, os.O_RDONLY)
    with open(file, "rb") as content:
        return content.read()


def foreign(status: os.stat_result) -> bool:
    """Whether a file is neither this user's nor root's: its owner may change it at any time."""
    return status.st_uid not in (0, os.geteuid())

"""Durable writes on a plain filesystem."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Where files are kept that can be made again: ``$XDG_CACHE_HOME/xtune`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "xtune" / name


def writable_cache_folder(name: str) -> Path:
    """That folder, made where it is not.

    Raises:
        OSError: Nothing can be written there, or no home folder is known.
    """
    try:
        folder = cache_folder(name)
    except RuntimeError as error:  # neither a variable nor the system names a home
        raise OSError(f"no folder for caches: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def fsync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network filesystems cannot flush a folder; the rename itself is then all there is.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)

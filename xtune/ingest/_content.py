"""What an input holds, told by hashes: the whole, and the beginnings that were read before."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from xtune.collectors._base import HEAD_BYTES
from xtune.collectors._gzip import GZIP_MAGIC, GzipBombError, inflated

CHUNK_BYTES = 1 << 20
# Files whose first 4 KiB agree may be one log before and after it was rotated to another name;
# shorter ones (snapshots of idle ports) may agree by chance, so only their path tells.
SIGN_BYTES = 4096
# Beginnings that are hashed of each file: a log is compared with longer ones where these agree.
MARKS = tuple(SIGN_BYTES << doubled for doubled in range(1, 40))
_MARK_DIGITS = 12
# /sys changes all the time; of a sysfs root only this is telemetry.
SYSFS_PART = Path("class", "infiniband")
# Links of a sysfs device that lead out of it.
SYSFS_LINKS = frozenset({"device", "driver", "subsystem", "iommu", "iommu_group", "firmware_node"})
TREE_FILES = 100_000


@dataclass(kw_only=True, slots=True)
class Content:
    """Hashes of one input.

    Attributes:
        digest: SHA-256 of the content after gzip; of names and contents for a folder.
        size: Bytes of that content.
        sign: SHA-256 of its first SIGN_BYTES; empty where it is shorter, or a folder.
        marks: Beginnings of the SHA-256 of its first 8 KiB, 16 KiB and so on; none of a folder.
        beginnings: SHA-256 of the first n bytes, for the n that were asked for.
    """

    digest: str
    size: int
    sign: str = ""
    marks: tuple[str, ...] = ()
    beginnings: dict[int, str] = field(default_factory=dict)


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Content of a file, gzip undone as far as it goes; a damaged end is left out."""
    data = stream.read(CHUNK_BYTES)
    if data[:2] != GZIP_MAGIC:
        while data:
            yield data
            data = stream.read(CHUNK_BYTES)
        return
    content = inflated(stream, data)
    try:
        while text := content.read1(CHUNK_BYTES):
            yield text
    except (EOFError, gzip.BadGzipFile, zlib.error, GzipBombError):
        return


def read_head(path: Path) -> bytes:
    """The first HEAD_BYTES of the content, fewer where gzip is damaged before.

    Raises:
        OSError: The file cannot be read.
    """
    head = b""
    with path.open("rb") as stream:
        for chunk in chunks(stream):
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
    return head[:HEAD_BYTES]


def measure(path: Path, earlier_sizes: Callable[[str], Iterable[int]]) -> Content:
    """Hash a file in one pass.

    Args:
        path: The file.
        earlier_sizes: Given the sign, lengths whose beginnings are wanted too.

    Raises:
        OSError: The file cannot be read.
    """
    whole = hashlib.sha256()
    size = 0
    sign = ""
    beginnings: dict[int, str] = {}
    with path.open("rb") as stream:
        source = chunks(stream)
        first = b""
        while len(first) < SIGN_BYTES and (more := next(source, b"")):
            first += more
        if len(first) >= SIGN_BYTES:
            sign = hashlib.sha256(first[:SIGN_BYTES]).hexdigest()
        asked = set(earlier_sizes(sign))
        wanted = sorted(asked.union(MARKS), reverse=True)
        chunk = first
        while chunk:
            while wanted and wanted[-1] <= size + len(chunk):
                cut = wanted.pop() - size
                beginning = whole.copy()
                beginning.update(chunk[:cut])
                beginnings[size + cut] = beginning.hexdigest()
            whole.update(chunk)
            size += len(chunk)
            chunk = next(source, b"")
    return Content(
        digest=whole.hexdigest(),
        size=size,
        sign=sign,
        marks=tuple(beginnings[n][:_MARK_DIGITS] for n in MARKS if n in beginnings),
        beginnings={n: found for n, found in beginnings.items() if n in asked},
    )


def is_beginning(path: Path, longer: Path) -> bool:
    """Whether the content of ``longer`` begins with that of ``path``.

    Raises:
        OSError: One cannot be read.
    """
    with path.open("rb") as stream, longer.open("rb") as other:
        rest, more = b"", chunks(other)
        for part in chunks(stream):
            while len(rest) < len(part) and (chunk := next(more, b"")):
                rest += chunk
            if not rest.startswith(part):
                return False
            rest = rest[len(part) :]
    return True


def first_digest(path: Path, size: int) -> str:
    """SHA-256 of the first ``size`` bytes of a file's content; empty where it is shorter.

    Raises:
        OSError: The file cannot be read.
    """
    return measure(path, lambda _: [size]).beginnings.get(size, "")


def measure_tree(root: Path) -> Content:
    """Hash a folder: the names and contents of its files, in name order.

    What cannot be read counts by its name alone.
    """
    whole = hashlib.sha256()
    size = 0
    part = root / SYSFS_PART
    for path in _tree_files(part if part.is_dir() else root):
        name = os.fsencode(path.relative_to(root))
        try:
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").digest()
                size += stream.tell()
        except OSError:
            content = b""
        whole.update(len(name).to_bytes(4, "big") + name + content)
    return Content(digest=whole.hexdigest(), size=size)


def newest_mtime_ns(root: Path) -> int:
    """Newest modification time in a file or folder."""
    if not root.is_dir():
        return root.stat().st_mtime_ns
    part = root / SYSFS_PART
    files = _tree_files(part if part.is_dir() else root)
    return max((path.stat().st_mtime_ns for path in files), default=0)


def _tree_files(root: Path) -> Iterator[Path]:
    """Regular files below a folder, at most TREE_FILES, in name order.

    Links to folders are followed directly below the folder only, as sysfs links its devices.
    """
    pending = [(root, 0)]
    count = 0
    while pending and count < TREE_FILES:
        path, depth = pending.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                if not path.is_symlink() or (depth <= 1 and path.name not in SYSFS_LINKS):
                    names = sorted(os.listdir(path), reverse=True)
                    pending += [(path / name, depth + 1) for name in names]
            elif stat.S_ISREG(status.st_mode):
                count += 1
                yield path
        except OSError:
            continue

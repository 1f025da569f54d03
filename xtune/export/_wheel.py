"""A pure-Python wheel whose bytes depend on its contents alone."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

# Zip has no time before 1980; files are stored, since compressors differ among zlib builds.
EPOCH = (1980, 1, 1, 0, 0, 0)


def wheel_name(distribution: str, version: str) -> str:
    """File name of a pure-Python wheel (PEP 427)."""
    return f"{distribution}-{version}-py3-none-any.whl"


def write_wheel(
    folder: Path, distribution: str, version: str, files: Mapping[str, bytes], metadata: str
) -> Path:
    """Write ``<distribution>-<version>-py3-none-any.whl`` by rename (PEP 427).

    Args:
        folder: Where the wheel goes.
        distribution: Normalised name.
        version: Public or local version (PEP 440).
        files: Path in site-packages -> content.
        metadata: The text of ``METADATA``.

    Returns:
        Path of the wheel.
    """
    info = f"{distribution}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: xtune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = dict(sorted(files.items()))
    content[f"{info}/METADATA"] = metadata.encode()
    content[f"{info}/WHEEL"] = tags.encode()
    record = [f"{name},{_digest(data)},{len(data)}" for name, data in content.items()]
    record.append(f"{info}/RECORD,,")
    content[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    path = folder / wheel_name(distribution, version)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3  # Unix, so that the mode below means the same anywhere
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    os.replace(temporary, path)
    return path


def _digest(data: bytes) -> str:
    raw = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

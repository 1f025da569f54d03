"""Finds and reads InfiniBand devices in a sysfs tree, live or copied.

Layout: ``<devices>/<device>/ports/<n>/{counters,hw_counters,counters_ext,rate,state,...}``
(Linux ``Documentation/ABI/stable/sysfs-class-infiniband``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from xtune.collectors._base import Reject
from xtune.collectors._ib import U64_MAX
from xtune.collectors._ib_text import clip

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PORT_MARKS = ("counters", "hw_counters", "counters_ext", "rate", "state", "link_layer")
COUNTER_FOLDERS = ("counters", "hw_counters", "counters_ext")
_MAX_BYTES = 4096  # sysfs gives at most a page
_MAX_ENTRIES = 1024
_SEARCH_DEPTH = 6

Reader = Callable[[Path], bytes]


@dataclass(slots=True)
class Port:
    """One port as read: raw counters by directory and file name, attributes by file name."""

    device: str
    number: int
    attributes: dict[str, str]
    counters: dict[str, int] = field(default_factory=dict)
    hw_counters: dict[str, int] = field(default_factory=dict)
    counters_ext: dict[str, int] = field(default_factory=dict)
    pci: str | None = None
    netdev: str | None = None


def entries(folder: Path) -> list[str]:
    """Names in a folder, sorted, at most 1,024; empty where it cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry, _ in zip(found, range(_MAX_ENTRIES), strict=False))
    except (OSError, ValueError):
        return []


def is_device(folder: Path) -> bool:
    """Whether a folder is one device: it has a numbered port with something of a port in it."""
    return any(
        any(mark in _PORT_MARKS for mark in entries(folder / "ports" / name))
        for name in entries(folder / "ports")
        if name.isascii() and name.isdigit()
    )


def device_folders(root: Path) -> list[Path]:
    """Devices of a root in one of the shapes that are claimed: a device, devices, or ``/sys``."""
    if is_device(root):
        return [root]
    for place in (root, root / "class" / "infiniband"):
        found = [place / name for name in entries(place) if is_device(place / name)]
        if found:
            return found
    return []


def search_devices(root: Path, depth: int = _SEARCH_DEPTH) -> list[Path]:
    """Devices in or below a root; links to folders are not followed on the way down."""
    found = device_folders(root)
    if found or depth == 0:
        return found
    for name in entries(root):
        child = root / name
        if child.is_dir() and not child.is_symlink():
            found += search_devices(child, depth - 1)
    return found


def read_file(path: Path) -> bytes:
    """Up to a page of a regular file.

    Raises:
        OSError: As sysfs gives it: EINVAL, EOPNOTSUPP, EACCES, or not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a regular file")
        return os.read(handle, _MAX_BYTES)
    finally:
        os.close(handle)


def _attribute(path: Path, reader: Reader) -> str | None:
    try:
        return reader(path).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def counter_value(raw: bytes, place: str) -> int | Reject:
    """A counter's file as a number; a reject where it holds anything else."""
    text = raw.decode("utf-8", "replace").strip()
    if text.isascii() and text.isdigit() and int(text) <= U64_MAX:
        return int(text)
    return Reject(place, f"not a counter: {clip(text)!r}", "this counter is unknown, others count")


def unreadable(place: str, error: OSError) -> Reject:
    """The reject of a counter that the driver does not give."""
    reason = error.strerror or str(error)
    return Reject(place, f"cannot be read: {reason}", "this counter is unknown, others count")


def _counter(path: Path, place: str, reader: Reader) -> int | Reject:
    try:
        return counter_value(reader(path), place)
    except OSError as error:
        return unreadable(place, error)


def pci_address(folder: Path) -> str | None:
    """PCI address of the device that a folder of ``class/`` is of; ``None`` where it has none."""
    try:
        address = (folder / "device").resolve().name
    except (OSError, RuntimeError):
        return None
    return address if _PCI.fullmatch(address) else None


def _netdev(folder: Path, port: int, reader: Reader) -> str | None:
    netdev = _attribute(folder / "ports" / str(port) / "gid_attrs" / "ndevs" / "0", reader)
    if netdev is None:
        names = entries(folder / "device" / "net")
        netdev = names[0] if len(names) == 1 else None
    return netdev


def describe_ports(folder: Path, reader: Reader = read_file) -> Iterator[Port]:
    """Every port of a device with its attributes, without its counters.

    Args:
        folder: The device.
        reader: How to read a file, :func:`read_file` outside tests of failing drivers.
    """
    shared = {}
    for name in ("node_guid", "node_desc", "hca_type", "board_id", "fw_ver"):
        text = _attribute(folder / name, reader)
        if text is not None:
            shared[name] = text
    for name in entries(folder / "ports"):
        if not (name.isascii() and name.isdigit() and len(name) < 4):
            continue
        here = folder / "ports" / name
        attributes = dict(shared)
        for attribute in ("rate", "state", "phys_state", "link_layer"):
            text = _attribute(here / attribute, reader)
            if text is not None:
                attributes[attribute] = text
        gid = _attribute(here / "gids" / "0", reader)
        if gid is not None:
            attributes["gid"] = gid
        port = Port(device=folder.name, number=int(name), attributes=attributes)
        port.pci, port.netdev = pci_address(folder), _netdev(folder, port.number, reader)
        yield port


def counter_files(folder: Path, port: int) -> Iterator[tuple[str, str]]:
    """Directory and name of each counter of a port, in the order in which they are read."""
    for kind in COUNTER_FOLDERS:
        for name in entries(folder / "ports" / str(port) / kind):
            if name != "lifespan":  # the cache's age limit in ms, not a counter
                yield kind, name


def read_ports(folder: Path, reader: Reader = read_file) -> Iterator[Port | Reject]:
    """Read every port of a device; a counter that cannot be read costs itself only.

    Args:
        folder: The device.
        reader: How to read a file, :func:`read_file` outside tests of failing drivers.
    """
    for port in describe_ports(folder, reader):
        into = dict(
            zip(COUNTER_FOLDERS, (port.counters, port.hw_counters, port.counters_ext), strict=True)
        )
        for kind, name in counter_files(folder, port.number):
            place = f"{folder.name}/ports/{port.number}/{kind}/{name}"
            path = folder / "ports" / str(port.number) / kind / name
            value = _counter(path, place, reader)
            if isinstance(value, Reject):
                yield value
            else:
                into[kind][name] = value
        yield port

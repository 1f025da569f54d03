"""Samples the InfiniBand and RoCE ports of a live sysfs tree, cheaply and often.

Counter files stay open and are read again at offset 0, values are held as read, and Arrow is built
only when somebody takes them. An open file outlives its name: a device that was renamed, replaced
or unplugged could go on giving old numbers. So after each reading the folders of the counters are
looked up by their path, once a second where they have stood still for a while, and readings since
the last time that came from files that are no longer there are thrown away.

Every reading is a call into the driver, and some ask the firmware. Counters that have a column, so
those that rates and episodes come from, are read at each tick; the others once a second where
ticks are closer, and are unknown (no key in ``extra``) between.

What it assumes: a folder whose files are replaced has another inode or another modification time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xtune.collectors._base import Context, Reject, RowBuffer, Rows
from xtune.collectors._ib import parse_rate
from xtune.collectors._ib_sysfs_tree import (
    COUNTER_FOLDERS,
    Port,
    counter_files,
    describe_ports,
    device_folders,
    entries,
    unreadable,
)
from xtune.collectors._live_columns import Block, counter_rows
from xtune.collectors._open_files import allow_many
from xtune.collectors.ib_sysfs import COLLECTOR, has_column, port_rows

#: A counter is at most 20 digits and a line end; longer text is no counter.
VALUE_BYTES = 32
#: How often new devices are looked for.
WATCH_NS = 1_000_000_000
#: How often attributes (state, width) are read anew, and counters that failed are tried again.
SCAN_NS = 10_000_000_000
#: How long folders must have stood still to be looked up when a port is read as a whole only.
STEADY_NS = 10_000_000_000
#: Files that this process may hold open beside counters: those of the lake and of libraries.
SPARE_FILES = 256
#: How often a port is read as a whole, its rate and counters without a column too: once a second,
#: whatever little a tick comes early.
WHOLE_NS = 950_000_000
#: What a driver says of a counter that it does not have: no use asking at every tick.
_NEVER = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM}
_GONE = {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTDIR}


_Key = tuple[str, int]  # a device or a place, and a port


class _GoneError(Exception):
    """The files that are open are not those at the path any more."""


@dataclass(slots=True)
class _Files:
    """The counter files of one port; open, but where they would be too many for this process."""

    folder: Path
    number: int
    names: list[tuple[str, str]] = field(default_factory=list)  # those with a column first
    handles: list[int] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # those of its counters that exist
    sign: list[tuple[int, int, int] | None] = field(default_factory=list)
    rate_handle: int | None = None
    failed: set[tuple[str, str]] = field(default_factory=set)
    often: int = 0  # how many of its counters are read at each tick
    held: int = 0  # how many of those that may be open it holds; none: opened at each reading

    def open(self) -> None:
        """Open the counters that it has.

        Raises:
            OSError: One cannot be opened any more.
        """
        here = self.folder / "ports" / str(self.number)
        for kind, name in self.names:
            self.handles.append(_open(here / kind / name))
        with suppress(OSError):
            self.rate_handle = _open(here / "rate")

    def count_often(self) -> None:
        """Count those that are read at each tick: all, where none has a column."""
        self.often = sum(has_column(name) for _, name in self.names) or len(self.names)

    def look(self) -> list[tuple[int, int, int] | None]:
        """What is at the paths of the counters' folders now."""
        found: list[tuple[int, int, int] | None] = []
        for folder in self.folders:
            try:
                status = os.stat(folder)
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns))
            except OSError:
                found.append(None)
        return found

    def close(self) -> None:
        for handle in [*self.handles, *([] if self.rate_handle is None else [self.rate_handle])]:
            os.close(handle)
        self.handles, self.rate_handle = [], None


@dataclass(slots=True)
class _LivePort:
    """One port: what it is, its open files, and the readings held."""

    about: dict[str, Any]
    files: _Files
    block: Block
    rate_gbps: float | None = None
    rate_text: bytes = b""
    sure: int = 0  # readings of the block that are known to come from the files at the path

    def confirm(self) -> None:
        """Take all readings for sure."""
        self.sure = len(self.block.stamps)

    def drop_doubtful(self) -> None:
        """Throw away what is not sure."""
        block = self.block
        del block.stamps[self.sure :], block.rates[self.sure :], block.values[self.sure :]


@dataclass(frozen=True, slots=True)
class SysfsReadings:
    """What a sampler read, to be made rows of by any one thread."""

    sampler: SysfsSampler
    seen: list[dict[str, Any]]
    blocks: list[Block]

    def rows(self, context: Context) -> Iterator[Rows]:
        """Rows of ``ports`` and ``link_counters``."""
        ports = RowBuffer("ports", context)
        for row in self.seen:
            ports.add(row)
        yield from ports.flush()
        yield from counter_rows(self.blocks, self.sampler.wide, self.sampler.rejected, context)


class SysfsSampler:
    """Reads every port below a root at each :meth:`tick`.

    Args:
        root: ``/sys`` or any other root of its shapes.
        host: This host's name.
        now_ns: Nanoseconds since the epoch; stamps each port just before its counters are read,
            so that reading many ports does not blur their rates. ``hw_counters`` can be as old as
            their ``lifespan`` (10 ms by default).
        monotonic_ns: For the pace of looking for changes.
    """

    parser = (COLLECTOR.name, COLLECTOR.version)

    def __init__(
        self,
        root: Path,
        host: str,
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.root = root
        self.host = host
        self.messages: list[str] = []
        self.rejected: dict[str, Reject] = {}
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._ports: dict[_Key, _LivePort] = {}
        self._fresh: set[_Key] = set()  # opened by the last scan
        self._parents: list[Path] = []
        self._list: list[list[str]] = []
        self._seen: list[dict[str, Any]] = []
        self._done: list[Block] = []
        # PCI address and port -> node GUID and link, of every port that was ever here.
        self._known: dict[_Key, tuple[str | None, str]] = {}
        self._names: dict[str, str] = {}  # link -> the device's name
        self._away: set[str] = set()
        self.wide: set[str] = set()  # devices once seen to have 64-bit counters
        self._scan_ns = self._watch_ns = monotonic_ns()
        self._whole_ns = self._scan_ns - WHOLE_NS
        self._changed_ns = self._scan_ns
        most = allow_many()
        self._may_hold = most - min(SPARE_FILES, most // 2)  # more files than are open now
        # Devices without a GUID, by name, and whether that must be seen twice from now on.
        self._nameless: dict[str, tuple[int, int]] = {}
        self._sampling = False
        self._scan()
        self._sampling = True

    @property
    def ports(self) -> int:
        """Number of ports here now."""
        return len(self._ports)

    def tick(self) -> None:
        """Read every counter that is due."""
        now = self._monotonic_ns()
        if now - self._watch_ns >= WATCH_NS:
            self._watch_ns = now
            if now - self._scan_ns >= SCAN_NS or self._listed() != self._list:
                self._scan()
        whole = now - self._whole_ns >= WHOLE_NS
        if whole:
            self._whole_ns = now
        look = whole or now - self._changed_ns < STEADY_NS
        ports = self._ports.items()
        lost = [key for key, port in ports if not self._read(port, whole=whole, look=look)]
        if lost:
            self._changed_ns = now
            for key in lost:
                self._drop(key)
            self._scan()
            # What was opened just now is there, however fast it changes again.
            for key in {key for key in lost if key in self._ports} | self._fresh:
                if self._read(self._ports[key], whole=True, look=False):
                    self._ports[key].confirm()

    def _read(self, port: _LivePort, *, whole: bool, look: bool) -> bool:
        """Read one port; false, and nothing held, where its files are not at their paths."""
        files = port.files
        if files.held:
            return self._read_open(port, whole, look)
        try:
            files.open()
            return self._read_open(port, whole, look)
        except OSError:
            return False
        finally:
            files.close()

    def _read_open(self, port: _LivePort, whole: bool, look: bool) -> bool:
        files = port.files
        if whole:
            self._read_rate(port)
        due = len(files.handles) if whole else files.often
        stamp = self._now_ns()
        pread = os.pread
        try:
            values = [pread(handle, VALUE_BYTES, 0) for handle in files.handles[:due]]
        except OSError:
            try:
                values = self._read_each(port, due)
            except _GoneError:
                port.confirm()  # they were there as long as the driver answered
                return False
        if look and files.look() != files.sign:
            return False
        if values:
            block = port.block
            block.stamps.append(stamp)
            block.rates.append(port.rate_gbps)
            block.values.append(values)
        if look:
            port.confirm()
        return True

    def _read_each(self, port: _LivePort, due: int) -> list[bytes]:
        """One by one, after one of them failed; what the driver never gives is given up."""
        files = port.files
        values: list[bytes] = []
        dead: list[int] = []
        for index, handle in enumerate(files.handles[:due]):
            try:
                values.append(os.pread(handle, VALUE_BYTES, 0))
            except OSError as error:
                if error.errno in _GONE:
                    raise _GoneError from error
                self._reject(files, files.names[index], error)
                if error.errno in _NEVER:
                    dead.append(index)
                else:
                    values.append(b"")  # busy now, perhaps not at the next tick
        if dead:
            for index in reversed(dead):
                files.failed.add(files.names.pop(index))
                os.close(files.handles.pop(index))
            files.count_often()
            self._begin_block(port)
        return values

    def _read_rate(self, port: _LivePort) -> None:
        handle = port.files.rate_handle
        if handle is None:
            return
        try:
            text = os.pread(handle, 64, 0)
        except OSError:
            text = b""
        if text != port.rate_text:
            port.rate_text = text
            port.rate_gbps = parse_rate(text.decode("utf-8", "replace"))[0]

    def take(self) -> SysfsReadings:
        """What was read since the last call; holds nothing of it afterwards."""
        seen, blocks = self._seen, self._done
        for port in self._ports.values():
            if port.sure < len(port.block.stamps) and port.files.look() != port.files.sign:
                port.drop_doubtful()
                self._changed_ns = self._monotonic_ns()
            blocks.append(port.block)
            self._begin_block(port, keep=False)
        self._seen, self._done = [], []
        return SysfsReadings(self, seen, blocks)

    def close(self) -> None:
        """Close the files."""
        for port in self._ports.values():
            port.files.close()

    def _begin_block(self, port: _LivePort, *, keep: bool = True) -> None:
        if keep and port.block.stamps:
            if port.files.look() != port.files.sign:
                port.drop_doubtful()
            self._done.append(port.block)
        port.block = Block(about=port.about, names=tuple(port.files.names))
        port.sure = 0

    def _drop(self, key: tuple[str, int]) -> None:
        port = self._ports.pop(key)
        port.drop_doubtful()
        if port.block.stamps:
            self._done.append(port.block)
        self._may_hold += port.files.held
        port.files.close()

    def _reject(self, files: _Files, name: tuple[str, str], error: OSError) -> None:
        place = f"{files.folder.name}/ports/{files.number}/{name[0]}/{name[1]}"
        self.rejected.setdefault(place, unreadable(place, error))

    def _scan(self) -> None:
        """Find devices that came, went or changed; try again what could not be read."""
        self._scan_ns = self._monotonic_ns()
        stamp = self._now_ns()
        self._fresh = set()
        folders = device_folders(self.root)
        places = {folder.parent for folder in folders}
        self._parents = sorted(places or {self.root, self.root / "class" / "infiniband"})
        self._list = self._listed()
        names = {folder.name for folder in folders}
        here: set[_Key] = set()
        for folder in folders:
            device = _identity(folder)
            ports = {(folder.name, port.number): port for port in describe_ports(folder)}
            if device is None or _identity(folder) != device:
                self._list = []  # it went while it was described: look again at once
                continue
            if self._nameless.get(folder.name) != device and self._is_nameless(ports.values()):
                self._nameless[folder.name] = device  # perhaps it is going: see it twice
                self._list = []
                continue
            for key, port in ports.items():
                self._meet(key, folder, self._about(port, names), stamp)
            if _identity(folder) != device:
                self._list = []  # what was opened may be another's
                self._fresh -= ports.keys()
                continue
            here |= ports.keys()
        for key in [key for key in self._ports if key not in here]:
            self._drop(key)
        for link in [link for link, name in self._names.items() if name not in names]:
            if link not in self._away:
                self._away.add(link)
                self.messages.append(f"{self._names[link]} is gone: {link}")

    def _is_nameless(self, ports: Iterable[Port]) -> bool:
        """Whether a device that came while we sample has no GUID and is not known by place."""
        return self._sampling and any(
            port.attributes.get("node_guid") is None and _place(port) not in self._known
            for port in ports
        )

    def _listed(self) -> list[list[str]]:
        return [entries(parent) for parent in self._parents]

    def _meet(self, key: _Key, folder: Path, about: dict[str, Any], stamp: int) -> None:
        old = self._ports.get(key)
        changed = old is None or old.about != about
        if changed:
            self._seen.append({**about, "ts": stamp})
        if old is not None:
            same = old.files.folders == _folders(folder, key[1])
            same = same and old.files.look() == old.files.sign
            if same:
                old.confirm()
            if same and not changed and not self._retries(old):
                return
            self._drop(key)
        files = self._open(folder, key[1])
        block = Block(about=about, names=tuple(files.names))
        self._ports[key] = _LivePort(
            about=about, files=files, block=block, rate_gbps=about["rate_gbps"]
        )
        self._fresh.add(key)

    def _open(self, folder: Path, number: int) -> _Files:
        """Open the counters of a port; those that cannot be are rejected and tried again."""
        files = _Files(folder=folder, number=number)
        here = folder / "ports" / str(number)
        files.folders = _folders(folder, number)
        files.sign = files.look()
        names = sorted(counter_files(folder, number), key=lambda at: not has_column(at[1]))
        for kind, name in names:
            try:
                files.handles.append(_open(here / kind / name))
                files.names.append((kind, name))
            except OSError as error:
                files.failed.add((kind, name))
                self._reject(files, (kind, name), error)
        files.count_often()
        with suppress(OSError):
            files.rate_handle = _open(here / "rate")
        count = len(files.handles) + 1
        if count <= self._may_hold:
            files.held = count
            self._may_hold -= count
        else:
            files.close()
        return files

    def _retries(self, port: _LivePort) -> bool:
        """Whether a counter that was given up can be read now."""
        for kind, name in port.files.failed:
            path = port.files.folder / "ports" / str(port.files.number) / kind / name
            try:
                handle = _open(path)
            except OSError:
                continue
            try:
                os.pread(handle, VALUE_BYTES, 0)
            except OSError:
                continue
            finally:
                os.close(handle)
            return True
        return False

    def _about(self, port: Port, names: set[str]) -> dict[str, Any]:
        """The row of ``ports``; a port that was here before keeps its link.

        Args:
            port: As described.
            names: Devices that are here now.
        """
        about, _ = port_rows(port, False, self.host, "unknown", None)
        place = _place(port)
        if about["node_guid"] is None and place in self._known:
            about["node_guid"], about["link"] = self._known[place]
        link: str = about["link"]
        self._known[place] = (about["node_guid"], link)
        before = self._names.get(link, port.device)
        if before != port.device and before not in names:
            self.messages.append(f"{before} is {port.device} now: {link}")
        elif link in self._away:
            self.messages.append(f"{port.device} is back: {link}")
        self._away.discard(link)
        self._names[link] = port.device
        return about


def _place(port: Port) -> tuple[str, int]:
    """Where a port is, whatever its device is called now, if its PCI address is known."""
    return port.pci or f"name {port.device}", port.number


def _identity(device: Path) -> tuple[int, int] | None:
    """What tells a device's folder from another of its name; None where there is none."""
    try:
        status = device.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _folders(device: Path, number: int) -> list[str]:
    """Where a port's counters are, or the port itself where it has none."""
    here = device / "ports" / str(number)
    found = [str(path) for kind in COUNTER_FOLDERS if (path := here / kind).is_dir()]
    return found or [str(here)]


def _open(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    return handle

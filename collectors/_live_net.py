"""Samples Ethernet interfaces of a host without RDMA devices.

``ethtool -S`` where it is installed and the driver has statistics: it counts RDMA traffic and PFC
pauses, which the kernel's own counters do not. Else ``/proc/net/dev``, else
``/sys/class/net/<interface>/statistics``. An interface keeps the source it began with: their byte
counters differ, and a rate over two of them would be none.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xtune.collectors._base import Context, Reject, RowBuffer, Rows
from xtune.collectors._ethtool import counters, statistics
from xtune.collectors._ib import link_id
from xtune.collectors._ib_sysfs_tree import entries, pci_address, read_file
from xtune.collectors.ethtool import COLLECTOR

RESCAN_NS = 2_000_000_000
ETHTOOL_TIMEOUT_S = 2.0
#: What is no port of a host, where no ``device`` link tells.
_VIRTUAL = re.compile(
    r"lo|(veth|docker|br-|virbr|cni|flannel|cali|cilium|lxc|tun|tap|dummy|ifb|sit|gre|gretap|erspan"
    r"|ip6|tunl|wg|vxlan|bond|team|nlmon|kube|ovs).*"
)
#: Columns of ``/proc/net/dev`` (Linux net/core/net-procfs.c) by what sysfs calls them.
_PROC = (
    *("rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo_errors", "rx_frame_errors"),
    *("rx_compressed", "multicast", "tx_bytes", "tx_packets", "tx_errors", "tx_dropped"),
    *("tx_fifo_errors", "collisions", "tx_carrier_errors", "tx_compressed"),
)

_Place = tuple[str, ...]

#: Runs a command and gives what it prints; None where it cannot be run or fails.
Runner = Callable[[Sequence[str]], str | None]


def run_command(words: Sequence[str]) -> str | None:
    """The standard output of a command; None where it is absent, fails or hangs."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ETHTOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(slots=True)
class _Interface:
    """One interface and where its counters come from."""

    about: dict[str, Any]
    by_ethtool: bool


@dataclass(frozen=True, slots=True)
class NetReadings:
    """Rows read, to be made batches of."""

    seen: list[dict[str, Any]]
    counted: list[dict[str, Any]]

    def rows(self, context: Context) -> Iterator[Rows]:
        """Rows of ``ports`` and ``link_counters``."""
        for table, rows in (("ports", self.seen), ("link_counters", self.counted)):
            buffer = RowBuffer(table, context)
            for row in rows:
                buffer.add(row)
            yield from buffer.flush()


class NetSampler:
    """Reads every physical interface at each :meth:`tick`.

    Args:
        root: Root of the sysfs tree.
        procfs: Root of the proc tree, None without one.
        host: This host's name.
        runner: Runs ``ethtool``; None where it must not be asked, since ``root`` is not this
            machine's.
        now_ns: Nanoseconds since the epoch; stamps each interface as it is read.
        monotonic_ns: For the pace of looking for changes.
    """

    parser = (COLLECTOR.name, COLLECTOR.version)

    def __init__(
        self,
        root: Path,
        procfs: Path | None,
        host: str,
        runner: Runner | None,
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.host = host
        self.messages: list[str] = []
        self.rejected: dict[str, Reject] = {}
        self._net = root / "class" / "net"
        self._proc = None if procfs is None else procfs / "net" / "dev"
        self._runner = runner
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._interfaces: dict[str, _Interface] = {}
        # Place -> link and the latest name there, of all interfaces that were ever here.
        self._links: dict[_Place, str] = {}
        self._names_at: dict[_Place, str] = {}
        self._seen: list[dict[str, Any]] = []
        self._counted: list[dict[str, Any]] = []
        self._scan_ns = 0
        self._scan()

    @property
    def ports(self) -> int:
        """Number of interfaces here now."""
        return len(self._interfaces)

    def tick(self) -> None:
        """Read every interface once."""
        if self._monotonic_ns() - self._scan_ns >= RESCAN_NS:
            self._scan()
        all_read_ns = self._now_ns()
        proc = self._proc_counters()
        for name, interface in self._interfaces.items():
            stamp = self._now_ns()
            if interface.by_ethtool:
                found = self._ethtool(name)
            elif name in proc:
                stamp, found = all_read_ns, proc[name]
            else:
                found = self._sysfs_counters(name)
            if not found:
                self.rejected.setdefault(name, Reject(name, "its counters cannot be read"))
                continue
            about = interface.about
            same = {key: about[key] for key in ("link", "host", "device", "port", "rate_gbps")}
            self._counted.append({**counters(found), **same, "ts": stamp})

    def take(self) -> NetReadings:
        """What was read since the last call."""
        taken = NetReadings(self._seen, self._counted)
        self._seen, self._counted = [], []
        return taken

    def close(self) -> None:
        """Nothing stays open."""

    def _scan(self) -> None:
        self._scan_ns = self._monotonic_ns()
        stamp = self._now_ns()
        names = self._names()
        for name in [name for name in self._interfaces if name not in names]:
            self.messages.append(f"{name} is gone: {self._interfaces.pop(name).about['link']}")
        for name in names:
            about = self._about(name, names)
            old = self._interfaces.get(name)
            if old is None:
                by_ethtool = bool(self._ethtool(name))
                self._interfaces[name] = _Interface(about=about, by_ethtool=by_ethtool)
            elif old.about == about:
                continue
            else:
                old.about = about
            self._seen.append({**about, "ts": stamp})

    def _names(self) -> list[str]:
        """Interfaces that are ports of the host."""
        here = entries(self._net)
        physical = [name for name in here if (self._net / name / "device").exists()]
        if physical:
            return physical
        return [n for n in here or sorted(self._proc_counters()) if not _VIRTUAL.fullmatch(n)]

    def _place(self, name: str) -> _Place:
        """Where an interface is, whatever it is called.

        Several may share a PCI function: an adapter's ports, representors of virtual functions.
        """
        folder = self._net / name
        pci = pci_address(folder)
        if pci is None:
            return (name,)
        return pci, _text(folder / "dev_port"), _text(folder / "phys_port_name")

    def _link(self, name: str, names: Sequence[str]) -> str:
        """The link of an interface: that of its place, also under another name."""
        place = self._place(name)
        before = self._names_at.get(place, name)
        if before != name and before in names and self._place(before) == place:
            place = (*place, name)  # nothing else tells the two apart
        self._names_at[place] = name
        if place not in self._links:
            link = link_id(None, self.host, name, 1, self.host)
            if link in self._links.values():  # of one that was renamed
                link = link_id(None, self.host, f"{name}@{place[0]}", 1, self.host)
            self._links[place] = link
        return self._links[place]

    def _about(self, name: str, names: Sequence[str]) -> dict[str, Any]:
        folder = self._net / name
        speed = _text(folder / "speed")
        return {
            "host": self.host,
            "device": name,
            "netdev": name,
            "port": 1,
            "link": self._link(name, names),
            "pci": pci_address(folder),
            "link_layer": "Ethernet",
            "rate_gbps": int(speed) / 1000 if speed.isdigit() and int(speed) else None,
            "state": _text(folder / "operstate").upper() or None,
        }

    def _ethtool(self, name: str) -> dict[str, int]:
        text = self._runner(["ethtool", "-S", name]) if self._runner else None
        return statistics(text) if text else {}

    def _proc_counters(self) -> dict[str, dict[str, int]]:
        if self._proc is None:
            return {}
        try:
            lines = self._proc.read_text("ascii", "replace").splitlines()
        except OSError:
            return {}
        found = {}
        for line in lines:
            name, colon, rest = line.partition(":")
            cells = rest.split()
            if colon and len(cells) == len(_PROC) and all(c.isdigit() for c in cells):
                found[name.strip()] = dict(zip(_PROC, map(int, cells), strict=True))
        return found

    def _sysfs_counters(self, name: str) -> dict[str, int]:
        folder = self._net / name / "statistics"
        texts = {counter: _text(folder / counter) for counter in entries(folder)}
        return statistics("\n".join(f"{counter}: {text}" for counter, text in texts.items()))


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("ascii", "replace").strip()
    except OSError:
        return ""

"""InfiniBand and RoCE port counters from a sysfs tree: ``/sys``, a copy of it, or one device.

What it assumes: counters are 4-octet words and packets as the kernel gives them; a width per
counter decides what is saturated. What it cannot see: the tick of ``port_xmit_wait`` (sysfs does
not say it), and the time of a copied tree (null unless ``--time-from``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._ib import (
    WORD_BYTES,
    family_of_hca,
    guid,
    has_counters,
    is_wide,
    link_id,
    parse_rate,
    settle,
)
from xtune.collectors._ib_sysfs_tree import (
    Port,
    device_folders,
    entries,
    read_ports,
    search_devices,
)
from xtune.collectors._ib_time import fallback_time
from xtune.collectors._rdma_drivers import aliased, is_renamed, traffic
from xtune.tables import COUNTERS

#: Names under ``counters_ext/`` (kernels before 4.5) and what they are called since.
_EXTENDED = {
    "port_xmit_data_64": "port_xmit_data",
    "port_rcv_data_64": "port_rcv_data",
    "port_xmit_packets_64": "port_xmit_packets",
    "port_rcv_packets_64": "port_rcv_packets",
    "port_unicast_xmit_packets": "unicast_xmit_packets",
    "port_unicast_rcv_packets": "unicast_rcv_packets",
    "port_multicast_xmit_packets": "multicast_xmit_packets",
    "port_multicast_rcv_packets": "multicast_rcv_packets",
}


_Value = TypeVar("_Value")


def has_column(name: str) -> bool:
    """Whether a file's counter, by whatever name its driver has for it, fills a column."""
    return name in COUNTERS or name in _EXTENDED or is_renamed(name)


def merged(
    counters: Mapping[str, _Value],
    hw_counters: Mapping[str, _Value],
    counters_ext: Mapping[str, _Value],
    wide: bool,
) -> tuple[dict[str, _Value], bool, int]:
    """Counters by kernel name from the three directories, and how to read them.

    Returns:
        The counters, whether they are the 64-bit set, and bytes of a unit of the data counters.

    The extended set stands in for a 32-bit one; beside a 64-bit one it is kept under its own
    names, since two reads of one counter need not agree.

    Args:
        counters: Name -> value, or whatever stands for it, such as a column of values.
        hw_counters: The same of ``hw_counters/``.
        counters_ext: The same of ``counters_ext/``.
        wide: Whether ``counters/`` is the 64-bit set.
    """
    values = {**aliased(hw_counters), **counters, **hw_counters}
    extended = [name for name in counters_ext if name in _EXTENDED]
    takes_over = not wide and bool(extended)
    for name, value in counters_ext.items():
        if takes_over and name in _EXTENDED:
            values[_EXTENDED[name]] = value
        else:
            values[name] = value
    in_bytes = traffic(hw_counters, values)
    if in_bytes:
        return values | in_bytes, True, 1
    return values, wide or takes_over, WORD_BYTES


def port_rows(
    port: Port, wide: bool, host: str | None, unknown: str, ts: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows for ``ports`` and ``link_counters`` of one port; also for live sampling."""
    attributes = port.attributes
    node = guid(attributes.get("node_guid"))
    link_layer = attributes.get("link_layer")
    gid = attributes.get("gid", "")
    rate, width = parse_rate(attributes.get("rate", ""))
    same = {
        "ts": ts,
        "host": host,
        "device": port.device,
        "port": port.number,
        "node_guid": node,
        "link": link_id(node, host, port.device, port.number, unknown),
        "rate_gbps": rate,
    }
    seen = {
        **same,
        # The second half of an InfiniBand GID is the port's GUID; of a RoCE GID it is not.
        "port_guid": guid(":".join(gid.split(":")[-4:])) if link_layer == "InfiniBand" else None,
        "pci": port.pci,
        "netdev": port.netdev,
        "node_description": attributes.get("node_desc"),
        "width": width,
        "link_layer": link_layer,
        "device_family": family_of_hca(attributes.get("hca_type")),
        "state": attributes.get("state", "").rpartition(":")[2].strip() or None,
    }
    values, sixty_four, unit = merged(port.counters, port.hw_counters, port.counters_ext, wide)
    return seen, {**same, **settle(values, wide=sixty_four, unit=unit)}


def _tree_id(ports: list[Port]) -> str:
    """``unknown-<hash>`` of what was read, for trees that name no host."""
    digest = hashlib.sha256()
    for port in ports:
        for part in (
            {"device": port.device, "port": port.number},
            port.attributes,
            port.counters,
            port.hw_counters,
            port.counters_ext,
        ):
            digest.update(repr(sorted(part.items())).encode())
    return f"unknown-{digest.hexdigest()[:12]}"


def _items(folders: list[Path], context: Context, ts: int | None) -> Iterator[Item]:
    host = context.host.lower() if context.host else None
    ports: list[Port] = []
    for folder in folders:
        for found in read_ports(folder):
            if isinstance(found, Reject):
                yield found
            else:
                ports.append(found)
    wide = {p.device: False for p in ports}
    for port in ports:
        wide[port.device] |= is_wide(port.counters)
    unknown = _tree_id(ports)
    if host is None and any(guid(port.attributes.get("node_guid")) is None for port in ports):
        yield Note(f"no host and no GUID: links are {unknown}/<device>/<port> (--host names it)")
    seen, counted = RowBuffer("ports", context), RowBuffer("link_counters", context)
    for port in ports:
        about, row = port_rows(port, wide[port.device], host, unknown, ts)
        seen.add(about)
        if has_counters(row):
            counted.add(row)
    yield from seen.flush()
    yield from counted.flush()


class IbSysfs(Collector):
    """Claims a whole folder: the tree is one input."""

    name = "ib_sysfs"
    version = 2
    title = "InfiniBand/RoCE counters of a sysfs tree (/sys, a copy, one device)"
    produce = "cp -rL /sys/class/infiniband DIR on each host; live: xtune collect without a path"
    gives = "counters, hw_counters and counters_ext of each port, its rate, state and GUIDs"
    lacks = "time and host of a copy, the wait tick, whatever a switch counts"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of a folder that is a device, holds devices, or is a ``/sys``."""
        return 0.95 if path.is_dir() and device_folders(path) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield a row of ``ports`` per port, and of ``link_counters`` where it has counters.

        A device without any counter (Omni-Path on old kernels) has a row of ``ports`` only.
        """
        folders = search_devices(source.path)
        if not folders:
            yield Reject(
                source.name,
                "no InfiniBand device in this folder",
                "give the folder that holds <device>/ports/<n>/counters",
            )
            return
        mtime = _newest_mtime(folders) if context.time_from == "mtime" else None
        ts = fallback_time(source, context, mtime)
        if ts is None:
            yield Note("sysfs snapshot without a time: ts is null (--time-from says otherwise)")
        trees = sorted({folder.parent for folder in folders})
        for tree in trees:  # several only where a folder above them was forced by --kind
            inside = [folder for folder in folders if folder.parent == tree]
            yield from _items(inside, context, ts)


def _newest_mtime(folders: list[Path]) -> int | None:
    """Newest modification time among the counters, which were copied last."""
    times = []
    for folder in folders:
        for port in entries(folder / "ports"):
            for kind in ("counters", "hw_counters", "counters_ext"):
                here = folder / "ports" / port / kind
                for name in entries(here):
                    try:
                        times.append((here / name).stat().st_mtime_ns)
                    except OSError:
                        continue
    return max(times, default=None)


COLLECTOR = IbSysfs()

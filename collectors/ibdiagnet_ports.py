"""ibdiagnet's ``.pm`` and ``.cables``: counters, and cable modules, in a block for each port.

What it assumes: values of ``.pm`` are hexadecimal, each with the width of its own field. A block
names the port's GUID; a switch's ports have that of their node, and so have the adapters of
today. When it lies: for a second port of an adapter the node's GUID is another one, so
``node_guid`` is null there and the link is known by the port's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
)
from xtune.collectors._cables import readings
from xtune.collectors._ib import family_of, guid, has_counters
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import fallback_time, parse_utc_stamp
from xtune.collectors._ibdiagnet_csv import NOT_COUNTERS, is_sentinel, number
from xtune.collectors._pma_fields import settle_fields
from xtune.collectors._textlines import Lines
from xtune.collectors._values import text

_BLOCK = re.compile(
    r"Port=(\d{1,3}) Lid=(?:0x)?[0-9a-fA-F]+ GUID=(0x[0-9a-fA-F]{1,16})"
    r"(?: Device=(\d{1,6}))?(?: Port Name=(.*))?"
)
_NODE = re.compile(r"/N([0-9a-f]{16})/")
_RULE = re.compile(r"-{10,}")
_COUNTER = re.compile(r"([A-Za-z][A-Za-z0-9_]{1,63})=(\S{1,32})")
_VALUE = re.compile(r"([A-Za-z][^:]{0,63}):\s*(.*)")
#: Names of ``.pm`` that are not the kernel's, once ``_extended`` and ``_counter`` are off.
_NAMES = {
    "link_down": "link_downed",
    "port_xmit_discard": "port_xmit_discards",
    "excessive_buffer_errors": "excessive_buffer_overrun_errors",
    "vl15_dropped": "VL15_dropped",
}
_SWITCHES = ("Quantum", "Switch", "InfiniScale")
_LIMIT = 512


def counter_name(name: str) -> tuple[str, bool]:
    """The kernel's name of a counter of ``.pm``, and whether it is a 64-bit field."""
    wide = name.endswith("_extended")
    base = name.removesuffix("_extended").removesuffix("_counter")
    base = base.replace("_pkts", "_packets")
    base = re.sub(r"^port_(unicast|multicast)_", r"\1_", base)
    return _NAMES.get(base, base), wide


class _Block:
    """One port's part of a file."""

    def __init__(self, match: re.Match[str], place: str) -> None:
        self.place = place
        self.port = int(match[1])
        self.guid = guid(match[2])
        self.family = family_of(int(match[3])) if match[3] else None
        self.name = (match[4] or "").strip()
        node = _NODE.search(self.name)
        is_switch = (self.family or "").startswith(_SWITCHES) or "/U1/P" in self.name
        self.node = guid(node[1]) if node else self.guid if is_switch else None
        self.counters: dict[str, str] = {}
        self.values: dict[str, str] = {}

    def counted(self) -> tuple[dict[str, Any], list[str]]:
        """The counter part of a row, and what is no counter."""
        values: dict[str, int] = {}
        wide: set[str] = set()
        bad = []
        for field, cell in self.counters.items():
            if field in NOT_COUNTERS:
                continue
            value = number(cell)
            name, extended = counter_name(field)
            if value is None:
                if not is_sentinel(cell):
                    bad.append(f"{field}={cell}")
            elif extended or name not in wide:
                values[name] = value
                wide |= {name} if extended else set()
        return settle_fields(values, wide), bad


class IbdiagnetPorts(Collector):
    """Holds one block at a time."""

    name = "ibdiagnet_ports"
    title = "ibdiagnet .pm and .cables: counters and cable modules by port"
    produce = "ibdiagnet --get_cable_info; files /var/tmp/ibdiagnet2/ibdiagnet2.{pm,cables}"
    gives = "all counters of all ports of a fabric; module temperature, optical power, bias"
    lacks = "the wait tick and the links, which are in ibdiagnet2.db_csv beside"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of a block of a port between its rules."""
        plain = head.decode("utf-8", "replace")
        found = re.search(r"^-{20,}\s*\nPort=\d+ Lid=\S+ GUID=0x[0-9a-fA-F]+", plain, re.M)
        return 0.97 if found else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports``, and ``link_counters`` or ``link_signal``."""
        lines = Lines(source)
        buffers = {t: RowBuffer(t, context) for t in ("ports", "link_counters", "link_signal")}
        fallback = fallback_time(source, context)
        ts: int | None = None
        block: _Block | None = None
        blocks = by_port_guid = 0
        for line in lines:
            plain = line.text.strip()
            if not plain or _RULE.fullmatch(plain):
                continue
            if plain.startswith("#"):
                if "Running timestamp" in plain or "File created at" in plain:
                    ts = ts if ts is not None else parse_utc_stamp(plain)
                continue
            if not line.whole:
                yield Reject(line.place, "line without an end: it may be cut")
                continue
            match = _BLOCK.fullmatch(plain)
            if match:
                if block is not None:
                    yield from _rows(block, ts if ts is not None else fallback, buffers)
                block = _Block(match, line.place)
                blocks += 1
                by_port_guid += block.node is None
                continue
            counter, value = _COUNTER.fullmatch(plain), _VALUE.fullmatch(plain)
            into = None if block is None else block.counters if counter else block.values
            found = counter or value
            if into is None or found is None or len(into) >= _LIMIT:
                yield Reject(line.place, f"not a line of a port: {clip(plain)!r}")
            else:
                into[found[1]] = found[2]
        if block is not None:
            yield from _rows(block, ts if ts is not None else fallback, buffers)
        for buffer in buffers.values():
            yield from buffer.flush()
        if ts is None and fallback is None and blocks:
            yield Note("no run time in the file: ts is null (--time-from says otherwise)")
        if by_port_guid:
            yield Note("ports of adapters, known by their own GUID, not the node's", by_port_guid)
        if not blocks and not lines.rejects:
            yield Reject("file", "no block of a port in it", self.produce)
        yield from lines.rejects


def _rows(block: _Block, ts: int | None, buffers: dict[str, RowBuffer]) -> Iterator[Item]:
    if block.guid is None:
        yield Reject(block.place, "a port without a GUID")
        return
    same = {"ts": ts, "link": f"{block.node or block.guid}/{block.port}"}
    buffers["ports"].add(
        {
            **same,
            "port": block.port,
            "node_guid": block.node,
            "port_guid": block.guid,
            "link_layer": "InfiniBand",
            "device_family": block.family,
            "extra": {"port_name": text(block.name) or ""} if block.name else None,
        }
    )
    row, bad = block.counted()
    if has_counters(row):
        buffers["link_counters"].add({**row, **same, "port": block.port, "node_guid": block.node})
    if bad:
        yield Reject(block.place, f"not a counter: {clip(', '.join(bad))}", "others count")
    if block.values:
        for reading in readings(block.values, same):
            buffers["link_signal"].add(reading)
    for buffer in buffers.values():
        if buffer.full:
            yield from buffer.flush()


COLLECTOR = IbdiagnetPorts()

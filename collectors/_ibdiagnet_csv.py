"""Sections of an ibdiagnet ``db_csv`` file: ``START_X``, header row, rows, ``END_X``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xtune.collectors._base import Reject, Source
from xtune.collectors._ib import (
    LANE_GBPS,
    PORT_STATES,
    U64_MAX,
    family_of,
    guid,
    rate_of,
    xmit_wait_tick,
)
from xtune.collectors._ib_text import clip, read_lines
from xtune.collectors._textlines import Rejects

#: In the counter sections, and in ``.pm``, but no counters: rates of the tool's own.
NOT_COUNTERS = frozenset({"retransmission_per_sec", "max_retransmission_rate"})
_SENTINELS = frozenset({"", "-1", "na", "n/a", "0xfffffffffffffffe"})

#: LinkSpeedActv: the IBA bits, and from bit 8 on the extended ones, of which the highest counts.
_SPEED_BITS = {0: "SDR", 1: "DDR", 2: "QDR", 8: "FDR", 9: "EDR", 10: "HDR", 11: "NDR", 12: "XDR"}
_WIDTH_BITS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}

PortKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a section by header name, with its line number."""

    section: str
    line: int
    cells: Mapping[str, str]


@dataclass(slots=True)
class About:
    """What the fabric's sections say of a port."""

    port_guid: str | None = None
    width: str | None = None
    rate_gbps: float | None = None
    state: str | None = None
    tick: int | None = None


@dataclass(slots=True)
class Node:
    """What section NODES says of a node."""

    description: str | None
    kind: int | None
    family: str | None


@dataclass(slots=True)
class Fabric:
    """Nodes and ports of one file, read before its counters."""

    started_ns: int | None = None
    arguments: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    ports: dict[PortKey, About] = field(default_factory=dict)

    def tick(self, node: str, port: int) -> float | None:
        """Byte times on the whole port per wait tick, ``None`` where the rule is unknown."""
        about, family = self.ports.get((node, port)), self.family(node)
        if about is None:
            return None
        lanes = int(about.width[:-1]) if about.width else None
        return xmit_wait_tick(family, about.tick, lanes)

    def family(self, node: str) -> str | None:
        """Device family of a node."""
        known = self.nodes.get(node)
        return known.family if known else None


def is_sentinel(cell: str) -> bool:
    """Whether the tool says with this that it has no value."""
    return cell.strip().lower() in _SENTINELS


def number(text: str | None) -> int | None:
    """A cell as a number, decimal or hex; ``None`` for the tool's sentinels and anything else."""
    plain = (text or "").strip()
    if is_sentinel(plain):
        return None
    if re.fullmatch(r"\d{1,20}", plain, re.ASCII):
        value = int(plain)
    elif re.fullmatch(r"0x[0-9a-fA-F]{1,16}", plain):
        value = int(plain, 16)
    else:
        return None
    return value if value <= U64_MAX else None


def read_sections(source: Source, damage: Rejects) -> Iterator[Record]:
    """Yield the rows of every section, in the order of the file.

    Args:
        source: The file, plain or gzip.
        damage: Gets a reject for a row that does not fit its header, a section without an end,
            and bytes that end early.
    """
    section = ""
    header: list[str] = []
    line = 0
    for line, text in read_lines(source, damage):
        if text.startswith("START_"):
            if section:
                damage.append(Reject(f"line {line}", f"section {section} has no end"))
            section, header = text[6:].strip(), []
        elif text.startswith("END_"):
            section = ""
        elif section and text.strip():
            try:
                (cells,) = csv.reader([text])
            except (csv.Error, ValueError):
                damage.append(Reject(f"line {line}", f"not CSV: {clip(text)!r}"))
                continue
            if not header:
                header = [cell.strip() for cell in cells]
            elif len(cells) != len(header):
                reason = f"{len(cells)} cells where {section} has {len(header)}"
                damage.append(Reject(f"line {line}", reason, "the row is left out"))
            else:
                yield Record(section, line, dict(zip(header, cells, strict=True)))
    if section:
        reason = f"the file ends inside section {section}"
        damage.append(Reject(f"line {line}", reason, "copy the file again; the rest is kept"))


def port_of(record: Record) -> PortKey | None:
    """Node GUID and port number of a row, whatever that section calls them."""
    cells = record.cells
    node = guid(cells.get("NodeGUID") or cells.get("NodeGuid"))
    port = number(cells.get("PortNumber") or cells.get("PortNum"))
    return None if node is None or port is None or port > 254 else (node, port)


def learn(fabric: Fabric, record: Record) -> None:
    """Take into ``fabric`` what a row says of the run, a node, a port or a tick."""
    cells = record.cells
    if record.section == "NODES":
        node = guid(cells.get("NodeGUID"))
        if node:
            fabric.nodes[node] = Node(
                description=cells.get("NodeDesc", "").strip() or None,
                kind=number(cells.get("NodeType")),
                family=family_of(number(cells.get("DeviceID"))),
            )
        return
    key = port_of(record)
    if key is None:
        return
    if record.section == "PORTS":
        about = fabric.ports.setdefault(key, About())
        about.port_guid = guid(cells.get("PortGuid"))
        about.width = _WIDTH_BITS.get(_code(cells, "LinkWidthActv"))
        about.rate_gbps = rate_of(about.width, speed_name(number(cells.get("LinkSpeedActv"))))
        about.state = PORT_STATES.get(_code(cells, "PortState"))
    elif record.section == "PM_PORT_SAMPLES_CONTROL":
        fabric.ports.setdefault(key, About()).tick = number(cells.get("Tick"))


def _code(cells: Mapping[str, str], name: str) -> int:
    """A cell's number, -1 (which stands for nothing) where it has none."""
    value = number(cells.get(name))
    return -1 if value is None else value


def speed_name(bits: int | None) -> str | None:
    """Speed of LinkSpeedActv: ``NDR`` of 2052, which has the bits of NDR and of QDR."""
    if not bits:
        return None
    name = _SPEED_BITS.get(bits.bit_length() - 1)
    return name if name in LANE_GBPS else None

"""ibnetdiscover: the topology form, and the line form of ``-p``/``--ports``.

Also what writes the same form: ibdiagnet's ``.ibnetdiscover`` and simulated ``.topo`` files.
What it assumes: in the topology form the GUID in ``"H-..."`` is the node's, the one in round
brackets the port's. When it lies: ``-p`` prints port GUIDs only, which for an adapter port need
not be the node's GUID; such ends are marked (``extra``: ``src_guid_is``) and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._ib import family_of, guid, rate_of
from xtune.collectors._ib_text import clip, read_lines
from xtune.collectors._ib_time import fallback_time, parse_local_stamp, parse_utc_stamp
from xtune.collectors._ib_topology import End, Fabric

_NODE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"[SHR]-([0-9a-f]{1,16})"\s*#\s*"(.*)"')
_PORT = re.compile(
    r"\[(\d{1,3})\](?:\(([^)]*)\))*\s+"  # port, then its label and, on an adapter, its GUID
    r'"([SHR])-([0-9a-f]{1,16})"\[(\d{1,3})\](?:\(([0-9a-f]{1,16})\))?\s*#\s*(.*)'
)
_OWN_GUID = re.compile(r"\[\d{1,3}\](?:\([^)]*\))*?\(([0-9a-f]{1,16})\)\s")
_SPEED = re.compile(r"\s(\d{1,2}x)([A-Z]{3}\d*|\?\?\?)\s*$")
_NAME = re.compile(r'"(.*)"')
_DEVICE_ID = re.compile(r"devid=0x([0-9a-f]{1,8})")
_LINE = re.compile(
    r"(CA|SW|RT|\?\?)\s+(\d+)\s+(\d{1,3})\s+0x([0-9a-f]{16})\s+(\d{1,2}x|\?\?)\s+(\S+)"
    r"(?:\s+-\s+(CA|SW|RT|\?\?)\s+(\d+)\s+(\d{1,3})\s+0x([0-9a-f]{16})\s+\(\s'(.*)'\s-\s'(.*)'\s\)"
    r"|\s+(.*?))\s*"
)
_IGNORED = re.compile(r"(vendid|sysimgguid|switchguid|caguid|rtguid)=")


class _Reading:
    """State of one file: the block it is in, what was found, what is unsure."""

    def __init__(self) -> None:
        self.fabric = Fabric()
        self.ports: dict[tuple[str, int], dict[str, Any]] = {}
        self.node: str | None = None
        self.family: str | None = None
        self.families: dict[str, str] = {}
        self.ts: int | None = None
        self.local_stamp = ""
        self.port_guids = 0
        self.understood = 0

    def port(self, node: str | None, number: int, **about: Any) -> None:
        """Note what is known of a port; what was known of it stays."""
        own = about.get("port_guid") if node is None else node
        row = self.ports.setdefault((own or "", number), {})
        row |= {k: v for k, v in {"node_guid": node, **about}.items() if v is not None}

    def block_line(self, line: str) -> str | None:
        """Take a line of the topology form; what is wrong with it, or ``None``."""
        match = _NODE.match(line)
        if match:
            self.node = guid(match[2])
            if self.node is None:
                return "a node with GUID 0"
            self.fabric.node(self.node, match[1] == "Ca", match[3].strip())
            if self.family:
                self.families[self.node] = self.family
            return None
        match = _PORT.match(line)
        if not match:
            return "neither a node nor a port"
        if self.node is None:
            return "a port without its node"
        far, number, far_number = guid(match[4]), int(match[1]), int(match[5])
        speed = _SPEED.search(line)
        if far is None or speed is None:
            return "a port line without far end and speed at its end"
        width = speed[1].upper()
        rate = rate_of(speed[1], speed[2])
        name = _NAME.search(match[7])
        self.fabric.node(far, match[3] == "H", name[1].strip() if name else None)
        own = _OWN_GUID.match(line) if self.fabric.ca.get(self.node) else None
        same = {"width": width, "rate_gbps": rate, "state": "ACTIVE"}
        self.port(self.node, number, port_guid=guid(own[1]) if own else None, **same)
        self.port(far, far_number, port_guid=guid(match[6]), **same)
        return self.fabric.link(End(self.node, number), End(far, far_number), width, rate)

    def port_line(self, match: re.Match[str]) -> str | None:
        """Take a line of the ``-p`` form; what is wrong with it, or ``None``."""
        near_guid = guid(match[4])
        if near_guid is None:
            return "a port with GUID 0"
        number, is_ca = int(match[3]), match[1] == "CA"
        width = None if match[5] == "??" else match[5].upper()
        rate = rate_of(match[5], match[6])
        if match[10] is None:
            # Nothing is plugged in; the width and speed printed are not those of a link.
            name = (match[13] or "").strip().strip("'").strip() or None
            self._seen(near_guid, number, is_ca, name, None, None)
            return None
        far_guid = guid(match[10])
        if far_guid is None:
            return "a far end with GUID 0"
        far_number, far_ca = int(match[9]), match[7] == "CA"
        self._seen(near_guid, number, is_ca, match[11].strip(), width, rate)
        self._seen(far_guid, far_number, far_ca, match[12].strip(), width, rate)
        near, far = End(near_guid, number, is_ca), End(far_guid, far_number, far_ca)
        return self.fabric.link(near, far, width, rate)

    def _seen(
        self, own: str, number: int, ca: bool, name: str | None, width: str | None, rate: Any
    ) -> None:
        self.fabric.node(own, ca, name)
        if ca and (own, number) not in self.ports:
            self.port_guids += 1
        self.port(None if ca else own, number, port_guid=own, width=width, rate_gbps=rate)

    def take(self, line: str) -> str | None:
        """Take any line; what is wrong with it, or ``None``."""
        text = line.strip()
        if text.startswith("#"):
            if "generated" in text and self.ts is None and not self.local_stamp:
                self.local_stamp = text
            if "timestamp" in text:
                self.ts = parse_utc_stamp(text)
            return None
        device = _DEVICE_ID.match(text)
        if device:
            self.node, self.family = None, family_of(int(device[1], 16))
            return None
        if not text or _IGNORED.match(text):
            return None
        match = _LINE.fullmatch(line.rstrip() + " ") or _LINE.fullmatch(line)
        wrong = self.port_line(match) if match else self.block_line(text)
        self.understood += wrong is None
        return wrong


class Ibnetdiscover(Collector):
    """Holds the fabric, which its ports bound, not the file."""

    name = "ibnetdiscover"
    title = "ibnetdiscover topology, blocks or --ports lines"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the head has lines of either form."""
        text = head.decode("utf-8", "replace")
        if re.search(r"^(switchguid|caguid|rtguid)=0x[0-9a-f]+", text, re.M):
            return 0.95
        if any(_LINE.fullmatch(line.rstrip() + " ") for line in text.splitlines()[:200]):
            return 0.95
        return 0.5 if re.search(r'^(Switch|Ca)\s+\d+\s+"[SH]-[0-9a-f]', text, re.M) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports`` and ``topology_links``, each direction once."""
        reading = _Reading()
        damage: list[Reject] = []
        rejected: list[Reject] = []
        last = 0
        for number, line in read_lines(source, damage):
            last = number
            wrong = reading.take(line)
            if wrong:
                rejected.append(Reject(f"line {number}", f"{wrong}: {clip(line)!r}"))
        if rejected and rejected[-1].offset == f"line {last}" and reading.understood:
            cut = rejected.pop()
            rejected.append(
                Reject(cut.offset, f"the file seems cut here: {cut.reason}", "discover again")
            )
        yield from rejected
        yield from damage
        ts = reading.ts
        if ts is None and reading.local_stamp:
            ts = parse_local_stamp(reading.local_stamp, context)
            if ts is None:
                yield Note("time without a zone: ts is null (--tz names the zone)")
        if ts is None:
            ts = fallback_time(source, context)
        if reading.port_guids:
            yield Note("adapter port known by its port GUID only (-p)", reading.port_guids)
        yield from _port_rows(reading, ts, context)
        yield from reading.fabric.rows(ts, context)
        if not reading.understood and not rejected and not damage:
            yield Reject("file", "no node and no port in it", "is it ibnetdiscover's output?")


def _port_rows(reading: _Reading, ts: int | None, context: Context) -> Iterator[Item]:
    buffer = RowBuffer("ports", context)
    for (own, number), about in reading.ports.items():
        if number == 0:
            continue
        row = {
            "ts": ts,
            "port": number,
            "link": f"{own}/{number}",
            "link_layer": "InfiniBand",
            "node_description": reading.fabric.description.get(own),
            "device_family": reading.families.get(own),
            **about,
        }
        buffer.add(row)
        if buffer.full:
            yield from buffer.flush()
    yield from buffer.flush()


COLLECTOR = Ibnetdiscover()

"""perfquery: port counters, the extended set, details and sample control, one block or many.

What it assumes: a block is what follows its header line; the 32-bit and the 64-bit block of one
port are one sample, where the 64-bit values count. Blocks name a LID, not a GUID: the link is by
GUID only where a line before the block says the node's (``smpquery nodeinfo``, ``NodeGuid``).
When it lies: a LID can move to another node between two files, so such links are of one file. A
file that lost the end of its last number reads like one whose last line end was stripped, as
Ansible and ``$(...)`` do, and the latter is taken for true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Note, Reject, Source, Unknown
from xtune.collectors._fabric_counters import (
    CHECKED,
    QP1_DROPPED,
    Gathered,
    counter_name,
    number,
)
from xtune.collectors._fabric_samples import TOOL_MESSAGE, Sample, Samples, named
from xtune.collectors._ib import ALWAYS_64, guid, kernel_name
from xtune.collectors._ib_text import clip
from xtune.collectors._textlines import Line, Lines
from xtune.collectors._time_lines import TimeLines

HEADER = re.compile(
    r"#\s*(Port counters|Port extended counters|PortSamplesControl"
    r"|(?:Sw)?Port\w+(?: with RS-FEC Active)? counters)"
    r"\s*+:\s*+(\S.*?)(?<!\s)\s++port\s++(\d{1,3})\b(.*)"
)
_VALUE = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*):\.*[ \t]*(\S+)\s*")
_CUT = re.compile(r"\s*[A-Z][A-Za-z0-9]{2,}(:[. ]*)?\s*")
_LID = re.compile(r"\bLid (\d{1,5})\b")
_MASK = re.compile(r"\b(CapMask2?): 0x([0-9a-fA-F]{1,8})\b")
_GID = re.compile(r"\bG[iI][dD]:? ([0-9a-fA-F:.]{2,45})")
_NODE_INFO = re.compile(r"#\s*Node info: Lid (\d{1,5})\b")
_NODE_GUID = re.compile(
    r"\b(?:node[ _]?guid|switchguid|caguid)\b[\s=:.\"]{1,40}(0x[0-9a-f]{1,16}|[0-9a-f:]{16,23})\b",
    re.I,
)
_NODE_NAME = re.compile(r'^(?:Switch|Ca)\s+\d+\s+"[SH]-([0-9a-f]{16})"')

_ALL_PORTS = 255
#: Select what is read; not counters.
_SELECTORS = {"PortSelect", "CounterSelect", "CounterSelect2", "OpCode"}
#: Bits of the counters of an attribute (``libibmad/src/fields.c``); 32 where not listed.
_BITS = {
    "PortRcvErrorDetails": 16,
    "PortXmitDiscardDetails": 16,
    "PortVLOpPackets": 16,
    "PortVLXmitWaitCounters": 16,
    "SwPortVLCongestion": 16,
    "PortVLXmitFlowCtlUpdateErrors": 2,
}
_SHORT = re.compile(r"SyncHeaderErrorCounter|UnknownBlockCounter|ErrorDetectionCounterLane\d+")
#: Bits of ClassPortInfo's masks (``iba_types.h``), and the counters a port without them lacks.
_EXT_WIDTH, _XMIT_WAIT, _QP1 = 1 << 9, 1 << 12, 1 << 15
_EXT_ERRORS = 1 << 1
_UNICAST = {n for n in ALWAYS_64 if n.endswith("packets")}
#: The last field of a block: where it stands, the block is whole even without a line end.
_LAST = {"PortXmitWait", "QP1Dropped", "PortLoopingErrors", "PortSwHOQLifetimeLimitDiscards"}


def _lacking(kind: str, masks: str) -> set[str]:
    """Counters that a port with these masks does not have; none where no mask is printed.

    The tool prints 0 for them: ``perfquery.c`` clears PortXmitWait itself, and until 2018 dumped
    all of PortCountersExtended, of which such a port fills in the first part only.
    """
    mask = {name: int(digits, 16) for name, digits in _MASK.findall(masks)}
    first = mask.get("CapMask")
    lacking: set[str] = set()
    if kind == "Port" and first is not None:
        lacking |= set() if first & _XMIT_WAIT else {"port_xmit_wait"}
        lacking |= set() if first & _QP1 else {QP1_DROPPED}
    elif kind == "Port extended":
        lacking |= set() if first is None or first & _EXT_WIDTH else _UNICAST
        if "CapMask2" in mask and not mask["CapMask2"] & _EXT_ERRORS:
            lacking |= {*CHECKED, "port_xmit_wait", QP1_DROPPED}
    return lacking


class _Block:
    """The block that is being read."""

    def __init__(self, match: re.Match[str], node_guid: str | None, line: Line) -> None:
        self.kind = match[1].removesuffix(" counters").removesuffix(" with RS-FEC Active")
        self.place = line.place
        self.port = int(match[3])
        self._lacking = _lacking(self.kind, match[4])
        self.gathered = Gathered()
        self.is_aggregate = self.port == _ALL_PORTS
        self.broken = ""
        self.unknown: list[str] = []
        self.blanks = self.lacked = 0
        lid = _LID.search(match[2])
        self.lid = int(lid[1]) if lid else None
        self.node_guid = node_guid
        gid = _GID.search(match[2])
        self.port_guid: str | None = None
        if gid:
            try:
                self.port_guid = guid(f"{int(IPv6Address(gid[1])) & (2**64 - 1):x}")
            except AddressValueError:
                self.port_guid = None
        # Without a LID the route names the port, as seen from where perfquery ran.
        self.device = f"lid-{self.lid}" if self.lid is not None else clip(match[2], 120)
        if self.port > _ALL_PORTS:
            self.broken = f"there is no port {self.port}"

    def value(self, name: str, text: str) -> None:
        """Take one line of the block."""
        value = number(text)
        if name == "PortSelect" and value == _ALL_PORTS:
            self.is_aggregate = True
        if name in _SELECTORS or (self.kind == "PortSamplesControl" and name != "Tick"):
            return
        if value is None:
            self.blanks += 1
        elif self.kind == "PortSamplesControl":
            self.gathered.details["tick"] = value
        elif self.kind in ("Port", "Port extended"):
            known = counter_name(name)
            if known is None:
                self.unknown.append(name)
                self.gathered.details[kernel_name(name)] = value
            elif value == 0 and known in self._lacking:
                self.lacked += 1
            elif self.kind == "Port":
                self.gathered.narrow[known] = value
            else:
                self.gathered.wide[known] = value
        else:
            bits = 16 if _SHORT.fullmatch(name) else _BITS.get(self.kind, 32)
            self.gathered.detail(kernel_name(name), value, bits)

    def sample(self) -> Sample:
        """What the block says of its port."""
        return Sample(
            key=(self.node_guid or self.device, self.port),
            port=self.port,
            node_guid=self.node_guid,
            guid=self.node_guid,
            device=self.device,
            labels=named({"lid": self.lid, "port_guid": self.port_guid}),
            gathered=self.gathered,
        )


class _Reading:
    """State of one file."""

    def __init__(self, source: Source, context: Context) -> None:
        self.samples = Samples(source, context)
        self.times = TimeLines(context)
        self._block: _Block | None = None
        self._guids: dict[int, str] = {}
        self._named: str | None = None
        self._info_lid: int | None = None
        self.blocks = self._aggregates = self.messages = self._other = self._blanks = 0
        self._lacked = 0

    def take(self, line: Line) -> Iterator[Item]:
        """Take any line."""
        text = line.text
        if not text.strip():
            return
        header = HEADER.fullmatch(text.strip())
        if header:
            yield from self.close()
            self._info_lid = None
            self.blocks += 1
            self._block = _Block(header, self._node_of(header[2]), line)
            return
        if TOOL_MESSAGE.match(text):
            self.messages += 1
            return
        value = _VALUE.fullmatch(text)
        if value and self._block is not None:
            if not line.whole and value[1] not in _LAST:
                yield Reject(line.place, f"the last line seems cut: {clip(text)!r}", "null for it")
                return
            self._block.value(value[1], value[2])
            return
        yield from self._between(line, text, value)

    def _node_of(self, where: str) -> str | None:
        """The node's GUID: a name line counts for the LID of the block that follows it."""
        lid = _LID.search(where)
        if lid is None:
            return None
        if self._named:
            if len(self._guids) > 65535:
                self._guids.clear()
            self._guids[int(lid[1])] = self._named
            self._named = None
        return self._guids.get(int(lid[1]))

    def _between(self, line: Line, text: str, value: re.Match[str] | None) -> Iterator[Item]:
        info = _NODE_INFO.match(text.strip())
        named_by = _NODE_GUID.search(text) or _NODE_NAME.match(text.strip())
        is_time, ts = self.times.take(text)
        if info:
            yield from self.close()
            self._info_lid = int(info[1])
        elif named_by:
            yield from self.close()
            if self._info_lid is not None and (found := guid(named_by[1])):
                self._guids[self._info_lid] = found
            else:
                self._named = guid(named_by[1])
        elif is_time:
            yield from self.close()
            self.samples.ts = ts
        elif value and self._info_lid is not None:
            if value[1] == "Guid" and (found := guid(value[2])):
                self._guids[self._info_lid] = found
        elif value:
            yield Reject(line.place, f"a counter without its header: {clip(text)!r}")
        elif self._block is not None and _CUT.fullmatch(text):
            yield Reject(line.place, f"a counter without its value: {clip(text)!r}", "null for it")
        elif self._block is not None and ":.." in text:
            yield Reject(line.place, f"not a name and a value: {clip(text)!r}", "null for it")
        else:
            self._other += 1

    def close(self) -> Iterator[Item]:
        """End the block that is open, if any."""
        block, self._block = self._block, None
        if block is None:
            return
        self._blanks += block.blanks
        self._lacked += block.lacked
        for name in block.unknown:
            yield Unknown(name)
        if block.broken:
            yield Reject(block.place, block.broken)
        elif block.is_aggregate:
            self._aggregates += 1
        else:
            yield from self.samples.add(block.sample(), block.kind)

    def finish(self) -> Iterator[Item]:
        """Yield the rest, and what to know about the file."""
        yield from self.close()
        yield from self.samples.finish()
        yield from self.times.stamps.notes()
        for text, count in (
            ("sum over all ports (port 255): left out", self._aggregates),
            ("message of the tool between the counters", self.messages),
            ("value that is no number: null", self._blanks),
            ("0 of a counter that the port's CapMask says it lacks: null", self._lacked),
            ("line that is neither a header nor a counter", self._other),
        ):
            if count:
                yield Note(text, count)


class Perfquery(Collector):
    """Streams blocks; holds one sample a port."""

    name = "perfquery"
    title = "perfquery port counters: 32-bit, -x, -l -a, details"
    produce = "for each LID: smpquery nodeinfo LID; perfquery -l -a LID; perfquery -x -l -a LID"
    gives = "all port counters, 64-bit with -x; congestion and error details in extra"
    lacks = "times, links; node GUIDs (only LIDs) without smpquery nodeinfo"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the head has a block's header line; plausible for its errors alone."""
        text = head.decode("utf-8", "replace")
        if HEADER.search(text):
            return 0.95
        return 0.6 if re.search(r"^(\S*/)?perfquery: iberror: ", text, re.M) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``link_counters``, one row a port and sample."""
        lines = Lines(source)
        reading = _Reading(source, context)
        for line in lines:
            yield from reading.take(line)
        yield from reading.finish()
        yield from lines.rejects
        if not reading.blocks and not reading.messages:
            yield Reject("file", "no block of counters in it", "is it perfquery's output?")


COLLECTOR = Perfquery()

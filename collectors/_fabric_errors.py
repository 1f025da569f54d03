"""What ibqueryerrors prints, read line by line.

In ``Errors for`` blocks the GUID of a port line is the port's; that is the node's too where the
block's own header has the same one (a switch, and every node before 2011). In ``Data Counters
for`` blocks it is the node's (ibqueryerrors.c, ``print_results``, ``print_data_cnts``). A counter
below its threshold, a port and a node without errors are not printed at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from xtune.collectors._fabric_counters import (
    DETAIL_BITS,
    DISCARD_DETAILS,
    RCV_DETAILS,
    Gathered,
    counter_name,
    number,
)
from xtune.collectors._ib import (
    ALWAYS_64,
    GROWING,
    U32_MAX,
    guid,
    kernel_name,
    lanes_of,
    rate_of,
)

HEADER = re.compile(
    r'\s*(Errors|Data Counters|Counters) for (?:0x([0-9a-fA-F]{1,16})\s+)?"(.*)"\s*'
)
PORT = re.compile(r"\s*GUID 0x([0-9a-fA-F]{1,16}) port (\d{1,3}|ALL):(.*)")
_COUNTER = re.compile(r"\s*\[\s*([A-Za-z]\w*)\s*==\s*([^\s\]()]+)(?:\s+\(([^)\]]*)\))?\s*\]")
_LINK = re.compile(r"\s*Link info:\s+(\d{1,9})\s+(\d{1,9})\s*\[[^\]]*\]\s*==\((.*)\)==>\s*(.*)")
_FAR = re.compile(r'0x([0-9a-fA-F]{1,16})\s+(\d{1,9})\s+(\d{1,9})\s*\[[^\]]*\]\s*"(.*)"')
_LINK_STATE = re.compile(
    r"\s*+(?:(\d{1,2}X)\s++(\d{1,9}(?:\.\d+)?) Gbps(?: \((\w+)\))?\s*+)?"
    r"(?:(\w++)\s*+/\s*+(\w++))?\s*+"
)
_SUMMARY = re.compile(r"\s*##\s*(?:Summary:\s*)?(\d{1,9}) (nodes|ports|PMA)\b.*")
_THRESHOLD = re.compile(r"\[(\w+) = (\d{1,9})\]")
#: A failed query, on the error stream: the node, its LID, the port.
FAILED = re.compile(r"query failed on (.*), (?:Lid (\d{1,9})\b.*|.*?) port (\d{1,9})\s*$")

#: Speed of a lane in Gb/s as the tools print it (libibmad, ``mad_dump_linkspeedext``).
_SPEEDS = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """What a ``Link info`` line says.

    Attributes:
        lid: Of the near end.
        width, rate_gbps, state: Of the near port; null where it is down.
        guid: Of the far port; an adapter's is not its node's.
        port: Number of the far port.
        name: Node description of the far end.
    """

    lid: int
    width: str | None
    rate_gbps: float | None
    state: str | None
    guid: str | None
    port: int | None
    name: str | None


@dataclass(slots=True)
class PortLine:
    """One port as printed.

    Attributes:
        kind: ``errors`` or ``data``.
        guid: As printed on its line.
        node_guid: The same where that is the node's, else null.
        name: Node description, null where the header is missing.
        port: Port number.
        gathered: Its counters; what was not printed is not in it.
        neighbour: Of ``--report-port``.
        ts: When the line arrived, if it was live.
        unknown: Counters by names that are not known.
    """

    kind: str
    guid: str
    node_guid: str | None
    name: str | None
    port: int
    gathered: Gathered
    neighbour: Neighbour | None = None
    ts: int | None = None
    unknown: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ErrorsReading:
    """State of one output.

    Attributes:
        aggregates: Lines for all ports of a switch, which are no port.
        nodes_checked, ports_checked: As the summary has it, null before that.
        failures: PMA queries that failed, by the summary.
        thresholds: Counter -> value up to which it is not printed.
        summaries: Summaries seen: runs that came to their end.
    """

    aggregates: int = 0
    nodes_checked: int | None = None
    ports_checked: int | None = None
    failures: int = 0
    thresholds: dict[str, int] = field(default_factory=dict)
    summaries: int = 0
    _kind: str = "errors"
    _node: str | None = None
    _name: str | None = None
    _last: PortLine | None = None

    def take(self, text: str, ts: int | None = None) -> Iterator[PortLine | str]:
        """Take any line; yields ports that are over, and what is wrong with the line."""
        header = HEADER.fullmatch(text)
        port = None if header else PORT.fullmatch(text)
        if header or port or text.lstrip().startswith("##"):
            yield from self.close()
        if header:
            self._kind = "errors" if header[1] == "Errors" else "data"
            self._node = guid(header[2])
            self._name = header[3].strip()
        elif port:
            yield from self._port(port, ts)
        elif text.lstrip().startswith("##"):
            self._comment(text)
        elif "Link info:" in text:
            yield from self._link(text)
        else:
            self._node = self._name = None
            yield "not a line of ibqueryerrors"

    def close(self) -> Iterator[PortLine]:
        """Yield the port that may still have had a ``Link info`` line."""
        last, self._last = self._last, None
        if last is not None:
            yield last

    def _comment(self, text: str) -> None:
        self._node = self._name = None
        found = _SUMMARY.fullmatch(text)
        if found and found[2] == "nodes":
            self.nodes_checked = int(found[1])
            self.summaries += 1
        elif found and found[2] == "ports":
            self.ports_checked = int(found[1])
        elif found:
            self.failures += int(found[1])
        elif "Thresholds:" in text:
            self.thresholds = {name: int(value) for name, value in _THRESHOLD.findall(text)}

    def _port(self, match: re.Match[str], ts: int | None) -> Iterator[PortLine | str]:
        own = guid(match[1])
        counters, wrong = _counters(match[3])
        if match[2] == "ALL":
            self.aggregates += 1
            return
        if own is None or int(match[2]) >= 255:
            yield "a port with GUID 0, or of a number no port has"
            return
        is_node = self._kind == "data" or own == self._node
        line = PortLine(
            kind=self._kind,
            guid=own,
            node_guid=own if is_node else None,
            name=self._name,
            port=int(match[2]),
            gathered=Gathered(),
            ts=ts,
        )
        _fill(line, counters)
        self._last = line
        if wrong:
            yield f"cut or damaged after {len(counters)} counters"

    def _link(self, text: str) -> Iterator[str]:
        match = _LINK.fullmatch(text)
        state = _LINK_STATE.fullmatch(match[3]) if match else None
        if match is None or state is None:
            yield "a link line that cannot be read"
            return
        if self._last is None or self._last.port != int(match[2]):
            yield "a link line without its port"
            return
        far = _FAR.match(match[4])
        speed = state[3] if state[3] else _SPEEDS.get(state[2] or "")
        rate = rate_of(state[1], speed)
        self._last.neighbour = Neighbour(
            lid=int(match[1]),
            width=state[1] if lanes_of(state[1]) else None,
            rate_gbps=rate,
            state=(state[4] or "").upper() or None,
            guid=guid(far[1]) if far else None,
            port=int(far[3]) if far else None,
            name=far[4].strip() if far else None,
        )


def _counters(text: str) -> tuple[list[tuple[str, str, bool]], bool]:
    """``[name == value (words)]`` in turn, and whether something else stands there."""
    found = []
    at = 0
    while match := _COUNTER.match(text, at):
        found.append((match[1], match[2], match[3] is not None))
        at = match.end()
    return found, bool(text[at:].strip())


def _fill(line: PortLine, counters: list[tuple[str, str, bool]]) -> None:
    """Sort counters by width.

    A value with words in brackets was read as 64 bits, except that those of the data counters
    have them always: of these the size, or a counter that only the 64-bit set has, tells.
    With ``--details`` the tool prints the details of discards under the names of those of receive
    errors and the other way round (it swaps the ranges of fields; the positions are right), so
    what stands behind a counter is named by that counter.
    """
    values = {}
    own: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    for printed, text, _ in counters:
        value = number(text)
        name = counter_name(printed)
        if name is not None:
            own, other = (), ()
            if name == "port_rcv_errors":
                own, other = RCV_DETAILS, DISCARD_DETAILS
            elif name == "port_xmit_discards":
                own, other = DISCARD_DETAILS, RCV_DETAILS
            if value is not None:
                values[name] = value
        elif value is not None:
            right = printed
            if printed in other and other.index(printed) < len(own):
                right = own[other.index(printed)]
            if right not in RCV_DETAILS and right not in DISCARD_DETAILS:
                line.unknown.append(printed)
                line.gathered.details[kernel_name(printed)] = value
            else:
                line.gathered.detail(kernel_name(right), value, DETAIL_BITS)
    in_words = {counter_name(printed) for printed, _, words in counters if words}
    data_is_wide = any(name in values for name in ALWAYS_64) or any(
        values.get(name, 0) > U32_MAX for name in GROWING
    )
    for name, value in values.items():
        is_data = name in GROWING
        wide = name in ALWAYS_64 or (data_is_wide if is_data else name in in_words)
        (line.gathered.wide if wide else line.gathered.narrow)[name] = value

"""ibqueryerrors: port errors, with ``--data``, ``--details``, ``--report-port``; ``--counters``.

What it assumes: what is printed was read; what is not printed is unknown: below a threshold,
suppressed, or of a port without errors. When it lies: an adapter's port is known by its port GUID
only in ``Errors for`` blocks, so such a link is named by that (label ``port_guid``).
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
    Unknown,
)
from xtune.collectors._fabric_errors import PORT, ErrorsReading, PortLine
from xtune.collectors._fabric_samples import MOST_PORTS, TOOL_MESSAGE, Sample, Samples
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import fallback_time
from xtune.collectors._textlines import Lines
from xtune.collectors._time_lines import TimeLines

_BLOCK = re.compile(r'^\s*(Errors|Data Counters|Counters) for (0x[0-9a-f]+ )?"', re.M)
_PORT_LINE = re.compile(r"^" + PORT.pattern.split(":(.*)")[0] + r":.*\[\w+ == ", re.M)
_SUMMARY = re.compile(r"^## Summary: \d+ nodes checked", re.M)
_NOISE = re.compile(r"^(src/query_smp\.c:\d+; umad|ibwarn: \[\d+\])", re.M)
_Key = tuple[str, int]


class _Ports:
    """Ports and links that were named on the way; at most as many as a fabric has."""

    def __init__(self, ts: int | None, context: Context) -> None:
        self._ts = ts
        self._context = context
        self._ports: dict[_Key, dict[str, Any]] = {}
        self._links: dict[_Key, dict[str, Any]] = {}
        self._names: dict[str, str] = {}

    def note(self, line: PortLine) -> Iterator[Item]:
        """Keep what a line says of its port and neighbour; the newest word counts."""
        if len(self._ports) >= MOST_PORTS:
            yield from self.rows()
        row = self._ports.setdefault((line.guid, line.port), {})
        row |= {
            "node_guid": line.node_guid,
            "port_guid": None if line.node_guid else line.guid,
            "node_description": line.name or row.get("node_description"),
        }
        if line.name:
            self._names[line.guid] = line.name
        far = line.neighbour
        if far is None:
            return
        about = {"width": far.width, "rate_gbps": far.rate_gbps}
        row |= {**about, "state": far.state}
        row["extra"] = {"lid": str(far.lid)}
        if far.guid is None or far.port is None:
            return
        if far.name:
            self._names.setdefault(far.guid, far.name)
        near_end, far_end = (line.guid, line.port), (far.guid, far.port)
        self._links[near_end] = {"to": far_end, "port_guid": line.node_guid is None, **about}
        # What is told of the far end is told by a port's GUID, whoever's it is.
        self._links.setdefault(far_end, {"to": near_end, "port_guid": True, **about})

    def rows(self) -> Iterator[Item]:
        """Yield ``ports`` and ``topology_links``, and forget them."""
        ports = RowBuffer("ports", self._context)
        links = RowBuffer("topology_links", self._context)
        nodes = {own for (own, _), row in self._ports.items() if row["node_guid"]}
        for (own, number), row in self._ports.items():
            same = {"ts": self._ts, "port": number, "link": f"{own}/{number}"}
            ports.add({**same, "link_layer": "InfiniBand", **row})
        for (src, src_port), link in self._links.items():
            dst, dst_port = link["to"]
            extra = {}
            if src not in nodes and link["port_guid"]:
                extra["src_guid_is"] = "port"
            if dst not in nodes:
                extra["dst_guid_is"] = "port"
            links.add(
                {
                    "ts": self._ts,
                    "src_guid": src,
                    "src_name": self._names.get(src),
                    "src_port": src_port,
                    "dst_guid": dst,
                    "dst_name": self._names.get(dst),
                    "dst_port": dst_port,
                    "width": link["width"],
                    "rate_gbps": link["rate_gbps"],
                    "extra": extra or None,
                }
            )
        yield from ports.flush()
        yield from links.flush()
        self._ports.clear()
        self._links.clear()
        self._names.clear()


def _sample(line: PortLine) -> Sample:
    return Sample(
        key=(line.guid, line.port),
        port=line.port,
        node_guid=line.node_guid,
        guid=line.guid,
        labels={} if line.node_guid else {"port_guid": line.guid},
        rate_gbps=line.neighbour.rate_gbps if line.neighbour else None,
        gathered=line.gathered,
    )


class Ibqueryerrors(Collector):
    """Holds the ports it has seen, which the fabric bounds, not the file."""

    name = "ibqueryerrors"
    title = "ibqueryerrors: port errors, --data, --details, --report-port, --counters"
    produce = (
        "ibqueryerrors --threshold-file /dev/null --report-port, and ibqueryerrors --counters"
    )
    gives = "error counters above their thresholds; all data counters with --counters"
    lacks = "ports without errors, counters at or below a threshold (null, not 0), times"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of its blocks and summary; plausible for its error stream alone."""
        text = head.decode("utf-8", "replace")
        if _BLOCK.search(text) or _PORT_LINE.search(text) or _SUMMARY.search(text):
            return 0.95
        return 0.5 if _NOISE.match(text.lstrip()) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``link_counters`` a port and run, and ``ports`` and ``topology_links``."""
        reading, ports = ErrorsReading(), _Ports(fallback_time(source, context), context)
        samples, times = Samples(source, context), TimeLines(context)
        lines = Lines(source)
        messages = others = 0
        for line in lines:
            text = line.text
            if not text.strip():
                continue
            if TOOL_MESSAGE.match(text):
                messages += 1
                continue
            is_time, ts = times.take(text)
            if is_time:
                yield from _take(reading.close(), samples, ports)
                samples.ts = ts
                continue
            for found in reading.take(text):
                if isinstance(found, PortLine):
                    yield from _take(iter((found,)), samples, ports)
                elif "==" in text or "GUID 0x" in text or "Link info" in text:
                    yield Reject(line.place, f"{found}: {clip(text)!r}")
                else:
                    others += 1
        yield from _take(reading.close(), samples, ports)
        yield from samples.finish()
        yield from ports.rows()
        yield from times.stamps.notes()
        yield from lines.rejects
        if reading.summaries:
            checked = f"{reading.nodes_checked} nodes"
            if reading.ports_checked is not None:
                checked += f" and {reading.ports_checked} ports"
            yield Note(f"{checked} were checked: those without errors are not printed")
        for text, count in (
            ("sum over all ports of a switch (port ALL): left out", reading.aggregates),
            ("query of counters failed: null", reading.failures),
            ("message of the tool between the counters", messages),
            ("line that is none of ibqueryerrors'", others),
        ):
            if count:
                yield Note(text, count)
        if not (samples.rows or reading.aggregates or reading.summaries or messages):
            yield Reject("file", "no port and no summary in it", "is it ibqueryerrors' output?")


def _take(lines: Iterator[PortLine], samples: Samples, ports: _Ports) -> Iterator[Item]:
    for line in lines:
        for name in line.unknown:
            yield Unknown(name)
        yield from ports.note(line)
        yield from samples.add(_sample(line), line.kind)


COLLECTOR = Ibqueryerrors()

"""UFM telemetry as its endpoint gives it by default: Prometheus text, one line a counter and port.

Lines of one port may stand together or by counter; a record is put together from all of a port
and time. The endpoint gives its last sample only, so a file holds few times.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from xtune.collectors._ib_text import clip
from xtune.collectors._textlines import Lines

_LINE = re.compile(r"([A-Za-z_:][\w:.]{0,127})\{(.*)\}\s+(\S{1,40})(?:\s+(\d{1,19}))?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: The line of a port: what tells this from other expositions.
MARK = re.compile(
    r'^[A-Za-z_:][\w:.]*\{[^}\n]{0,2000}node_guid="(?:0x)?[0-9a-fA-F]+"[^}\n]{0,2000}port_num="\d+"',
    re.M,
)
#: Ports and times that are held at once; beyond, the oldest is given out as it is.
_HELD = 65536


def records(lines: Lines) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Place and record of each port and time, or what is wrong with a line."""
    held: OrderedDict[tuple[str, ...], tuple[str, dict[str, Any]]] = OrderedDict()
    for line in lines:
        plain = line.text.strip()
        if not plain or plain.startswith("#"):
            continue
        match = _LINE.fullmatch(plain)
        labels = dict(_LABEL.findall(match[2])) if match else {}
        if match is None or not line.whole or "node_guid" not in labels:
            yield line.place, f"not a sample of a port: {clip(plain)!r}"
            continue
        key = (labels["node_guid"], labels.get("port_num", ""), match[4] or "")
        if key not in held:
            about = {
                n: v for n, v in labels.items() if n in ("node_guid", "port_guid", "port_num")
            }
            about["node_description"] = labels.get("node_description") or labels.get("node_desc")
            held[key] = line.place, {**about, "timestamp": match[4]}
        held[key][1][match[1]] = _value(match[3])
        if len(held) > _HELD:
            yield held.popitem(last=False)[1]
    yield from held.values()


def _value(text: str) -> str | float:
    """A value as text where that is a whole number or none at all, else as a float."""
    try:
        return text if text.isdigit() else float(text)
    except ValueError:
        return text

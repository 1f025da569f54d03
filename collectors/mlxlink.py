"""``mlxlink`` of MFT (``mstlink`` of mstflint), JSON and text: signal of NVIDIA ports.

What it assumes: a lane's bit error rate is its raw errors over the bits since the counters were
cleared, which has more digits than the one that the tool prints, where the link is up; else it is
what is printed.
When it lies: others may clear the counters, and the time since then has six seconds' resolution.
JSON names neither device nor port: the command before it does, or ``--label device=mlx5_0``.
"""

from __future__ import annotations

import re
from collections import Counter
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
from xtune.collectors._ber import NO_ERROR, bit_error_rate
from xtune.collectors._ib_time import content_id, fallback_time
from xtune.collectors._mlxlink import (
    COUNTERS,
    EYE,
    HISTOGRAM,
    KNOWN,
    MODULE,
    OPERATIONAL,
    PCIE_EYE,
    count,
    errors_of_all_lanes,
    histogram,
    lanes_by_index,
    line_gbps,
    number,
    opening,
    pcie_lanes,
    rate_gbps,
    scalars,
)
from xtune.collectors._mlxlink_documents import Document, Documents
from xtune.collectors._textlines import Lines
from xtune.collectors._values import small

_STATES = {"active": "ACTIVE", "down": "DOWN", "initialize": "INIT", "armed": "ARMED"}
_PCI = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_COLUMNS = {
    "Link Down Counter": "link_downed",
    "Link Error Recovery Counter": "link_error_recovery",
    "Symbol Errors": "symbol_error",
}


class _Rows:
    """Makes the rows of each document."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source, self._context = source, context
        self._fallback = fallback_time(source, context)
        self._unknown = ""
        self.buffers = {
            table: RowBuffer(table, context) for table in ("ports", "link_counters", "link_signal")
        }
        self.notes: Counter[str] = Counter()
        self.read = 0

    def add(self, document: Document) -> Iterator[Item]:
        """Take a document; what is in it that is not known."""
        self.read += 1
        for name in document.sections.keys() - KNOWN:
            yield Unknown(name)
        ts = document.ts if document.ts is not None else self._fallback
        if ts is None:
            self.notes["reading without a time: ts is null (--time-from says otherwise)"] += 1
        identity = self._identity(document)
        same = {"ts": ts, "link": identity["link"]}
        sections = document.sections
        if PCIE_EYE in sections:
            self._pcie(sections[PCIE_EYE], identity["link"], ts)
        if not sections.keys() & {OPERATIONAL, COUNTERS, MODULE, HISTOGRAM, EYE}:
            return
        about = scalars(sections)
        width = about.get("Width")
        rate = rate_gbps(about.get("Speed"), width)
        speed = about.get("Speed", "").upper()
        if OPERATIONAL in sections:
            self.buffers["ports"].add(
                {
                    **identity,
                    "ts": ts,
                    "rate_gbps": rate,
                    "width": width.upper() if width else None,
                    "state": _STATES.get(about.get("State", "").lower()),
                    "link_layer": ("InfiniBand" if speed.startswith("IB-") else "Ethernet")
                    if rate is not None
                    else None,
                }
            )
        self._signal(document, about, same)
        counted: dict[str, Any] = {c: count(about.get(k)) for k, c in _COLUMNS.items()}
        errors = count(about.get("Effective Physical Errors"))
        if errors is not None or any(value is not None for value in counted.values()):
            row = {key: identity[key] for key in ("link", "host", "device", "port")}
            extra = {"Effective Physical Errors": errors} if errors is not None else {}
            self.buffers["link_counters"].add(
                {**row, **counted, "ts": ts, "rate_gbps": rate, "extra": extra}
            )

    def _signal(self, document: Document, about: dict[str, str], same: dict[str, Any]) -> None:
        lanes = lanes_by_index(document.sections)
        lane_gbps = line_gbps(about.get("Speed"), about.get("Width"), about.get("FEC"))
        minutes = number(about.get("Time Since Last Clear [Min]"))
        up = about.get("State", "").lower() == "active"
        bits = lane_gbps * 1e9 * minutes * 60 if up and lane_gbps and minutes else None
        bins, ranges = histogram(document.sections.get(HISTOGRAM, {}))
        extra = dict(about)
        if ranges:
            extra["fec_bin_ranges"] = ranges
        whole, wide = errors_of_all_lanes(document.sections)
        raw, told = _rate(whole, bits and bits * wide, about.get("Raw Physical BER"))
        row = {
            "raw_ber": raw,
            "effective_ber": bit_error_rate(about.get("Effective Physical BER"))[0],
            "fec_bins": bins,
            "temperature": number(about.get("Temperature [C]")),
            "extra": {**extra, **told} or None,
        }
        if any(value is not None for value in row.values()):
            self.buffers["link_signal"].add({**same, **row})
        for index, lane in lanes.items():
            raw, told = _rate(lane.errors, bits, lane.printed)
            self.buffers["link_signal"].add(
                {
                    **same,
                    "lane": index,
                    "raw_ber": raw,
                    "eye": number(lane.eye),
                    "snr": number(lane.snr),
                    "extra": {**lane.values, **told},
                }
            )

    def _pcie(self, section: dict[str, Any], link: str, ts: int | None) -> None:
        for index, values in pcie_lanes(section).items():
            self.buffers["link_signal"].add(
                {
                    "ts": ts,
                    "link": f"{link.rpartition('/')[0]}/pcie",
                    "lane": index,
                    "eye": number(opening(values)),
                    "extra": {**values, "port_type": "PCIE"},
                }
            )

    def _identity(self, document: Document) -> dict[str, Any]:
        labels = self._context.labels
        host = (document.host or self._context.host or "").lower() or None
        device = document.device or labels.get("device")
        # Without -p the tool reads port 1.
        port = document.port or labels.get("port") or "1"
        if not self._unknown and (host is None or device is None):
            self._unknown = content_id(self._source)
        if device is None:
            self.notes["reading without a device (--label device=mlx5_0 names it)"] += 1
        elif host is None:
            self.notes["reading without a host (--host names it)"] += 1
        name = device or f"{self._unknown}-{self.read}"
        is_pci = device is not None and _PCI.fullmatch(device) is not None
        return {
            # A split port of a switch (1/2) is no number, but a link of its own.
            "link": f"{host or self._unknown}/{name}/{port}",
            "host": host,
            "device": device,
            "port": small(port),
            "pci": device.lower() if device is not None and is_pci else None,
        }


def _rate(
    errors: int | None, bits: float | None, printed: str | None
) -> tuple[float | None, dict[str, str]]:
    """Bit error rate from counted errors, else as printed, and what to say of it in ``extra``."""
    if errors is not None and bits and bits >= max(errors, 1):  # else that time cannot be
        if errors:
            return errors / bits, {}
        return None, {"raw_ber_below": f"{1 / bits:.3g}", "raw_ber_is": NO_ERROR}
    value, clean = bit_error_rate(printed)
    if value is not None:
        return value, {"raw_ber_is": "as printed, one digit"}
    return None, {"raw_ber_is": NO_ERROR} if clean else {}


class Mlxlink(Collector):
    """Reads one output at a time; several may follow one another in a file."""

    name = "mlxlink"
    title = "mlxlink, JSON or text: bit error rates, FEC histogram, eye, module of a port"
    produce = "mlxlink -d mlx5_0 -m -c -e --rx_fec_histogram --show_histogram --json"
    gives = "raw BER by lane from counted errors, FEC bins, eye, SNR, temperature, port state"
    lacks = "time, host; device and port in JSON. Costs 0.8 s and firmware access a port"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of a document with the tool's sections; plausible of its status alone."""
        text = head.decode("utf-8", "replace")
        sections = sum(f'"{name}"' in text for name in KNOWN)
        if sections and re.search(r'"output"\s*:', text) and re.search(r'"result"\s*:', text):
            return 0.97
        titles = "|".join(re.escape(name) for name in (OPERATIONAL, COUNTERS, MODULE, HISTOGRAM))
        if re.search(
            rf"^\s*(?:\x1b\[[0-9;]*m)*(?:{titles})(?:\x1b\[[0-9;]*m)*\s*\n\s*-{{5}}", text, re.M
        ):
            return 0.95
        failed = re.search(r'^\s*\{\s*"(?:result|status)"\s*:\s*\{', text)
        return 0.6 if failed and '"code"' in text and '"message"' in text else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports``, ``link_signal`` (the port, then each lane) and ``link_counters``."""
        rows = _Rows(source, context)
        lines = Lines(source)
        documents = Documents(lines, context)
        rejected = 0
        for found in documents:
            if isinstance(found, Reject):
                rejected += 1
                yield found
                continue
            if found.error is not None:
                rejected += 1
                yield Reject(found.place, found.error, "its values may be stale: left out")
                continue
            yield from rows.add(found)
            for buffer in rows.buffers.values():
                if buffer.full:
                    yield from buffer.flush()
        for buffer in rows.buffers.values():
            yield from buffer.flush()
        for note, times in rows.notes.items():
            yield Note(note, times)
        yield from documents.times.stamps.notes()
        if not rows.read and not rejected and not lines.rejects:
            yield Reject("file", "no output of mlxlink in it", self.produce)
        yield from lines.rejects


COLLECTOR = Mlxlink()

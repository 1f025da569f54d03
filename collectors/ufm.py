"""UFM telemetry: its endpoints, CSV or Prometheus text, and JSON of its streaming plugins.

What it assumes: a record's ``timestamp`` is the epoch, in microseconds; ``hist0`` and on are
codewords by corrected symbols (``hist0_u_count`` is not); data is in bytes under ``Infiniband_``
names and in words under PMA names. ``--map data_unit_bytes=4`` or ``=1`` says otherwise. When it
lies: a message of changes only leaves out what stood still.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
from xtune.collectors._fabric_samples import MOST_PORTS
from xtune.collectors._ib import U64_MAX, guid, is_wide, settle, told_unit
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import fallback_time, scale_epoch
from xtune.collectors._mlxlink import number
from xtune.collectors._pma_fields import settle_fields
from xtune.collectors._stamps import StampReader
from xtune.collectors._textlines import READ_ERRORS, Lines
from xtune.collectors._ufm_exposition import MARK
from xtune.collectors._ufm_exposition import records as exposition
from xtune.collectors._ufm_fields import role
from xtune.collectors._values import text, whole

_HEADER = re.compile(r"timestamp,(?:[\w.\[\]-]*,)*?node_guid,", re.IGNORECASE)
#: An object without objects in it: one record; else one that has begun where the text ends.
_STRING = r'"(?:[^"\\]|\\.)*'
_RECORD = re.compile(
    rf'(\{{(?:[^{{}}"]|{_STRING}")*\}})|\{{(?:[^{{}}"]|{_STRING}")*(?:{_STRING}\\?)?\Z', re.DOTALL
)
_CHUNK = 1 << 18
_MAX_RECORD = 1 << 20
_NOTHING = {"", "na", "n/a", "nan", "null", "none", "-1", "0xfffffffffffffffe"}


def _count(value: Any) -> int | None:
    return whole(value, low=0, high=U64_MAX)


class _Rows:
    """Makes rows of records, each a mapping of field names to text or numbers."""

    def __init__(self, source: Source, context: Context) -> None:
        self._unit = told_unit(context.column_map)
        self._fallback = fallback_time(source, context)
        self._stamps = StampReader(context)
        self._ports: set[tuple[str, int]] = set()
        self._wide: set[str] = set()
        self.unknown: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.buffers = {
            table: RowBuffer(table, context) for table in ("ports", "link_counters", "link_signal")
        }

    def add(self, record: Mapping[str, Any]) -> str | None:
        """Take a record; what is wrong with it, or ``None``."""
        identity: dict[str, Any] = {}
        counters: dict[str, int] = {}
        wide: set[str] = set()
        unit = 4
        other: dict[str, int] = {}
        signal: dict[str, Any] = {}
        lanes: dict[int, dict[str, Any]] = {}
        bins: dict[int, int | None] = {}
        about: dict[str, str] = {}
        bad: list[str] = []
        for field, value in record.items():
            known = role(field)
            if known.kind == "skip" or value is None:
                continue
            if known.kind == "identity":
                identity[known.name] = value
                continue
            if str(value).strip().lower() in _NOTHING or isinstance(value, (dict, list)):
                continue
            count = _count(value)
            if known.kind == "counter":
                if known.name.endswith("_data"):
                    unit = known.unit
                if count is None:
                    bad.append(field)
                elif known.wide or known.name not in wide:
                    counters[known.name] = count
                    wide |= {known.name} if known.wide else set()
            elif known.kind == "signal":
                signal[known.name] = value
            elif known.kind == "lane":
                lanes.setdefault(known.index, {})[known.name] = value
            elif known.kind == "hist":
                bins[known.index] = count
            elif known.kind == "about":
                about[known.name] = str(value)
            elif known.kind == "other" and count is not None:
                other[known.name] = count
            else:
                self.unknown[known.name] += 1
        node, port = guid(str(identity.get("node_guid", ""))), whole(identity.get("port"))
        if node is None or port is None or not 0 <= port < 256:
            return "a record without node GUID and port"
        same = {"ts": self._time(identity.get("time")), "link": f"{node}/{port}"}
        self._port(identity, node, port, same)
        self._counters(counters, wide, self._unit or unit, other, node, port, same)
        self._signal(signal, lanes, bins, about, same)
        return (
            f"not a counter: {clip(', '.join(f'{b}={record[b]}' for b in bad))}" if bad else None
        )

    def _time(self, value: Any) -> int | None:
        count = _count(value)
        if count:
            return scale_epoch(count)[0]
        if isinstance(value, str) and value:
            found = self._stamps.last(value)
            return found if found is not None else self._fallback
        self.notes["record without a time: ts is null (--time-from says otherwise)"] += (
            self._fallback is None
        )
        return self._fallback

    def _port(
        self, identity: Mapping[str, Any], node: str, port: int, same: Mapping[str, Any]
    ) -> None:
        if (node, port) in self._ports:
            return
        if len(self._ports) >= MOST_PORTS:  # more than a fabric has: these are made up
            self._ports.clear()
        self._ports.add((node, port))
        self.buffers["ports"].add(
            {
                **same,
                "node_guid": node,
                "port": port,
                "port_guid": guid(str(identity.get("port_guid", ""))),
                "node_description": text(identity.get("node_description")) or None,
                "link_layer": "InfiniBand",
            }
        )

    def _counters(
        self,
        values: dict[str, int],
        wide: set[str],
        unit: int,
        other: dict[str, int],
        node: str,
        port: int,
        same: Mapping[str, Any],
    ) -> None:
        if not values and not other:
            return
        if unit == 4:
            row = settle_fields({**values, **other}, wide)
        else:
            if is_wide(values, unit) and len(self._wide) < MOST_PORTS:
                self._wide.add(node)
            row = settle({**values, **other}, wide=node in self._wide, unit=unit)
        self.buffers["link_counters"].add({**row, **same, "node_guid": node, "port": port})

    def _signal(
        self,
        signal: Mapping[str, Any],
        lanes: Mapping[int, Mapping[str, Any]],
        bins: Mapping[int, int | None],
        about: dict[str, str],
        same: Mapping[str, Any],
    ) -> None:
        told = {n: bit_error_rate(signal[n]) for n in ("raw_ber", "effective_ber") if n in signal}
        clean = {f"{n}_is": NO_ERROR for n, (_, none_seen) in told.items() if none_seen}
        extra = {**about, **clean}
        row = {
            **{n: rate for n, (rate, _) in told.items()},
            "temperature": number(str(signal.get("temperature", ""))),
            "fec_bins": [bins.get(n) for n in range(max(bins) + 1)] if bins else None,
        }
        if extra or any(value is not None for value in row.values()):
            self.buffers["link_signal"].add({**same, **row, "extra": extra or None})
        for index, values in sorted(lanes.items()):
            snr = values.get("snr_media", values.get("snr_host"))
            self.buffers["link_signal"].add(
                {
                    **same,
                    "lane": index,
                    "raw_ber": bit_error_rate(values.get("raw_ber"))[0],
                    "snr": number(str(snr)) if snr is not None else None,
                    "extra": {name: str(value) for name, value in values.items()},
                }
            )

    def finish(self) -> Iterator[Item]:
        for buffer in self.buffers.values():
            yield from buffer.flush()
        for name, count in self.unknown.items():
            yield Unknown(name, count)
        for note, count in self.notes.items():
            if count:
                yield Note(note, count)
        yield from self._stamps.notes()


def _json_records(source: Source, damage: list[Reject]) -> Iterator[tuple[str, str]]:
    """Place and text of each record of JSON messages, in bounded memory."""
    held, offset = "", 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with source.open() as stream:
            while block := stream.read1(_CHUNK):
                held += decoder.decode(block)
                end = len(held)
                for match in _RECORD.finditer(held):
                    if match[1] is None:
                        end = match.start()
                        break
                    yield f"character {offset + match.start()}", match[1]
                if len(held) - end > _MAX_RECORD:
                    damage.append(Reject(f"character {offset + end}", "a record without its end"))
                    end = len(held)
                offset, held = offset + end, held[end:]
    except READ_ERRORS as error:
        damage.append(Reject(f"character {offset}", f"cannot be read further: {error}"))
    if held:
        damage.append(Reject(f"character {offset}", "the file ends inside a record"))


class Ufm(Collector):
    """Reads records one at a time; keeps which ports it has seen."""

    name = "ufm"
    title = "UFM telemetry (CSV, Prometheus text, JSON): counters and signal of a fabric"
    produce = (
        "curl -s http://UFM:9001/csv/metrics; curl -s http://UFM:9002/csv/xcset/low_freq_debug"
    )
    gives = "counters of all ports with times; BER, FEC histogram, temperature of the second set"
    lacks = "the wait tick; what UFM calculates itself (congested bandwidth) is only named"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of UFM's columns or of a message with its fields."""
        text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        first = text.partition("\n")[0]
        if _HEADER.match(first) and re.search(r",port_num(?:ber)?(?:,|\s|$)", first, re.I):
            return 0.95
        if '"node_guid"' in text and '"port_num"' in text and '"timestamp"' in text:
            return 0.95 if "Infiniband_" in text or "Extended" in text else 0.6
        return 0.9 if MARK.search(text) else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield ``ports`` (once each), ``link_counters`` and ``link_signal``."""
        rows = _Rows(source, context)
        damage: list[Reject] = []
        head = source.head().decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        if _HEADER.match(head):
            records = self._csv(source, damage)
        elif head[:1] in "{[":
            records = self._json(source, damage)
        else:
            records = self._exposition(source, damage)
        read = 0
        for place, record in records:
            wrong = record if isinstance(record, str) else rows.add(record)
            read += 1
            if wrong:
                yield Reject(place, wrong)
            for buffer in rows.buffers.values():
                if buffer.full:
                    yield from buffer.flush()
        yield from rows.finish()
        yield from damage
        if not read and not damage:
            yield Reject("file", "no record of UFM telemetry in it", self.produce)

    def _csv(
        self, source: Source, damage: list[Reject]
    ) -> Iterator[tuple[str, dict[str, Any] | str]]:
        lines = Lines(source)
        header: list[str] = []
        for line in lines:
            plain = line.text.strip()
            if not plain:
                continue
            try:
                (cells,) = csv.reader([plain])
            except (csv.Error, ValueError):
                yield line.place, f"not CSV: {clip(plain)!r}"
                continue
            if _HEADER.match(plain):  # again where outputs were appended to one file
                header = [cell.strip() for cell in cells]
            elif not line.whole:
                yield line.place, "row without an end: it may be cut"
            elif len(cells) != len(header):
                yield line.place, f"{len(cells)} cells where the header has {len(header)}"
            else:
                yield line.place, dict(zip(header, cells, strict=True))
        damage += lines.rejects

    def _exposition(
        self, source: Source, damage: list[Reject]
    ) -> Iterator[tuple[str, dict[str, Any] | str]]:
        lines = Lines(source)
        yield from exposition(lines)
        damage += lines.rejects

    def _json(
        self, source: Source, damage: list[Reject]
    ) -> Iterator[tuple[str, dict[str, Any] | str]]:
        for place, piece in _json_records(source, damage):
            try:
                record = json.loads(piece)
            except (ValueError, RecursionError) as error:
                yield place, f"not JSON: {clip(str(error))}"
                continue
            yield place, record


COLLECTOR = Ufm()

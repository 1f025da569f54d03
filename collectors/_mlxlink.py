"""What one output of ``mlxlink`` says of a port: values in their shapes, and bit error rates.

Sources: mstflint ``mlxlink/modules`` (``mlxlink_commander.cpp``, ``amber``), captures of MFT 4.34
and 4.35.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xtune.collectors._ib import LANE_GBPS, U64_MAX, lanes_of
from xtune.collectors._values import text

OPERATIONAL, MODULE = "Operational Info", "Module Info"
COUNTERS, HISTOGRAM = "Physical Counters and BER Info", "Histogram of FEC Errors"
EYE, PCIE_EYE, SERDES = (
    "EYE Opening Info",
    "EYE Opening Info (PCIe)",
    "Serdes Tuning Transmitter Info",
)
PCIE = "PCIe Operational (Enabled) Info"
KNOWN = {
    OPERATIONAL,
    MODULE,
    COUNTERS,
    HISTOGRAM,
    EYE,
    PCIE_EYE,
    SERDES,
    PCIE,
    "Supported Info",
    "Troubleshooting Info",
    "Tool Information",
}
#: Keys whose comma-joined value is one entry a lane.
_BY_LANE = re.compile(r"per lane|Lanes|Current \[(?:mA|dBm)\]|^CDR [RT]X$", re.IGNORECASE)
_RANGE = re.compile(r"\[[^\[\]]{0,80}\.\.[^\[\]]{0,80}\]$")
#: A copper cable reads 0 in all its range of 0; so 0 is what it does not measure.
_NO_RANGE = re.compile(r"\[-?0(?:\.0{1,9})?\.\.-?0(?:\.0{1,9})?\]$")
_ZERO = re.compile(r"-?0(?:\.0+)?")
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_BIN = re.compile(r"Bin\s*(\d{1,3})", re.ASCII)
#: Bits on the wire of a lane by its nominal Gb/s: 64b/66b to 25G, RS(544,514) PAM4 beyond
#: (IEEE 802.3 clauses 91, 119, 134; InfiniBand's lanes of EDR and later run at the same rates).
_LINE_GBPS = {10: 10.3125, 14: 14.0625, 25: 25.78125, 50: 53.125, 100: 106.25, 200: 212.5}


def scalar(value: Any) -> str | None:
    """A plain value without its range suffix; ``None`` for ``N/A`` and for nothing."""
    if isinstance(value, Mapping):
        listed = value.get("values")
        plain = ",".join(str(v) for v in listed) if isinstance(listed, list) else ""
    else:
        plain = "" if value is None or isinstance(value, list) else str(value)
    plain = plain.strip()
    return _told(_RANGE.sub("", plain), _NO_RANGE.search(plain) is not None)


def _told(plain: str, unmeasured: bool) -> str | None:
    plain = plain.strip()
    if plain.upper() in ("", "N/A", "NA") or (unmeasured and _ZERO.fullmatch(plain)):
        return None
    return text(plain)


def lanes(value: Any) -> list[str | None]:
    """A value a lane, at the lane's own index: a lane without one is ``None``."""
    if isinstance(value, Mapping):
        value = value.get("values")
    if isinstance(value, list):
        return [scalar(entry) for entry in value[:256]]
    plain = str(value or "").strip()
    unmeasured = _NO_RANGE.search(plain) is not None
    return [_told(part, unmeasured) for part in _RANGE.sub("", plain).split(",")[:256]]


def number(value: str | None) -> float | None:
    """The number a value begins with: ``61`` of ``61C``."""
    match = _NUMBER.match(value or "")
    found = float(match[0]) if match else None
    return found if found is not None and math.isfinite(found) else None


def count(value: str | None) -> int | None:
    """A counter within 64 bits, unknown at its maximum."""
    if value is None or not re.fullmatch(r"\d{1,20}", value, re.ASCII):
        return None
    return int(value) if int(value) < U64_MAX else None


def line_gbps(speed: str | None, width: str | None, fec: str | None) -> float | None:
    """Bits on the wire of one lane in Gb/s, of speed ``400G`` or ``IB-NDR`` and width ``4x``."""
    count_ = lanes_of(width)
    plain = (speed or "").upper()
    if plain.startswith("IB-"):
        nominal = LANE_GBPS.get(plain[3:])
    else:
        match = re.match(r"(\d{1,4})G", plain)
        nominal = int(match[1]) / count_ if match and count_ else None
    if nominal == 25 and "(544,514)" in (fec or ""):
        return 26.5625
    return None if nominal is None else _LINE_GBPS.get(round(nominal))


def rate_gbps(speed: str | None, width: str | None) -> float | None:
    """The port's nominal rate in Gb/s."""
    plain = (speed or "").upper()
    if plain.startswith("IB-"):
        lane, wide = LANE_GBPS.get(plain[3:]), lanes_of(width)
        return lane * wide if lane and wide else None
    match = re.match(r"(\d{1,4})G", plain)
    return float(match[1]) if match else None


def histogram(section: Mapping[str, Any]) -> tuple[list[int | None] | None, str | None]:
    """Codewords by bin in the order of bin numbers, and the bins' ranges where they span some.

    Keys sort as ``Bin 0, Bin 1, Bin 10``; a bin that is missing is ``None``.
    """
    bins: dict[int, int | None] = {}
    ranges: dict[int, str] = {}
    for key, value in section.items():
        match = _BIN.fullmatch(key)
        if not match:
            continue
        if isinstance(value, Mapping):
            listed = value.get("values")
            parts = [str(part) for part in listed] if isinstance(listed, list) else []
        else:
            parts = str(value).replace("]", "] ").split()
        if parts:
            bins[int(match[1])] = count(parts[-1].strip())
            ranges[int(match[1])] = parts[0].strip().strip("[]")
    if not bins:
        return None, None
    spans = any(ranges.get(n) != str(n) for n in bins)
    told = ",".join(ranges.get(n, "") for n in range(max(bins) + 1)) if spans else None
    return [bins.get(n) for n in range(max(bins) + 1)], told


@dataclass(slots=True)
class Lane:
    """One lane: raw errors, what it adds up to as a rate, and all else by the tool's names."""

    values: dict[str, str]
    errors: int | None = None
    printed: str | None = None
    eye: str | None = None
    snr: str | None = None


def errors_of_all_lanes(sections: Mapping[str, Mapping[str, Any]]) -> tuple[int | None, int]:
    """Raw errors of the port, unknown where a lane's are, and the number of lanes."""
    entries = lanes(sections.get(COUNTERS, {}).get("Raw Physical Errors Per Lane"))
    known = [found for found in map(count, entries) if found is not None]
    return (sum(known) if len(known) == len(entries) else None), len(entries)


def lanes_by_index(sections: Mapping[str, Mapping[str, Any]]) -> dict[int, Lane]:
    """Everything a lane has, by the lane's index, of the network port."""
    found: dict[int, Lane] = {}

    def at(index: int) -> Lane:
        return found.setdefault(index, Lane(values={}))

    for name in (COUNTERS, MODULE):
        for key, value in sections.get(name, {}).items():
            if not _BY_LANE.search(key):
                continue
            for index, entry in enumerate(lanes(value)):
                if entry is not None:
                    at(index).values[key] = entry
    for index, values in _eye(sections.get(EYE, {})):
        at(index).values |= values
    tuning = sections.get(SERDES, {})
    names = lanes(tuning.get("Serdes TX parameters"))
    for key, value in tuning.items():
        match = re.fullmatch(r"Lane (\d{1,3})", key)
        if match:
            pairs = zip(names, lanes(value), strict=False)
            at(int(match[1])).values |= {n: v for n, v in pairs if n and v is not None}
    for lane in found.values():
        lane.errors = count(lane.values.get("Raw Physical Errors Per Lane"))
        lane.printed = lane.values.get("Raw Physical BER Per Lane")
        lane.eye = opening(lane.values)
        media, host = (lane.values.get(f"SNR {side} Lanes [dB]") for side in ("Media", "Host"))
        lane.snr = media if media is not None else host
    return dict(sorted(found.items()))


def _eye(section: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lane and its values of an eye section; without its ``Lane`` list, in order."""
    listed = lanes(section["Lane"]) if "Lane" in section else None
    rows: dict[int, dict[str, str]] = {}
    for key, value in section.items():
        if key == "Lane":
            continue
        entries = lanes(value)
        for position, entry in enumerate(entries):
            told: str | None = str(position)
            if listed is not None:
                told = listed[position] if position < len(listed) else None
            index = count(told)
            if entry is not None and index is not None and index < 256 and len(entries) > 1:
                rows.setdefault(index, {})[" ".join(key.split())] = entry
    yield from rows.items()


def pcie_lanes(section: Mapping[str, Any]) -> dict[int, dict[str, str]]:
    """Eye values by lane of the PCIe side."""
    return dict(sorted(_eye(section)))


def opening(values: Mapping[str, str]) -> str | None:
    """The eye opening: the last figure of merit, or the height that older tools print."""
    return values.get("Last FOM", values.get("Height Eye Opening [mV]"))


def scalars(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What the port as a whole has, by the tool's names."""
    found: dict[str, str] = {}
    for name in (OPERATIONAL, COUNTERS, MODULE, "Troubleshooting Info", "Tool Information"):
        for key, value in sections.get(name, {}).items():
            plain = None if _BY_LANE.search(key) else scalar(value)
            if plain is not None:
                found[key] = plain
    return found

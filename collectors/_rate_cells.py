"""A port's rate in a table: which columns give it, and in what unit."""

from __future__ import annotations

import re

_BASES = ("rate", "link_rate", "port_rate", "line_rate", "active_rate")
_SPEEDS = ("speed", "link_speed", "port_speed", "line_speed", "active_speed")
#: Units that a column's name may end with, in Gb/s.
_UNITS = {"gbps": 1.0, "gbit_s": 1.0, "gb_s": 1.0, "mbps": 1e-3, "mbit_s": 1e-3, "mb_s": 1e-3}
#: Names of columns, with or without a unit.
NAMES = frozenset(
    f"{base}{end}" for base in (*_BASES, *_SPEEDS) for end in ("", *(f"_{u}" for u in _UNITS))
)
#: What may be a rate under a name of its own.
LIKE = re.compile(r".*(?:rate|speed|bandwidth|capacity|[gm]bps)(?:_.*)?", re.IGNORECASE)

_CELL = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)\s*([GMgm](?:b(?:it)?)?(?:ps|/s|/sec)?)?(?:\s*\(.*\))?"
)
#: What links run at, in Gb/s: 1X to 12X of SDR to XDR, and Ethernet from 1 to 1600.
_GBPS = frozenset((
    1, 2, 2.5, 5, 8, 10, 14, 16, 20, 25, 28, 30, 32, 40, 50, 54, 56, 60, 80, 100, 112, 120, 168,
    200, 300, 400, 600, 800, 1200, 1600, 2400,
))  # fmt: skip
#: What ``/sys/class/net/*/speed`` gives, in Mb/s, where no link has as many Gb/s.
_MBPS = frozenset(n * 1000 for n in (1, 2.5, 5, 10, 20, 25, 40, 50, 56, 100, 200, 400, 800, 1600))
#: A number under ``speed`` that is a rate in Gb/s and one in Mb/s.
_EITHER = frozenset((10, 100))
_DOWN = re.compile(r"-\d+|0(?:\.0*)?|unknown.*", re.IGNORECASE)


def read_rate(name: str, cell: str) -> tuple[float | None, bool]:
    """Rate in Gb/s of a cell, and whether it was understood; a port that is down has none.

    A unit in the cell counts (``200 Gb/sec (4X HDR)``, ``100000Mb/s``), then one in the column's
    name. A bare number is in Gb/s where links have that rate, in Mb/s where only that can be.

    Args:
        name: The column's name, one of :data:`NAMES` in any case.
        cell: As it stands in the table.
    """
    if _DOWN.fullmatch(cell):
        return None, True
    match, lower = _CELL.fullmatch(cell), name.lower()
    if match is None:
        return None, False
    number = float(match[1])
    told = match[2][0].lower() if match[2] else ""
    factor = {"g": 1.0, "m": 1e-3}.get(told)
    if factor is None:
        factor = next((f for unit, f in _UNITS.items() if lower.endswith(f"_{unit}")), None)
    if factor is None and number in _GBPS and not (number in _EITHER and "speed" in lower):
        factor = 1.0
    if factor is None and number in _MBPS:
        factor = 1e-3
    return (number * factor or None, True) if factor is not None else (None, False)

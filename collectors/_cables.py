"""Readings of cable modules as ibdiagnet prints them, in ``.cables`` and in section CABLE_INFO.

``RX1 Power: 1.585 mW, 2.000 dBm`` is lane 0. ``-999.999`` in either unit, ``inf mW`` and decibels
that no light has say that there is no value; a copper cable's ``Temperature: 0C``, with alarm
thresholds of ``0C``, is none either; nor is the bias of a laser it does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_LANE = re.compile(r"(rx|tx)\s*(\d{1,2})\s*(power|bias)", re.IGNORECASE)
_NUMBER = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,9})?|inf|nan)", re.IGNORECASE)
_NOTHING = {"", "na", "n/a", "none", "-1"}
_SENTINEL = -999.999
#: Far beyond what a module can send or stand.
_MAX_DBM = 40.0


def told(text: str) -> str | None:
    """A value without quotes, ``None`` where it says that there is none."""
    plain = text.strip().strip('"').strip()
    return None if plain.lower() in _NOTHING else plain


def _number(text: str) -> float | None:
    match = _NUMBER.match(text.strip())
    value = float(match[0]) if match else math.nan
    return value if math.isfinite(value) and value != _SENTINEL else None


def temperature(values: Mapping[str, str]) -> float | None:
    """Degrees Celsius of the module; ``None`` where it does not measure any."""
    plain = {re.sub(r"[^a-z]", "", key.lower()): told(value) for key, value in values.items()}
    text = plain.get("temperature") or plain.get("temperaturec") or ""
    value = _number(text)
    high = _number(plain.get("alarmtemperaturehighthresh") or "")
    # A module that measures has an alarm above freezing.
    return None if value is None or (value == 0 and not high) else value


def lanes(values: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Power and bias by lane, from 0: ``rx_power_mw``, ``rx_power_dbm``, ``tx_bias_ma``, ..."""
    found: dict[int, dict[str, str]] = {}
    plain = {re.sub(r"[^a-z]", "", key.lower()): value for key, value in values.items()}
    has_laser = _number(told(plain.get("txbiashighthresh", "")) or "") != 0
    for key, raw in values.items():
        match = _LANE.match(key.strip())
        text = told(raw)
        if match is None or text is None or not 0 < int(match[2]) <= 16:
            continue
        name = f"{match[1]}_{match[3]}".lower()
        parts = [part.strip() for part in text.split(",")]
        numbers = [_number(part) for part in parts]
        if any(number is None for number in numbers):
            continue
        if name == "tx_bias" and not has_laser and not any(numbers):
            continue
        here: dict[str, str] = {}
        for part, number in zip(parts, numbers, strict=True):
            unit = part.rpartition(" ")[2].lower()
            unit = unit if unit in ("mw", "dbm", "ma") else "ma" if name == "tx_bias" else "mw"
            here[f"{name}_{unit}"] = str(number)
        dbm = here.get(f"{name}_dbm")
        if dbm is None or abs(float(dbm)) <= _MAX_DBM:
            found.setdefault(int(match[2]) - 1, {}).update(here)
    return dict(sorted(found.items()))


def readings(values: Mapping[str, str], same: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of ``link_signal``: the module's, then each lane's.

    Args:
        values: What the tool printed, by its names.
        same: Columns that are equal in all rows: ``ts``, ``link``.
    """
    about = {
        key.strip(): text
        for key, raw in values.items()
        if not _LANE.match(key.strip()) and (text := told(raw)) is not None
    }
    rows = [{**same, "temperature": temperature(values), "extra": about or None}]
    rows += [{**same, "lane": lane, "extra": here} for lane, here in lanes(values).items()]
    return rows

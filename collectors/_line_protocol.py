"""Influx line protocol: ``measurement,tag=value field=1i,other="text" 1737652060000000000``.

Escapes (InfluxData line protocol reference): a backslash before a comma, space or equals sign in
names and tags; before a double quote or backslash in strings.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_FIELD = re.compile(r'((?:\\.|[^\\,= ])+)=("(?:\\.|[^"\\])*"|[^, "]+)')
_INTEGER = re.compile(r"(-?\d{1,40})[iu]")
_FLOAT = re.compile(r"[+-]?(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?")
_BOOLEANS = {"t", "true", "f", "false"}


@dataclass(frozen=True, slots=True)
class Point:
    """One line. Field values are numbers, or text for strings, booleans and NaN."""

    measurement: str
    tags: dict[str, str]
    fields: dict[str, int | float | str]
    time: int | None


def _split(text: str, separator: str) -> list[str]:
    """Split at separators that no backslash precedes; the escapes stay."""
    if "\\" not in text:
        return text.split(separator)
    parts, start, index = [], 0, 0
    while index < len(text):
        if text[index] == "\\":
            index += 1
        elif text[index] == separator:
            parts.append(text[start:index])
            start = index + 1
        index += 1
    parts.append(text[start:])
    return parts


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\([,= \\])", r"\1", text)


def _value(text: str) -> int | float | str | None:
    if text.startswith('"'):
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    match = _INTEGER.fullmatch(text)
    if match:
        return int(match[1])
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    if text.lower() in _BOOLEANS or text.lower().lstrip("+-") in ("nan", "inf"):
        return text
    return None


def _head(text: str) -> tuple[str, str]:
    """Split a line at its first space that no backslash precedes."""
    if "\\" not in text:
        head, _, rest = text.partition(" ")
        return head, rest.lstrip(" ")
    index = 0
    while index < len(text) and text[index] != " ":
        index += 2 if text[index] == "\\" else 1
    return text[:index], text[index:].lstrip(" ")


def parse_line(line: str) -> Point | str:
    """The point of a line, or what is wrong with it in a few words."""
    head, rest = _head(line.strip(" "))
    measurement, *pairs = _split(head, ",")
    if not measurement or not rest:
        return "no measurement and fields"
    tags = {}
    for pair in pairs:
        key, *value = _split(pair, "=")
        if not key or len(value) != 1 or not value[0]:
            return "a tag without key or value"
        tags[_plain(key)] = _plain(value[0])
    fields: dict[str, int | float | str] = {}
    position = 0
    while True:
        match = _FIELD.match(rest, position)
        if not match:
            return "a field without key or value"
        value_ = _value(match[2])
        if value_ is None:
            return f"not a field value: {match[2][:30]!r}"
        fields[_plain(match[1])] = value_
        position = match.end()
        if position == len(rest) or rest[position] != ",":
            break
        position += 1
    stamp = rest[position:].strip(" ")
    if not stamp:
        return Point(_plain(measurement), tags, fields, None)
    if rest[position] != " " or not re.fullmatch(r"-?\d{1,19}", stamp):
        return f"not a time: {stamp[:30]!r}"
    return Point(_plain(measurement), tags, fields, int(stamp))

"""Damages inputs: bytes, slices, lines, numbers, words, JSON values; all from one seeded RNG."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MAX_BYTES = 1 << 18

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w./:-]*")
_NUMBERS = (
    *(b"0", b"-0", b"-1", b"1", b"7", b"15", b"255", b"256", b"65535", b"2147483647"),
    *(b"2147483648", b"4294967295", b"4294967296", b"9223372036854775807", b"nan", b"-inf"),
    *(b"9223372036854775808", b"18446744073709551614", b"18446744073709551615", b"1e400"),
    *(b"18446744073709551616", b"1e309", b"-1e-320", b"0.1", b"00012", b"1_000", b"0x1f"),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"1.5e3", b"NaN", b"Infinity", b"-Infinity", b"inf"),
    *("٣".encode(), "１２".encode(), "²".encode(), b"+5", b"1e5", b"5.", b".5", b"1e-5"),
    *(b"1700000000", b"1700000000000", b"1700000000000000", b"1700000000000000000"),
)
_SNIPPETS = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n", b"\n\n", b"\x1b[31m", b"\x85"),
    *(b"\x80", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b'"', b"'", b"\\", b"{", b"}", b"[", b"]"),
    *(b",", b":", b"=", b"|", b";", b"\t", b" ", b"%s%n", b"../../etc/passwd", b"null", b"true"),
    *(b"N/A", b"N/A (no PMA)", b"NA", b"0xfffffffffffffffe", b"-999.999", b"{}", b"[]", b'""'),
    *(b"\xe2\x80\xa8", b"\xc2\xa0", b"\xe2\x88\x92", b"[" * 2000, b'{"a":' * 500, b"(" * 300),
    *(b"a" * 5000, b" " * 3000, b"'; DROP TABLE ports; --", b"\x1f\x8b\x08", b"__proto__"),
)


def weird(rng: Random) -> Any:
    """A value of any JSON type, often one at an edge."""
    return rng.choice(
        (
            *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63)),
            *(10**40, 0.0, -0.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), 0.5),
            *("", "a", "0", "-1", "nan", "N/A", "1e999", "\0", "\ud800", "é" * 30, "x" * 9000),
            *("../../etc/passwd", "\x1b[2J", "a\nb", "'; --", "9" * 5000, "0x" + "f" * 16, "none"),
            *([], {}, [[]], [None], [1, "a", None], {"": None}, {"a": {"a": {"a": 1}}}, [0] * 300),
            *([-1], [10**30], ["1"] * 3, [[1, 2], [3]], {"values": ["1", "N/A"]}, [float("nan")]),
        )
    )


def weird_inside(rng: Random, value: Any, changes: int = 1) -> Any:
    """A copy of a JSON value with some of its parts replaced, dropped, doubled or renamed."""
    value = json.loads(json.dumps(value))
    for _ in range(changes):
        holders: list[Any] = []
        pending = [value]
        while pending:
            found = pending.pop()
            if isinstance(found, dict) and found:
                holders.append(found)
                pending += found.values()
            elif isinstance(found, list) and found:
                holders.append(found)
                pending += found
        if not holders:
            return weird(rng)
        holder = rng.choice(holders)
        key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else None
        if key is None:
            key = rng.randrange(len(holder))
        how = rng.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[rng.choice(["", "a", "\ud800", str(key).upper(), "rank"])] = holder.pop(key)
        elif how == 2 and isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        elif how == 3:
            held = holder[key]
            holder[key] = rng.choice((str(held), [held], {"a": held}))
        else:
            holder[key] = weird(rng)
    return value


def _span(rng: Random, data: bytes, limit: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randint(0, limit))


def _flip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _times in range(rng.randint(1, 8)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _overwrite(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data, 9)
    return data[:start] + rng.randbytes(end - start) + data[end:]


def _drop(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data, rng.choice((1, 4, 40, 400)))
    return data[:start] + data[end:]


def _double(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data, rng.choice((4, 40, 400)))
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 30)) + data[end:]


def _move(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data, 200)
    rest = data[:start] + data[end:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def _truncate(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[at:] if rng.random() < 0.2 else data[:at]


def _insert(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_SNIPPETS) + data[at:]


def _number(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(_NUMBERS) + data[match.end() :]


def _swap(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Two numbers or two words change places."""
    found = list(rng.choice((_NUMBER, _WORD)).finditer(data))
    if len(found) < 2:
        return data
    one, two = sorted(rng.sample(found, 2), key=lambda match: match.start())
    middle = data[one.end() : two.start()]
    return data[: one.start()] + two[0] + middle + one[0] + data[two.end() :]


def _lines(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = data.splitlines(keepends=True)
    if not found:
        return data
    at = rng.randrange(len(found))
    how = rng.randrange(6)
    if how == 0:
        del found[at]
    elif how == 1:
        found.insert(rng.randrange(len(found) + 1), found[at])
    elif how == 2:
        rng.shuffle(found)
    elif how == 3:
        found[at] = found[at].rstrip(b"\r\n")  # two lines become one
    elif how == 4:
        found[at] = found[at][: rng.randrange(len(found[at]) + 1)]  # cut into the next
    else:
        found = [line.rstrip(b"\n") + b"\r\n" for line in found]
    return b"".join(found)


def _splice(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    start, end = _span(rng, other, rng.choice((20, 300, 3000)))
    at, until = _span(rng, data, rng.choice((0, 20, 300)))
    return data[:at] + other[start:end] + data[until:]


def _json(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Values of a JSON document, or of one JSON line, replaced."""
    try:
        return json.dumps(weird_inside(rng, json.loads(data), rng.randint(1, 4))).encode()
    except (ValueError, RecursionError):
        found = data.splitlines(keepends=True)
    for at in rng.sample(range(len(found)), len(found)):
        before, brace, rest = found[at].partition(b"{")
        try:
            value = weird_inside(rng, json.loads(brace + rest), rng.randint(1, 3))
        except (ValueError, RecursionError):
            continue
        found[at] = before + json.dumps(value).encode() + b"\n"
        return b"".join(found)
    return _number(rng, data, others)


def _gzip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    packed = gzip.compress(data, 1)
    how = rng.randrange(3)
    if how == 0:
        return packed[: rng.randrange(len(packed) + 1)]
    return _flip(rng, packed, ()) if how == 1 else packed


_WAYS: tuple[tuple[int, Callable[[Random, bytes, Sequence[bytes]], bytes]], ...] = (
    (3, _flip),
    (2, _overwrite),
    (3, _drop),
    (3, _double),
    (2, _move),
    (2, _truncate),
    (4, _insert),
    (6, _number),
    (3, _swap),
    (4, _lines),
    (3, _splice),
    (6, _json),
    (1, _gzip),
)
_CHOICES = [way for weight, way in _WAYS for _ in range(weight)]


def damaged(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """``data`` changed in one to five ways.

    Args:
        rng: Decides all.
        data: The input.
        others: Inputs of other formats, of which pieces may be spliced in.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        data = rng.choice(_CHOICES)(rng, data, others)[:MAX_BYTES]
    return data

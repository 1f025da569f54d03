"""What one format takes, all formats of its kind take: over every collector, by its seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.hostile.fuzz import Bench
from tests.hostile.rows import Found
from tests.hostile.seeds import SEEDS

_HASH = re.compile(r"unknown-[0-9a-f]{12}")
_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?=\s*[,\]}])")
_TEXT = re.compile(rb'(?<=:)(\s*)"[^"\\]*"(?=\s*[,\]}])')
_KEY = re.compile(rb'(?<=[{,])\s*"[^"\\]+"\s*:\s*(?:-?\d+(?:\.\d+)?|"[^"\\]*"|null|true|false)')
_BOM = b"\xef\xbb\xbf"


def _is_json(data: bytes) -> bool:
    lines = data.splitlines()
    return data[:1] in (b"{", b"[") or any(b"{" in line and b'": ' in line for line in lines)


#: Of these a document is one record: a status that is none makes it doubtful as a whole.
ONE_RECORD = {"mlxlink"}
#: Of these the meaning of a line hangs on one before it, which the odd line may have been.
STATEFUL = {"ibdiagnet", "ibnetdiscover", "loss_table"}

JSON = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, seed in sorted(SEEDS.items())
    if seed.form in ("json", "jsonl")
    for number, data in enumerate(seed.inputs)
    if _is_json(data)
]
TEXTUAL = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, seed in sorted(SEEDS.items())
    if seed.textual
    for number, data in enumerate(seed.inputs)
    if min(data) > 8  # a pickle and a protobuf have control bytes
]


def rows(found: Found) -> Counter[str]:
    """Rows as a multiset; links of hosts that are not named hold a hash of the input."""
    return Counter(_HASH.sub("unknown", repr(row)) for row in found.rows)


def lost(before: Found, after: Found) -> int:
    """How many rows fewer."""
    return len(before.rows) - len(after.rows)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 40])
@pytest.mark.parametrize(("name", "number"), JSON)
def test_numbers_that_are_none(name: str, number: int, token: str, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole = bench.read(data)
    places = list(_NUMBER.finditer(data))
    for place in places[:: max(1, len(places) // 15)]:
        odd = data[: place.start()] + place[1] + token.encode() + data[place.end() :]
        found = bench.read(odd)
        # It may cost the record it stands in, which is up to three rows.
        around = odd[max(0, place.start() - 60) : place.end() + 60]
        assert lost(whole, found) <= 3 or (name in ONE_RECORD and found.rejects), around


@pytest.mark.parametrize(("name", "number"), JSON)
def test_text_that_utf8_cannot_hold(name: str, number: int, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole = bench.read(data)
    places = list(_TEXT.finditer(data))
    for place in places[:: max(1, len(places) // 15)]:
        odd = data[: place.start()] + place[1] + b'"\\ud800\\u0000"' + data[place.end() :]
        found = bench.read(odd)
        assert lost(whole, found) <= max(1, len(whole.rows) // 2), odd[place.start() - 60 :][:120]


@pytest.mark.parametrize(("name", "number"), JSON)
def test_a_key_that_stands_twice(name: str, number: int, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole = rows(bench.read(data))
    places = list(_KEY.finditer(data))
    for place in places[:: max(1, len(places) // 15)]:
        odd = data[: place.end()] + b"," + place[0] + data[place.end() :]
        assert json.loads(b"{" + place[0] + b"}")
        assert rows(bench.read(odd)) == whole, place[0]


@pytest.mark.parametrize(("name", "number"), TEXTUAL)
def test_other_line_ends_and_a_byte_order_mark(name: str, number: int, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole = rows(bench.read(data))
    assert rows(bench.read(data.replace(b"\n", b"\r\n"))) == whole
    assert rows(bench.read(_BOM + data)) == whole
    assert rows(bench.read(data + b"\n\n")) == whole


@pytest.mark.parametrize(("name", "number"), TEXTUAL)
def test_no_end_of_the_last_line(name: str, number: int, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole, found = bench.read(data), bench.read(data.rstrip(b"\n"))
    assert not found.cells() - whole.cells()
    # What may be cut is a reject, not a silent loss.
    assert found.rejects or rows(found) == rows(whole)


@pytest.mark.parametrize("junk", [b"\xff\xfe\xc3", b"\0", b"\xed\xa0\x80", b"\x1b[31m\x07"])
@pytest.mark.parametrize(("name", "number"), TEXTUAL)
def test_bytes_that_are_no_text(name: str, number: int, junk: bytes, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    whole = bench.read(data)
    lines = data.splitlines(keepends=True)
    if len(lines) < 3:
        return
    for at in range(0, len(lines), max(1, len(lines) // 12)):
        # A line of them costs nothing but itself; as none of them is of the format it may say so.
        mixed = bench.read(b"".join([*lines[:at], junk + b"\n", *lines[at:]]))
        if SEEDS[name].form != "json":
            said = name in STATEFUL and mixed.rejects
            assert lost(whole, mixed) <= 0 or said, (at, mixed.rejects)
        inside = lines[at][:-1] + junk + lines[at][-1:]
        bench.read(b"".join([*lines[:at], inside, *lines[at + 1 :]]))


@pytest.mark.parametrize(
    "nested", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000]
)
@pytest.mark.parametrize(("name", "number"), JSON)
def test_nesting_without_end(name: str, number: int, nested: bytes, tmp_path: Path) -> None:
    bench, data = Bench(tmp_path, name, limit_memory=False), SEEDS[name].inputs[number]
    places = list(_NUMBER.finditer(data))
    for place in (places[0], places[-1]):
        found = bench.read(data[: place.start()] + nested + data[place.end() :])
        assert found.rejects or found.rows or found.notes


@pytest.mark.parametrize("name", sorted(n for n, seed in SEEDS.items() if seed.form != "tree"))
def test_input_of_every_other_format(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, name, limit_memory=False)
    for other, seed in SEEDS.items():
        for data in seed.inputs:
            found = bench.read(data)
            assert found.rejects or found.rows or found.notes or found.unknown, other

"""Memory does not grow with what is wrong with a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hostile import child
from tests.hostile.seeds import SEEDS

TEXTUAL = sorted(name for name, seed in SEEDS.items() if seed.form != "tree")


def _begun(name: str, path: Path) -> None:
    """The first half of a valid input, in the middle of a line."""
    data = SEEDS[name].inputs[0]
    cut = len(data) // 2
    while data[cut : cut + 1] == b"\n":
        cut += 1
    path.write_bytes(data[:cut])


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTUAL)
def test_a_line_of_a_gigabyte(name: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    _begun(name, path)
    with path.open("r+b") as file:  # a hole reads as zeros and takes no room on the disk
        file.truncate(1 << 30)
    took = child.read(name, path)
    assert took.peak_mb < 512, took
    assert took.rejects < 1000, took


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTUAL)
def test_a_binary_file_forced_through_a_text_collector(name: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    with path.open("wb") as file:
        for number in range(300):
            file.write(b"".join(b'\x00\xfe%d {[="\n' % (number * 2000 + i) for i in range(2000)))
    took = child.read(name, path)
    assert took.peak_mb < 200, took


DOCUMENTS = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, seed in sorted(SEEDS.items())
    if seed.form in ("json", "jsonl")
    for number, data in enumerate(seed.inputs)
    if data[:1] in (b"{", b"[") and b"\n{" not in data
]
#: A value that few bytes make large, in Python's terms: two bytes are a list of 64.
_VALUES = {"lists": b"[],", "numbers": b"0.5,", "deep": b"["}


@pytest.mark.slow
@pytest.mark.parametrize("value", sorted(_VALUES))
@pytest.mark.parametrize(("name", "number"), DOCUMENTS)
def test_one_value_of_sixty_megabytes(name: str, number: int, value: str, tmp_path: Path) -> None:
    data = SEEDS[name].inputs[number]
    place = re.search(rb'(?<=": )\d[\d.]*', data)
    if place is None:
        pytest.skip("no number in it")
    path = tmp_path / "input"
    with path.open("wb") as file:
        file.write(data[: place.start()] + b"[")
        for _ in range(60):
            file.write(_VALUES[value] * ((1 << 20) // len(_VALUES[value])))
        file.write(b"0]" + data[place.end() :])
    took = child.read(name, path)
    assert took.peak_mb < 512, took

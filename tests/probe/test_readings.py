"""The table in shared memory, with writers that are processes of their own."""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os
import signal
import struct
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probe.helpers import LIMIT_S, until
from xtune.policies.probe import table
from xtune.policies.probe.readings import (
    Reading,
    ReadingsError,
    ReadingsReader,
    ReadingsWriter,
)
from xtune.policies.probe.table import RETRIES

SPAWN = mp.get_context("spawn")
READS = 200_000
NAMES = ("a>b", "c>d")

whole = st.integers(0, 2**63 - 1)
real = st.none() | st.floats(allow_nan=False)
some_readings = st.builds(
    Reading,
    finished=whole,
    history=st.integers(0, 2**64 - 1),
    finished_ns=whole,
    answered_ns=st.none() | whole,
    rtt_ns=st.none() | whole,
    jitter_ns=real,
    occupancy=real,
    error_rate=real,
    margin=real,
    sent=whole,
    lost=whole,
    late=whole,
    marks=real,
)


def numbered(n: int) -> Reading:
    """A reading of which every field follows from one number."""
    ends = (n + 1, n + 2, n + 3)
    return Reading(n, 3 * n, *ends, n + 0.5, n / 2, None, -n, n + 4, n + 5, n + 6, n / 3)


def write_for_ever(path: str, with_crc: bool) -> None:
    if not with_crc:
        table._crc = lambda content, version: 0
    writer = ReadingsWriter(path, NAMES)
    n = 0
    while True:
        n += 1
        writer.publish(0, numbered(n))
        writer.publish(1, numbered(2 * n))
        writer.beat()


@pytest.fixture(params=[True])
def busy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, BaseProcess]]:
    """A table, and the process that writes it without a pause."""
    path = tmp_path / "table"
    process = SPAWN.Process(target=write_for_ever, args=(str(path), request.param))
    process.start()
    try:
        until(path.exists, "the writer's table")
        yield path, process
    finally:
        process.kill()
        process.join(LIMIT_S)
        process.close()


@settings(deadline=None)
@given(some_readings)
def test_a_reading_comes_back_as_it_was(reading: Reading) -> None:
    path = Path(f"/dev/shm/xtune-test-{os.getpid()}")
    writer = ReadingsWriter(path, NAMES, ("drops",), generation=7)
    reader = ReadingsReader(path)
    try:
        writer.publish(1, reading)
        writer.count(0, 2**63)
        assert reader.names == NAMES and reader.generation == 7
        assert reader.read(0) is None and reader.read(1) == reading
        assert reader.counters() == {"drops": 2**63}
    finally:
        writer.close()
        reader.close()
        path.with_name(path.name + ".lock").unlink()


@pytest.mark.parametrize("busy", [True, False], ids=["both", "lock alone"], indirect=True)
def test_no_read_sees_half_of_a_write(
    busy: tuple[Path, BaseProcess], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_alone = "lock alone" in request.node.name
    monkeypatch.setattr(table, "IN_ORDER", lock_alone and table.IN_ORDER)
    if lock_alone:
        monkeypatch.setattr(table, "_crc", lambda content, version: 0)
    reader = ReadingsReader(busy[0])
    last, changes, given_up = [0, 0], 0, 0
    for i in range(READS):
        reading = reader.read(i % 2)
        if reading is None:
            given_up += 1
            continue
        assert reading == numbered(reading.finished)
        assert reading.finished >= last[i % 2]
        changes += reading.finished > last[i % 2]
        last[i % 2] = reading.finished
    reader.close()
    assert changes > 100  # it was written meanwhile
    assert given_up < READS / 2  # and could be read


class Overtaken:
    """The mapping, of which a read is overtaken by a write half way, once."""

    def __init__(self, mapped: mmap.mmap, writer: ReadingsWriter) -> None:
        self.mapped = mapped
        self.writers = [writer]

    def __getitem__(self, place: slice) -> bytes:
        content: bytes = self.mapped[place]
        half = len(content) // 2
        for writer in self.writers:
            writer.publish(0, numbered(2))
            content = content[:half] + self.mapped[place][half:]
        self.writers = []
        return content

    def close(self) -> None:
        self.mapped.close()


def test_a_read_that_a_write_overtakes_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_crc", lambda content, version: 0)
    writer = ReadingsWriter(tmp_path / "t", NAMES)
    reader = ReadingsReader(tmp_path / "t")
    writer.publish(0, numbered(1))
    monkeypatch.setattr(reader, "_map", Overtaken(reader._map, writer))
    assert reader.read(0) == numbered(2)
    reader.close()
    writer.close()


def test_a_killed_writer_is_noticed_and_its_successor_found(
    busy: tuple[Path, BaseProcess],
) -> None:
    path, process = busy
    reader = ReadingsReader(path, stale_ns=5_000_000_000)
    until(lambda: reader.alive() and reader.read(0) is not None, "a first reading")
    with pytest.raises(ReadingsError, match="another process"):
        ReadingsWriter(path, NAMES)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(LIMIT_S)
    until(lambda: not reader.alive(), "a stale table")
    version = reader.version(0)
    assert not reader.reopen() and reader.version(0) == version  # still the dead one's
    writer = ReadingsWriter(path, ("c>d", "e>f", "a>b"))
    writer.publish(2, numbered(5))
    assert not reader.alive()
    assert reader.reopen() and reader.alive()
    assert reader.names == ("c>d", "e>f", "a>b") and reader.read(2) == numbered(5)
    assert reader.read(0) is None
    writer.close()
    assert not reader.alive() and not path.exists()
    reader.close()


def test_age_is_told_by_the_clock_and_a_clock_of_another_boot_is_stale(tmp_path: Path) -> None:
    now = [1_000]
    writer = ReadingsWriter(tmp_path / "t", NAMES, clock=lambda: now[0])
    reader = ReadingsReader(tmp_path / "t", lambda: now[0], stale_ns=100)
    for at, alive in ((1_000, True), (1_099, True), (1_100, False), (999, False)):
        now[0] = at
        assert reader.alive() is alive
    writer.close()
    reader.close()


def entry_of(path: Path, finished: int) -> int:
    """Where the file has the entry whose first field is this."""
    return path.read_bytes().index(struct.pack("=Q", finished)) - 8


def test_an_entry_left_half_written_is_unknown_after_some_tries(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer = ReadingsWriter(path, NAMES)
    reader = ReadingsReader(path)
    writer.publish(0, numbered(0xABCDEF))
    at = entry_of(path, 0xABCDEF)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("=Q", 3))
    assert reader.read(0) is None and reader.torn == 1
    writer.publish(1, numbered(1))
    assert reader.read(1) == numbered(1)
    writer.close()
    reader.close()


def test_content_that_does_not_belong_to_its_lock_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a processor that reorders stores would show it."""
    monkeypatch.setattr(table, "IN_ORDER", False)
    path = tmp_path / "t"
    writer = ReadingsWriter(path, NAMES)
    reader = ReadingsReader(path)
    writer.publish(0, numbered(0xABCDEF))
    at = entry_of(path, 0xABCDEF)
    for place, value in ((0, 4), (16, 9)):
        before = path.read_bytes()[at + place : at + place + 8]
        with path.open("r+b") as file:
            file.seek(at + place)
            file.write(struct.pack("=Q", value))
            file.flush()
            assert reader.read(0) is None
            file.seek(at + place)
            file.write(before)
        assert reader.read(0) == numbered(0xABCDEF)
    assert reader.torn == 2 and RETRIES > 1
    writer.close()
    reader.close()


def test_what_is_no_table_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer = ReadingsWriter(path, NAMES)
    good = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        ReadingsReader(tmp_path / "link")
    writer.close()
    name_at = good.index(b"a>b")
    cases = {
        b"": "no table",
        b"x" * 4096: "no table",
        good[:8] + struct.pack("=I", 3) + good[12:]: "version 3",
        good[:name_at] + b"b>a" + good[name_at + 3 :]: "damaged",
        good[:-128]: "damaged",
    }
    for content, why in cases.items():
        path.write_bytes(content)
        with pytest.raises(ReadingsError, match=why):
            ReadingsReader(path)
    with pytest.raises(ReadingsError, match="one name"):
        ReadingsWriter(path, ("a", "a"))

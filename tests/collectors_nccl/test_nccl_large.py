"""A large log is read by columns: the rows are those of the reader that goes line by line."""

from __future__ import annotations

import gzip
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench._nccl_log import Shape, lines
from tests.collectors_nccl.helpers import as_rows, context
from xtune.collectors import _nccl_fast, _nccl_large
from xtune.collectors._base import Context, Note, Reject, Rows, Source
from xtune.collectors._nccl_comms import Survey
from xtune.collectors._nccl_fast import FastLog
from xtune.collectors._nccl_log import NcclLog, of_interest, survey_line
from xtune.collectors._textlines import Lines


def _said(items: Any) -> tuple[Counter[str], list[Reject], list[Note]]:
    rows: Counter[str] = Counter()
    rejects, notes = [], []
    for item in items:
        if isinstance(item, Rows):
            item.batch.validate(full=True)
            rows.update(repr(sorted(row.items(), key=str)) for row in as_rows(item.batch))
        elif isinstance(item, Reject):
            rejects.append(item)
        else:
            notes.append(item)
    return rows, rejects, notes


def _slow(source: Source, ctx: Context) -> Any:
    survey = Survey()
    for line in Lines(source):
        if of_interest(line):
            survey_line(line, survey)
    log = NcclLog(survey, ctx)
    found = Lines(source)
    for line in found:
        yield from log.line(line)
    yield from log.end()
    yield from found.rejects


def _fast(source: Source, ctx: Context, block_bytes: int) -> Any:
    survey = Survey()
    fast = FastLog(source, ctx, block_bytes=block_bytes)
    for line in fast.survey(survey):
        if of_interest(line):
            survey_line(line, survey)
    yield from fast.read(NcclLog(survey, ctx))


def same(data: bytes, folder: Path, *block_bytes: int, **ctx: Any) -> Counter[str]:
    """Rows of both readers, which must agree; with several sizes of blocks."""
    path = folder / "log"
    path.write_bytes(data)
    source = Source(path, "log")
    rows, rejects, notes = _said(_slow(source, context(**ctx)))
    for size in block_bytes or (1 << 21,):
        fast_rows, fast_rejects, fast_notes = _said(_fast(source, context(**ctx), size))
        assert fast_rows == rows
        assert fast_rejects == rejects
        assert sorted(map(repr, fast_notes)) == sorted(map(repr, notes))
    return rows


def _text(shape: Shape, seed: int, count: int) -> bytes:
    return "".join(f"{line}\n" for line in itertools.islice(lines(shape, seed), count)).encode()


PREFIXES: dict[str, Callable[[int, int], str]] = {
    "none": lambda rank, line: "",
    "srun": lambda rank, line: f"{rank}: ",
    "mpirun": lambda rank, line: f"[1,{rank}]<stdout>:",
    "ray": lambda rank, line: f"(Worker pid={rank + 10}, ip=10.0.0.{rank}) ",
    "torchrun": lambda rank, line: f"[default{rank}]:",
    "nccl": lambda rank, line: f"[2026-10-25 02:{line // 60 % 60:02d}:{line % 60:02d}] ",
    "kubectl": lambda rank, line: f"2026-01-31T12:00:{line % 60:02d}.{line:09d}Z ",
    "zone": lambda rank, line: (
        f"2026-01-31 12:00:{line % 60:02d},{line % 1000:03d}+05:30 {rank}: "
    ),
    "twice": lambda rank, line: f"2026-07-01T12:00:00Z [2026-07-01 14:00:{line % 60:02d}.5] ",
    "clock": lambda rank, line: f"12:{line // 60 % 60:02d}:{line % 60:02d} ",
    "syslog": lambda rank, line: f"Jan 31 12:00:{line % 60:02d} login trainer[77]: ",
    "epoch": lambda rank, line: f"{1769860800 + line}.25 ",
}
SHAPES = {
    "today": Shape(ranks=4, groups=(2,)),
    "old": Shape(ranks=4, groups=(2,), names=False, tuning=0.4),
    "rccl": Shape(ranks=4, groups=(2,), rccl=True, tuning=0),
    "without init": Shape(ranks=2, groups=(), init=False),
    "grouped": Shape(ranks=4, groups=(2, 4), many=5),
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("tz", [None, "Europe/Berlin"])
def test_rows_are_the_same_whatever_stands_before(
    prefix: str, tz: str | None, tmp_path: Path
) -> None:
    shape = Shape(ranks=4, groups=(2,), prefix=PREFIXES[prefix])
    rows = same(_text(shape, 1, 250), tmp_path, 4099, tz=tz, labels={"site": "a"})
    assert rows.total() > 130


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_same_for_each_version(shape: str, tmp_path: Path) -> None:
    data = _text(SHAPES[shape], 2, 600)
    rows = same(data, tmp_path, 1 << 21, 777, job="job", rank=5)
    assert rows.total() == data.count(b"opCount ")


def test_a_block_may_end_anywhere(tmp_path: Path) -> None:
    data = _text(SHAPES["today"], 3, 40)
    for size in range(1, 700, 29):
        same(data, tmp_path, size)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), seed=st.integers(0, 10**6), shape=st.sampled_from(sorted(SHAPES)))
def test_damage_is_read_the_same(
    tmp_path: Path, data: st.DataObject, seed: int, shape: str
) -> None:
    """Bytes changed, lines cut, joined, doubled, lost and without an end."""
    draw = random.Random(seed)
    kept = list(itertools.islice(lines(SHAPES[shape], seed), draw.randrange(20, 120)))
    raw = [line.encode() for line in kept]
    for _ in range(data.draw(st.integers(1, 40))):
        at = draw.randrange(len(raw))
        line = raw[at]
        place = draw.randrange(len(line) + 1)
        match draw.randrange(9):
            case 0:
                raw[at] = line[:place]
            case 1:
                raw[at] = line[place:]
            case 2:
                raw[at] = line[:place] + bytes([draw.randrange(256)]) + line[place + 1 :]
            case 3:
                raw[at : at + 2] = [b"".join(raw[at : at + 2])]
            case 4:
                raw[at] = line[:place] + draw.choice(raw)
            case 5:
                raw.insert(at, line[place:])
                raw.insert(at, line[:place] + draw.choice(raw))
            case 6:
                raw.insert(at, b"comm 0x550000400000 rank 0 nranks 4 cudaDev 0 - Destroy COMPLETE")
            case 7:
                raw.insert(
                    at,
                    b"node-00:4000:4007 [0] NCCL INFO comm 0x550000200000 rank 0 nranks 2"
                    b" cudaDev 0 busId 41000 - Destroy COMPLETE",
                )
            case 8:
                raw[at] = line + b"\r"
        raw = raw or [b""]
    same(b"\n".join(raw), tmp_path, data.draw(st.integers(1, 5000)))


def test_numbers_at_the_edge_of_what_a_column_holds(tmp_path: Path) -> None:
    base = (
        "node:1:1 [0] NCCL INFO {}: opCount {} sendbuff 0x1 recvbuff (nil) count {} datatype {}"
        " op {} root {} comm {} [nranks={}] stream 0x0"
    )
    cases = [
        (name, op_count, count, dtype, op, root, comm, ranks)
        for name in ("AllReduce", "Ab", "ReduceScatter", "A" * 30, "allReduce", "All2All")
        for op_count in ("0", "00", "ffffffffffffffff", "10000000000000000", "1g")
        for count, dtype, op, root, comm, ranks in (
            ("0", "7", "0", "0", "0xa", "2"),
            ("9223372036854775807", "0", "0", "-1", "0xa", "2"),
            ("999999999999999999", "8", "17", "007", "0xa", "2147483647"),
            ("5", "99", "99999999999", "-0", "0x0a", "0"),
            ("18446744073709551616", "7", "0", "2147483648", "0xffffffffffffffff", "4294967296"),
        )
    ]
    data = "".join(base.format(*case) + "\n" for case in cases * 2).encode()
    assert same(data, tmp_path, 1 << 21, 300).total() > 100


def test_a_thread_that_two_prefixes_show(tmp_path: Path) -> None:
    text = _text(Shape(ranks=2, groups=()), 5, 200).decode().splitlines()
    data = "".join(
        ("[12:00:00] " if at % 3 else "") + line + "\n" for at, line in enumerate(text)
    ).encode()
    same(data, tmp_path, 1 << 21, 1500)


def test_compressed_and_cut(tmp_path: Path) -> None:
    data = gzip.compress(_text(SHAPES["today"], 6, 3000))
    same(data, tmp_path)
    # Of a cut stream both keep what can be undone; where exactly it ends may differ by a piece.
    path = tmp_path / "log"
    path.write_bytes(data[: len(data) // 2])
    source = Source(path, "log")
    rows, rejects, _ = _said(_fast(source, context(), 1 << 21))
    slow_rows, slow_rejects, _ = _said(_slow(source, context()))
    assert rows.total() > 500 and abs(rows.total() - slow_rows.total()) < 1000
    assert len(rejects) >= 1 and len(slow_rejects) >= 1


def test_lines_that_are_too_long(tmp_path: Path) -> None:
    text = _text(SHAPES["today"], 7, 60)
    for size in ((4 << 20) - 1, 4 << 20, (4 << 20) + 1, 11 << 20):
        same(text + b"x" * size + b"\n" + text + b"opCount " * (size // 8), tmp_path)


@pytest.mark.parametrize("room", [0, 40_000, 400_000])
def test_a_log_of_which_not_all_is_kept(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nccl_fast, "_KEPT_BYTES", room)
    text = _text(SHAPES["grouped"], 9, 1200)
    cut = text[: len(text) // 2] + text[len(text) // 2 + 37 :]
    same(cut, tmp_path, 3001)
    same(gzip.compress(cut), tmp_path, 3001)


def test_more_writers_than_there_is_room_for(tmp_path: Path) -> None:
    line = (
        "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0"
        " comm {:#x} [nranks=2] stream 0x5"
    )
    data = "".join(
        f"node:{pid}:{pid} [0] NCCL INFO {line.format(pid % 100 + 1)}\n" for pid in range(9000)
    )
    assert same(data.encode(), tmp_path).total() == 9000


def test_a_large_log_is_read_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xtune.collectors.nccl_debug import COLLECTOR

    path = tmp_path / "log"
    path.write_bytes(_text(SHAPES["today"], 8, 3000) + b"step: 1  loss: 2.5  grad_norm: 1.0\n")
    small = _said(COLLECTOR.read(Source(path, "log"), context()))
    monkeypatch.setattr(_nccl_large, "LARGE_BYTES", 1)
    large = _said(COLLECTOR.read(Source(path, "log"), context()))
    assert large[0] == small[0] and large[1:] == small[1:]

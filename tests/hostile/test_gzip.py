"""gzip as gzip itself undoes it, and within limits."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.collectors import Source
from xtune.collectors import _gzip as limits
from xtune.collectors._gzip import GzipBombError, inflated

LINE = b"node-1:77:77 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7\n"


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=4), st.integers(0, 30))
def test_members_and_padding_as_gzip_reads_them(members: list[bytes], zeros: int) -> None:
    packed = b"".join(gzip.compress(member) for member in members) + bytes(zeros)
    for begun in (0, 1, 2, len(packed)):
        stream = io.BytesIO(packed)
        assert inflated(stream, stream.read(begun)).read() == gzip.decompress(packed)


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=3000), st.data())
def test_a_cut_or_damaged_stream_raises_and_gives_what_was_before(
    content: bytes, data: st.DataObject
) -> None:
    packed = gzip.compress(content)
    cut = data.draw(st.integers(2, len(packed) - 1))
    found = b""
    with pytest.raises(EOFError), inflated(io.BytesIO(packed[:cut])) as stream:
        while part := stream.read1(100):
            found += part
    assert content.startswith(found)
    wrong = packed[:-8] + bytes(b ^ 1 for b in packed[-8:-4]) + packed[-4:]
    with pytest.raises(zlib.error):
        inflated(io.BytesIO(wrong)).read()
    with pytest.raises(gzip.BadGzipFile):
        inflated(io.BytesIO(packed + b"other")).read()


def test_lines_of_a_packed_file(tmp_path: Path) -> None:
    noise = os.urandom(100_000).hex().encode()
    lines = [noise[at : at + 77] + b"\n" for at in range(0, len(noise), 77)]
    (tmp_path / "a").write_bytes(gzip.compress(b"".join(lines)))
    with Source(tmp_path / "a", "a").open() as stream:
        assert stream.readlines() == lines


def test_limits_of_ratio_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "MAX_BYTES", 100 << 20)
    # One line over and over is a log; nothing but zeros is none.
    log = LINE * (64 << 20 >> 6)
    assert len(inflated(io.BytesIO(gzip.compress(log))).read()) == len(log)
    with pytest.raises(GzipBombError, match="500 times"):
        inflated(io.BytesIO(gzip.compress(bytes(64 << 20)))).read()
    with pytest.raises(GzipBombError, match="GiB"):
        inflated(io.BytesIO(gzip.compress(log) * 2)).read()

"""Hashes of content against hashlib and gzip themselves."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.collectors._base import GZIP_MAGIC, HEAD_BYTES
from xtune.ingest._content import (
    CHUNK_BYTES,
    MARKS,
    SIGN_BYTES,
    chunks,
    first_digest,
    is_beginning,
    measure,
    measure_tree,
    newest_mtime_ns,
    read_head,
)

TEXT = st.binary(max_size=3000)


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(0, 40))
def test_gzip_members_and_padding_as_gzip_reads_them(members: list[bytes], zeros: int) -> None:
    packed = b"".join(gzip.compress(member) for member in members) + bytes(zeros)
    assert gzip.decompress(packed) == b"".join(members)
    assert b"".join(chunks(io.BytesIO(packed))) == b"".join(members)


@given(TEXT, st.integers(0, 3000))
def test_a_cut_gzip_gives_a_beginning(content: bytes, cut: int) -> None:
    packed = gzip.compress(content)
    found = b"".join(chunks(io.BytesIO(packed[: 2 + cut])))
    assert content.startswith(found) or cut == 0


@given(st.binary(max_size=300))
def test_any_bytes_have_content(content: bytes) -> None:
    for start in (b"", b"\x1f\x8b", b"\x1f\x8b\x08\x00"):
        found = b"".join(chunks(io.BytesIO(start + content)))
        assert start or content[:2] == GZIP_MAGIC or found == content


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
@pytest.mark.parametrize("noisy", [False, True])
def test_large_files_in_chunks(tmp_path: Path, size: int, noisy: bool) -> None:
    content = os.urandom(size) if noisy else b"x" * size
    for name, stored in (("plain", content), ("packed", gzip.compress(content, 1))):
        path = tmp_path / name
        path.write_bytes(stored)
        cuts = [1, SIGN_BYTES, CHUNK_BYTES - 1, CHUNK_BYTES, size - 1, size, size + 1]
        found = measure(path, lambda _, cuts=cuts: cuts)  # type: ignore[misc]
        assert (found.size, found.digest) == (size, hashlib.sha256(content).hexdigest())
        assert found.sign == hashlib.sha256(content[:SIGN_BYTES]).hexdigest()
        marks = [hashlib.sha256(content[:n]).hexdigest()[:12] for n in MARKS if n <= size]
        assert list(found.marks) == marks
        assert found.beginnings == {
            cut: hashlib.sha256(content[:cut]).hexdigest() for cut in cuts if cut <= size
        }
        assert read_head(path) == content[:HEAD_BYTES]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [10, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_a_beginning_as_bytes_tell_it(tmp_path: Path, size: int, packed: bool) -> None:
    content = os.urandom(size)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(gzip.compress(content, 1) if packed else content)
    changed = bytes([content[-1] ^ 1])
    for other in (content, content + b"x", content[:-1], content[:-1] + changed, b"x" + content):
        two.write_bytes(other if packed else gzip.compress(other, 1))
        assert is_beginning(one, two) == other.startswith(content)
        expected = hashlib.sha256(other[: size - 1]).hexdigest()
        assert first_digest(two, size - 1) == expected
        assert first_digest(two, len(other) + 1) == ""


def test_short_files_have_no_sign(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * (SIGN_BYTES - 1))
    assert measure(path, lambda sign: [] if sign == "" else [1]).sign == ""


def test_a_tree_is_its_names_and_contents(tmp_path: Path) -> None:
    def tree(name: str, **files: str) -> Path:
        for path, text in files.items():
            place = tmp_path / name / path.replace("__", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path / name

    first = measure_tree(tree("a", x="1", sub__y="2"))
    assert first == measure_tree(tree("b", sub__y="2", x="1"))
    assert first.size == 2
    others = [
        tree("c", x="1", sub__y="3"),
        tree("d", x="1", sub__z="2"),
        tree("e", x="1", y="2"),
        tree("f", x="12", sub__y=""),
        tree("g", x="1"),
    ]
    digests = {measure_tree(path).digest for path in others}
    assert len(digests | {first.digest}) == 6


def test_a_tree_with_loops_pipes_and_ways_out_ends(tmp_path: Path) -> None:
    root = tmp_path / "root"
    port = root / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400")
    plain = measure_tree(root)
    (port.parent / "up").symlink_to(root)
    (port.parents[1] / "device").symlink_to("/")
    (port / "self").symlink_to(port / "self")
    os.mkfifo(port / "fifo")
    assert measure_tree(root) == plain
    (root / "kernel").mkdir()
    (root / "kernel" / "uptime").write_text("7")  # of a whole /sys, only the adapters are read
    assert measure_tree(root) == plain


def test_newest_time_of_a_tree(tmp_path: Path) -> None:
    for name, ns in (("a", 5), ("b", 9), ("c", 7)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(ns, ns))
    assert newest_mtime_ns(tmp_path) == 9
    assert newest_mtime_ns(tmp_path / "a") == 5

"""Reports and snapshots, against bytes written out by hand and MACs made by another route."""

from __future__ import annotations

import hashlib
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probe.helpers import KEY
from xtune.policies.decider.packet import (
    MOST_BLOCKS,
    MOST_BODY_BYTES,
    MOST_BYTES,
    Entry,
    Record,
    Report,
    Snapshot,
    Wire,
    entry_bytes,
    pack_body,
    record_bytes,
    room_for_records,
    unpack_body,
)
from xtune.policies.probe.packet import Codec, Drop, Packet, ends

WIRE = Wire(KEY)
OUT = ends(("10.0.0.1", 40000), ("10.0.0.9", 4791))
BACK = ends(("10.0.0.9", 4791), ("10.0.0.1", 40000))

names = st.text("ab>.-0é", min_size=1, max_size=60)
words = st.integers(0, 2**64 - 1)
ages = st.integers(0, 2**64 - 2)
shares = st.none() | st.floats(allow_nan=False)
some_records = st.builds(
    Record,
    path=st.integers(0, 65535),
    link=names,
    finished=st.integers(0, 2**32 - 1),
    history=words,
    finished_age_ns=ages,
    answered_age_ns=st.none() | ages,
    occupancy=shares,
    error_rate=shares,
    margin=shares,
    marks=shares,
)
some_reports = st.builds(
    Report,
    sequence=st.integers(0, 2**32 - 1),
    stamp_ns=words,
    born_ns=words,
    epoch=words,
    host=names,
    records=st.lists(some_records, max_size=3).map(tuple),
)
some_entries = st.builds(
    Entry,
    link=names,
    weight=st.floats(0.0, allow_nan=False),
    age_us=st.none() | st.integers(0, 2**32 - 2),
    reporters=st.integers(0, 255),
)
some_snapshots = st.builds(
    Snapshot,
    sequence=st.integers(0, 2**32 - 1),
    stamp_ns=words,
    epoch=words,
    version=words,
    echo_ns=words,
    held_us=st.integers(0, 2**32 - 1),
    block=st.integers(0, MOST_BLOCKS - 1),
    part=st.integers(0, 65535),
    parts=st.integers(0, 65535),
    body=st.lists(some_entries, max_size=5).map(pack_body),
) | st.just(Snapshot(1, 2, 3, 4, 5))


def sealed(content: bytes, between: bytes = OUT, key: bytes = KEY) -> bytes:
    """The MAC as RFC 7693 has it, by keyword arguments of the library and nothing of ours."""
    secret = hashlib.blake2s(key, person=b"xtdecide").digest()
    return content + hashlib.blake2s(content + between, key=secret, digest_size=8).digest()


def headed(content: bytes, magic: bytes = b"xr") -> bytes:
    length = 20 + len(content) + 8
    return sealed(magic + struct.pack("!BBHHIQ", 1, 0, length, 0, 1, 2) + content)


def test_bytes_of_a_report_written_out() -> None:
    record = Record(3, "a>b", 0x01020304, 5, 1000, None, 0.5, None, 0.5, 1.0)
    report = Report(0x0A0B0C0D, 0x1112131415161718, 7, 9, "h0", (record,))
    nan, half, one = "7ff8000000000000", "3fe0000000000000", "3ff0000000000000"
    whole = bytes.fromhex(
        "7872" "01" "00" "0072" "0000" "0a0b0c0d" "1112131415161718"
        "0000000000000007" "0000000000000009" "01" "02" "6830"
        "0003" "01020304" "0000000000000005" "00000000000003e8" "ffffffffffffffff"
        + half + nan + half + one + "03" "613e62"
    )  # fmt: skip
    assert WIRE.pack_report(report, OUT) == sealed(whole)


def test_bytes_of_a_snapshot_written_out() -> None:
    body = pack_body([Entry("a>b", 0.5, 7, 2), Entry("c", math.inf, None, 0)])
    assert body == bytes.fromhex(
        "0203613e6201633fe00000000000007ff000000000000000000007ffffffff0200"
    )
    snapshot = Snapshot(1, 2, 3, 4, 5, 6, 7, 8, 9, body)
    content = struct.pack("!QQQIHHH", 3, 4, 5, 6, 7, 8, 9) + body
    assert WIRE.pack_snapshot(snapshot, BACK) == sealed(
        b"xs" + struct.pack("!BBHHIQ", 1, 0, 20 + len(content) + 8, 0, 1, 2) + content, BACK
    )


@settings(deadline=None)
@given(some_reports)
def test_a_report_comes_back_as_it_was(report: Report) -> None:
    assert WIRE.unpack_report(WIRE.pack_report(report, OUT), OUT) == report


@settings(deadline=None)
@given(some_snapshots)
def test_a_snapshot_comes_back_as_it_was(snapshot: Snapshot) -> None:
    assert WIRE.unpack_snapshot(WIRE.pack_snapshot(snapshot, BACK), BACK) == snapshot


@settings(deadline=None)
@given(st.lists(some_entries, max_size=20))
def test_a_block_comes_back_as_it_was(entries: list[Entry]) -> None:
    body = pack_body(entries)
    assert unpack_body(body) == entries
    assert len(body) == 1 + sum(entry_bytes(entry.link) for entry in entries)


def test_not_known_comes_back_as_not_known() -> None:
    (found,) = unpack_body(pack_body([Entry("a", math.nan, 3, 1)])) or []
    assert found.weight != found.weight and found[2:] == (3, 1)
    bare = Record(0, "a", 1, 0, 0)
    report = WIRE.unpack_report(WIRE.pack_report(Report(1, 2, 3, 4, "h", (bare,)), OUT), OUT)
    assert isinstance(report, Report) and report.records[0][5:] == (None,) * 5


@settings(deadline=None, max_examples=50)
@given(some_reports, st.data())
def test_a_report_with_a_flipped_bit_is_refused(report: Report, data: st.DataObject) -> None:
    payload = bytearray(WIRE.pack_report(report, OUT))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    assert isinstance(WIRE.unpack_report(bytes(payload), OUT), Drop)


@settings(deadline=None, max_examples=50)
@given(some_snapshots, st.data())
def test_a_snapshot_with_a_flipped_bit_is_refused(snapshot: Snapshot, data: st.DataObject) -> None:
    payload = bytearray(WIRE.pack_snapshot(snapshot, BACK))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    assert isinstance(WIRE.unpack_snapshot(bytes(payload), BACK), Drop)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_never_raises_and_is_never_taken(noise: bytes) -> None:
    for payload in (noise, b"xr\x01\x00" + noise, b"xs\x01\x00" + noise):
        assert isinstance(WIRE.unpack_report(payload, OUT), Drop)
        assert isinstance(WIRE.unpack_snapshot(payload, OUT), Drop)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_authentic_nonsense_never_raises_and_is_never_a_wrong_record(content: bytes) -> None:
    """Who has the key and another program: what is taken packs to as many bytes, or the same.

    (A NaN has many forms, so a report's bytes may differ.)
    """
    payload = headed(content)
    report = WIRE.unpack_report(payload, OUT)
    assert report is Drop.FOREIGN or (
        isinstance(report, Report) and len(WIRE.pack_report(report, OUT)) == len(payload)
    )
    payload = headed(content, b"xs")
    snapshot = WIRE.unpack_snapshot(payload, OUT)
    assert snapshot is Drop.FOREIGN or (
        isinstance(snapshot, Snapshot) and WIRE.pack_snapshot(snapshot, OUT) == payload
    )


@settings(deadline=None)
@given(some_reports, st.data())
def test_an_authentic_report_that_is_cut_is_refused(report: Report, data: st.DataObject) -> None:
    content = WIRE.pack_report(report, OUT)[20:-8]
    cut = data.draw(st.integers(0, len(content) - 1))
    assert WIRE.unpack_report(headed(content[:cut]), OUT) is Drop.FOREIGN
    assert WIRE.unpack_report(headed(content + b"\0"), OUT) is Drop.FOREIGN


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x01\x05a",
        pack_body([Entry("a", 0.5, 1, 1)]) + b"\0",
        pack_body([Entry("a", -0.5, 1, 1)]),
        pack_body([Entry("a", 0.5, 1, 1)]).replace(b"a", b"\xff"),
        b"\x01\x00" + bytes(13),
    ],
)
def test_a_block_that_is_none_is_refused(body: bytes) -> None:
    assert unpack_body(body) is None
    content = struct.pack("!QQQIHHH", 3, 4, 5, 6, 7, 0, 1) + body
    assert WIRE.unpack_snapshot(headed(content, b"xs"), OUT) is Drop.FOREIGN


def test_each_drop_by_its_name() -> None:
    report = WIRE.pack_report(Report(1, 2, 3, 4, "h"), OUT)
    snapshot = WIRE.pack_snapshot(Snapshot(1, 2, 3, 4, 5), OUT)
    probe = Codec(KEY).pack(Packet(False, 1, 2, 3), OUT)
    cases = [
        (report[:-1], Drop.TRUNCATED),
        (b"", Drop.TRUNCATED),
        (report + b"x", Drop.FOREIGN),
        (probe, Drop.FOREIGN),
        (report[:2] + b"\x02" + report[3:], Drop.OTHER_VERSION),
        (Wire(b"y" * 16).pack_report(Report(1, 2, 3, 4, "h"), OUT), Drop.FORGED),
        (WIRE.pack_report(Report(1, 2, 3, 4, "h"), BACK), Drop.FORGED),
        (snapshot, Drop.MISDIRECTED),
    ]
    assert [WIRE.unpack_report(payload, OUT) for payload, _ in cases] == [d for _, d in cases]
    assert WIRE.unpack_snapshot(report, OUT) is Drop.MISDIRECTED


@settings(deadline=None)
@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_what_has_room_by_its_count_fits_a_datagram_and_no_byte_more(host: str, link: str) -> None:
    record = Record(0, link, 1, 0, 0)
    count = room_for_records(host) // record_bytes(record)
    full = WIRE.pack_report(Report(1, 2, 3, 4, host, (record,) * count), OUT)
    assert MOST_BYTES - record_bytes(record) < len(full) <= MOST_BYTES
    with pytest.raises(ValueError, match="allowed"):
        WIRE.pack_report(Report(1, 2, 3, 4, host, (record,) * (count + 1)), OUT)
    entries = [Entry(link)] * ((MOST_BODY_BYTES - 1) // entry_bytes(link))
    body = pack_body(entries)
    full = WIRE.pack_snapshot(Snapshot(1, 2, 3, 4, 5, 0, 0, 0, 1, body), OUT)
    assert MOST_BYTES - entry_bytes(link) < len(full) <= MOST_BYTES


def test_names_too_long_are_refused_where_they_are_packed() -> None:
    for name in ("", "ä" * 128):
        with pytest.raises(ValueError, match="bytes"):
            WIRE.pack_report(Report(1, 2, 3, 4, name), OUT)

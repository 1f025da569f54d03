"""The packet on the wire, what is refused and under which name."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from xtune.policies.probe.packet import (
    KEY_VARIABLE,
    WINDOW,
    Codec,
    Drop,
    KeyFileError,
    Packet,
    ReplayWindow,
    Signal,
    ends,
    load_key,
)

KEY = b"k" * 16
OUT = ends(("10.0.0.1", 40000), ("10.0.0.2", 4790))
BACK = ends(("10.0.0.2", 4790), ("10.0.0.1", 40000))
CODEC = Codec(KEY)

shares = st.none() | st.floats(0, 1)
signals = st.builds(
    Signal, occupancy=shares, error_rate=shares, margin=st.none() | st.floats(-327.67, 327.67)
)
packets = st.builds(
    Packet,
    answer=st.booleans(),
    sequence=st.integers(0, 2**32 - 1),
    path=st.integers(0, 2**32 - 1),
    stamp_ns=st.integers(0, 2**64 - 1),
    signal=signals,
    ecn=st.integers(0, 3),
).map(lambda packet: packet if packet.answer else packet._replace(ecn=0))


def by_hand(fields: bytes, key: bytes = KEY, between: bytes = OUT) -> bytes:
    """The MAC, by the standard library alone."""
    secret = hashlib.blake2s(key, person=b"xtprobe").digest()
    return hashlib.blake2s(fields + between, key=secret, digest_size=8).digest()


def test_bytes_of_one_packet_written_out() -> None:
    packet = Packet(True, 0x01020304, 0x0A0B0C0D, 0x1112131415161718, Signal(0.5, None, -1.25))
    fields = bytes.fromhex(
        "7870" "01" "01" "01020304" "0a0b0c0d" "1112131415161718" "7fff" "ffffffff" "ff83"
    )  # fmt: skip
    between = bytes([10, 0, 0, 1, 0x9C, 0x40, 10, 0, 0, 2, 0x12, 0xB6])
    assert between == OUT
    assert CODEC.pack(packet, OUT) == fields + by_hand(fields, between=between)
    assert len(CODEC.pack(packet, OUT)) == 36


@settings(deadline=None)
@given(packets)
def test_what_is_packed_comes_back_to_the_precision_of_its_field(packet: Packet) -> None:
    found = CODEC.unpack(CODEC.pack(packet, OUT), OUT, answer=packet.answer)
    assert isinstance(found, Packet)
    assert (*found[:4], found.ecn) == (*packet[:4], packet.ecn)
    for ours, theirs, step in zip(
        found.signal[:3], packet.signal[:3], (1 / 65534, 1 / (2**32 - 2), 0.01), strict=True
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert abs(ours - theirs) <= step / 2 * (1 + 1e-9)


@pytest.mark.parametrize("bad", [-0.01, 1.01, math.nan, math.inf])
def test_a_share_that_is_none_is_unknown_and_not_zero(bad: float) -> None:
    packet = Packet(True, 0, 0, 0, Signal(bad, bad, None))
    found = CODEC.unpack(CODEC.pack(packet, OUT), OUT, answer=True)
    assert isinstance(found, Packet) and found.signal == Signal(None, None, None)


@pytest.mark.parametrize("ecn", range(4))
def test_an_answer_tells_the_ecn_field_of_its_request_and_a_request_has_none(ecn: int) -> None:
    payload = CODEC.pack(Packet(True, 1, 2, 3, ecn=ecn), OUT)
    assert payload[3] == 1 | ecn << 1
    found = CODEC.unpack(payload, OUT, answer=True)
    assert isinstance(found, Packet) and found.ecn == ecn
    request = CODEC.unpack(CODEC.pack(Packet(False, 1, 2, 3, ecn=ecn), OUT), OUT, answer=False)
    assert (request is Drop.MISDIRECTED) == (ecn > 0)


def test_flags_that_nobody_sets_are_refused() -> None:
    payload = CODEC.pack(Packet(True, 1, 2, 3, ecn=4), OUT)
    assert CODEC.unpack(payload, OUT, answer=True) is Drop.MISDIRECTED


@pytest.mark.parametrize("bad", [-327.68, 327.68, math.nan, -math.inf])
def test_a_margin_beyond_its_field_is_unknown(bad: float) -> None:
    packet = Packet(True, 0, 0, 0, Signal(None, None, bad))
    found = CODEC.unpack(CODEC.pack(packet, OUT), OUT, answer=True)
    assert isinstance(found, Packet) and found.signal.margin is None


@settings(deadline=None)
@given(packets, st.integers(0, 36 * 8 - 1))
def test_any_flipped_bit_is_dropped(packet: Packet, bit: int) -> None:
    payload = bytearray(CODEC.pack(packet, OUT))
    payload[bit // 8] ^= 1 << bit % 8
    found = CODEC.unpack(bytes(payload), OUT, answer=packet.answer)
    expected = Drop.FOREIGN if bit < 16 else Drop.OTHER_VERSION if bit < 24 else Drop.FORGED
    assert found is expected


@settings(deadline=None)
@given(packets, st.integers(0, 60))
def test_other_lengths_are_dropped(packet: Packet, length: int) -> None:
    assume(length != 36)
    payload = (CODEC.pack(packet, OUT) * 2)[:length]
    found = CODEC.unpack(payload, OUT, answer=packet.answer)
    assert found is (Drop.TRUNCATED if length < 36 else Drop.FOREIGN)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_noise_never_raises_and_is_never_a_packet(noise: bytes) -> None:
    assert isinstance(CODEC.unpack(noise, OUT, answer=True), Drop)


def test_another_key_another_way_or_the_wrong_direction_is_dropped() -> None:
    packet = Packet(False, 1, 2, 3)
    payload = CODEC.pack(packet, OUT)
    assert Codec(b"x" * 16).unpack(payload, OUT, answer=False) is Drop.FORGED
    assert CODEC.unpack(payload, BACK, answer=False) is Drop.FORGED
    assert CODEC.unpack(payload, OUT, answer=True) is Drop.MISDIRECTED
    odd = payload[:3] + b"\x02" + payload[4:28]
    assert CODEC.unpack(odd + by_hand(odd), OUT, answer=True) is Drop.MISDIRECTED


@settings(deadline=None)
@example([(1, 0), (0, 1), (2, 2), (1, 0)])
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=80))
def test_no_packet_is_taken_twice(arrivals: list[tuple[int, int]]) -> None:
    window, taken = ReplayWindow(), set()
    for sequence, stamp in arrivals:
        if window.take(sequence, stamp):
            assert (sequence, stamp) not in taken
            taken.add((sequence, stamp))


@settings(deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_an_order_that_is_a_little_wrong_loses_nothing(data: st.DataObject, first: int) -> None:
    """Sorted by a key at most half a window away, so that none is overtaken by a whole one."""
    count = 150
    late = data.draw(st.lists(st.integers(0, WINDOW // 2), min_size=count, max_size=count))
    order = sorted(range(count), key=lambda i: i + late[i])
    order.remove(0)
    window = ReplayWindow()
    assert window.take(first, 0)
    for i in order:
        assert window.take((first + i) % 2**32, i)
    assert not any(window.take((first + i) % 2**32, i) for i in order)


def test_a_sender_that_began_anew_is_heard_and_its_old_packets_are_not() -> None:
    window = ReplayWindow()
    assert all(window.take(sequence, 100 + sequence) for sequence in range(1000, 1010))
    assert window.take(5, 5000)
    assert not window.take(1009, 1109) and not window.take(1010, 1110)
    assert window.take(6, 5001) and not window.take(4, 4999)


def test_what_a_wide_gap_left_behind_is_not_taken() -> None:
    window = ReplayWindow()
    assert window.take(0, 0) and window.take(WINDOW + 10, 10)
    assert not window.take(WINDOW + 9, 9)


def test_the_key_is_read_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"s" * 16 + b"\n")
    file.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_key(file)
    file.chmod(0o600)
    assert load_key(file, {KEY_VARIABLE: "00" * 16}) == b"s" * 16
    assert load_key(None, {KEY_VARIABLE: "0f" * 16}) == b"\x0f" * 16
    for text in (None, "", "zz" * 16, "00" * 15):
        with pytest.raises(KeyFileError):
            load_key(None, {} if text is None else {KEY_VARIABLE: text})
    file.write_bytes(b"short")
    with pytest.raises(KeyFileError, match="5 bytes"):
        load_key(file)


def test_the_ipv4_packet_is_64_bytes_long() -> None:
    try:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    except PermissionError:
        pytest.skip("needs the right to read packets from a device")
    with tap, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        tap.bind(("lo", 0x0800))
        tap.settimeout(20)
        sender.bind(("127.0.0.1", 0))
        sender.connect(("127.0.0.1", 9))
        port = sender.getsockname()[1]
        payload = CODEC.pack(Packet(False, os.getpid(), 0, 0), OUT)
        sender.send(payload)
        while True:
            packet = tap.recv(2048)
            if packet[9] == socket.IPPROTO_UDP and packet[20:22] == struct.pack("!H", port):
                break
    assert struct.unpack_from("!H", packet, 2)[0] == len(packet) == 64
    assert packet[28:] == payload

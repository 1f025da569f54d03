"""The probe packet: 36 bytes of payload, 64 bytes as an IPv4 packet (20 IPv4, 8 UDP).

Network byte order: magic 2, version 1, flags 1, sequence 4, path 4, time 8, occupancy 2, errors 4,
margin 2, MAC 8. Bit 0 of the flags is an answer's; bits 1 and 2 of an answer are the ECN field
that its request arrived with. The MAC is keyed BLAKE2s (RFC 7693) over the fields before it and
over both ends' addresses and ports, so that a packet recorded elsewhere, or sent under another's
address, is a forgery. Each measured field has a code for unknown, which is also what a value
becomes that the field cannot hold.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import math
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .._files import foreign, open_regular  # noqa: TID252 - exported under another name

MAGIC = 0x7870  # "xp"
VERSION = 1
MAC_BYTES = 8
LEAST_KEY_BYTES = 16
KEY_VARIABLE = "XTUNE_PROBE_KEY"  # hexadecimal
WINDOW = 64  # sequence numbers behind the newest that may still arrive, once each
SEQUENCES = 1 << 32
RECEIVE_BUFFER = 1 << 22  # what waits while a process is not scheduled; the kernel may allow less
NOT_ECN, ECN_CAPABLE, CONGESTED = 0, 2, 3  # Not-ECT, ECT(0) and CE of RFC 3168
ECN_MASK = 3  # of the type-of-service byte
_ALL_SEEN = (1 << WINDOW) - 1

_FIELDS = struct.Struct("!HBBIIQHIh")
_ENDS = struct.Struct("!4sH4sH")
_PERSON = b"xtprobe"  # the same secret serves nothing else
PAYLOAD_BYTES = _FIELDS.size + MAC_BYTES

_SHARE_TOP, _SHARE_UNKNOWN = 0xFFFE, 0xFFFF
_RATE_TOP, _RATE_UNKNOWN = 0xFFFFFFFE, 0xFFFFFFFF
_MARGIN_TOP, _MARGIN_UNKNOWN = 0x7FFF, -0x8000
_MARGIN_STEPS = 100  # a unit: two decimals

Address: TypeAlias = tuple[str, int]


class KeyFileError(ValueError):
    """There is no usable key; the text says why."""


class Drop(enum.StrEnum):
    """Why a packet was not taken."""

    TRUNCATED = "truncated"
    FOREIGN = "foreign"  # not ours: another length or magic
    OTHER_VERSION = "other_version"
    FORGED = "forged"
    MISDIRECTED = "misdirected"  # a request where an answer belongs, or the reverse
    REPLAYED = "replayed"


class Signal(NamedTuple):
    """What the sources at one end know; None is unknown.

    Attributes:
        occupancy: Of the buffer, 0..1, in steps of 1/65534 on the wire.
        error_rate: Errors a packet, 0..1, in steps of 2.3e-10 on the wire.
        margin: Of the signal, -327.67..327.67 in the source's unit, two decimals on the wire.
        marks: Share of packets with a congestion mark, 0..1; not sent, the packet has no room.
    """

    occupancy: float | None = None
    error_rate: float | None = None
    margin: float | None = None
    marks: float | None = None


UNKNOWN = Signal()


class Packet(NamedTuple):
    """One probe or its answer.

    Attributes:
        answer: An answer, not a request.
        sequence: Of the request on its path, modulo 2**32.
        path: Number of the path at the sender.
        stamp_ns: When the request was sent, wall clock, never the same twice and never going back.
        signal: From the end that sends the packet.
        ecn: Of an answer: the ECN field (RFC 3168) that the request arrived with.
    """

    answer: bool
    sequence: int
    path: int
    stamp_ns: int
    signal: Signal = UNKNOWN
    ecn: int = 0


def load_key(
    path: str | Path | None = None, environment: Mapping[str, str] | None = None
) -> bytes:
    """The secret that all ends share, from a file that none but its owner may read, or a variable.

    Args:
        path: The file; its bytes are the key, but for one newline at the end.
        environment: Where ``XTUNE_PROBE_KEY`` is looked up without a file; the process's own by
            default.

    Returns:
        The key.

    Raises:
        KeyFileError: None, too short, or a file that others own or may read.
        OSError: The file cannot be read.
    """
    if path is not None:
        descriptor, status = open_regular(path, os.O_RDONLY)
        with open(descriptor, "rb") as file:
            if foreign(status):
                raise KeyFileError(f"{path}: neither this user's nor root's")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise KeyFileError(f"{path}: others may read it: chmod 600 it and change the key")
            key = file.read().removesuffix(b"\n")
    else:
        text = (os.environ if environment is None else environment).get(KEY_VARIABLE)
        if not text:
            raise KeyFileError(f"no key: give a key file, or hexadecimal digits in {KEY_VARIABLE}")
        try:
            key = bytes.fromhex(text)
        except ValueError as error:
            raise KeyFileError(f"{KEY_VARIABLE} is not hexadecimal") from error
    if len(key) < LEAST_KEY_BYTES:
        raise KeyFileError(f"the key has {len(key)} bytes, {LEAST_KEY_BYTES} are needed")
    return key


def ends(src: Address, dst: Address) -> bytes:
    """Both ends of one direction as the MAC takes them.

    Args:
        src: Dotted IPv4 address and port of the sender.
        dst: Those of the receiver.
    """
    return _ENDS.pack(socket.inet_aton(src[0]), src[1], socket.inet_aton(dst[0]), dst[1])


class Seal:
    """The MAC of one kind of packet.

    Args:
        key: The shared secret, of any length.
        person: The kind, 8 bytes at most: a MAC of one kind holds for no other.
    """

    def __init__(self, key: bytes, person: bytes) -> None:
        secret = hashlib.blake2s(key, person=person).digest()
        self._keyed = hashlib.blake2s(key=secret, digest_size=MAC_BYTES)

    def mac(self, content: bytes, between: bytes) -> bytes:
        """The MAC over content and ends.

        Args:
            content: All that is sent, but for the MAC.
            between: `ends` of the direction it is sent in.
        """
        keyed = self._keyed.copy()
        keyed.update(content + between)
        return keyed.digest()

    def holds(self, mac: bytes, content: bytes, between: bytes) -> bool:
        """Whether a MAC is the right one."""
        return hmac.compare_digest(self.mac(content, between), mac)


class Codec:
    """Packs and unpacks packets under one key.

    Args:
        key: The shared secret, of any length.
    """

    def __init__(self, key: bytes) -> None:
        self._seal = Seal(key, _PERSON)

    def pack(self, packet: Packet, between: bytes) -> bytes:
        """The payload of a packet.

        Args:
            packet: The packet.
            between: `ends` of the direction it is sent in.
        """
        signal = packet.signal
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            packet.answer | packet.ecn << 1,
            packet.sequence,
            packet.path,
            packet.stamp_ns,
            _code(signal.occupancy, _SHARE_TOP, _SHARE_UNKNOWN),
            _code(signal.error_rate, _RATE_TOP, _RATE_UNKNOWN),
            _margin_code(signal.margin),
        )
        return fields + self._seal.mac(fields, between)

    def unpack(self, payload: bytes, between: bytes, *, answer: bool) -> Packet | Drop:
        """The packet, or why it is none of ours; never raises.

        Args:
            payload: What arrived.
            between: `ends` of the direction it came in.
            answer: Whether an answer is expected, else a request.
        """
        if len(payload) != PAYLOAD_BYTES:
            return Drop.TRUNCATED if len(payload) < PAYLOAD_BYTES else Drop.FOREIGN
        (magic, version, flags, sequence, path, stamp_ns, share, rate, margin) = (
            _FIELDS.unpack_from(payload)
        )
        if magic != MAGIC:
            return Drop.FOREIGN
        if version != VERSION:
            return Drop.OTHER_VERSION
        fields = payload[: _FIELDS.size]
        if not self._seal.holds(payload[_FIELDS.size :], fields, between):
            return Drop.FORGED
        ecn = flags >> 1
        if flags & 1 != answer or ecn > (CONGESTED if answer else 0):
            return Drop.MISDIRECTED
        signal = Signal(
            None if share == _SHARE_UNKNOWN else share / _SHARE_TOP,
            None if rate == _RATE_UNKNOWN else rate / _RATE_TOP,
            None if margin == _MARGIN_UNKNOWN else margin / _MARGIN_STEPS,
        )
        return Packet(answer, sequence, path, stamp_ns, signal, ecn)


class ReplayWindow:
    """Takes each packet of one path and peer once, in an order that may be a little wrong.

    A stamp newer than all before is a packet never seen, whatever its sequence: so a sender that
    began anew is heard at once. An older one must be among the last `WINDOW` sequence numbers,
    and new there (as in RFC 4303, 3.4.3).
    """

    __slots__ = ("_newest", "_seen", "_since_ns", "_stamp_ns")

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0  # bit n: the newest minus n was taken
        self._stamp_ns = -1
        self._since_ns = -1  # the window's first stamp: numbers of before may come again after it

    def take(self, sequence: int, stamp_ns: int) -> bool:
        """Whether this packet is new; it counts as seen from then on.

        Args:
            sequence: Its sequence number, modulo 2**32.
            stamp_ns: Its time.
        """
        if stamp_ns > self._stamp_ns:
            ahead = (sequence - self._newest) % SEQUENCES
            if self._newest >= 0 and 0 < ahead < WINDOW:
                self._seen = (self._seen << ahead | 1) & _ALL_SEEN
            else:  # a gap of a whole window, or a new beginning: nothing of before is taken later
                self._seen, self._since_ns = _ALL_SEEN, stamp_ns
            self._newest, self._stamp_ns = sequence, stamp_ns
            return True
        behind = (self._newest - sequence) % SEQUENCES
        if stamp_ns <= self._since_ns or behind >= WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


def _code(value: float | None, top: int, unknown: int) -> int:
    if value is None or not 0.0 <= value <= 1.0:
        return unknown
    return round(value * top)


def _margin_code(value: float | None) -> int:
    if value is None or not math.isfinite(value):
        return _MARGIN_UNKNOWN
    code = round(value * _MARGIN_STEPS)
    return code if -_MARGIN_TOP <= code <= _MARGIN_TOP else _MARGIN_UNKNOWN

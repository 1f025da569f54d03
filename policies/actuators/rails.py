"""Rails, the network interfaces that one job uses at a time: what they are and what they carry."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from .base import checked

LEAST_SHARE = 1 / 64  # of a slow rail, so that it goes on being measured
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 0.001, 86400.0  # gloo counts milliseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Rail:
    """Where one group's connections begin: an interface, or an address of this host.

    Attributes:
        interface: Its name; first choice.
        address: Used where no interface is named.
    """

    interface: str = ""
    address: str = ""


class Meter:
    """What each rail carried, added to from several threads; one for all groups of a job.

    Attributes:
        sent_bytes: By this rank, since the start.
    """

    def __init__(self, rails: int) -> None:
        self.sent_bytes = [0] * rails
        self._lock = threading.Lock()
        self._known: list[float | None] = [None] * rails  # bytes/s, of the last time it was used
        self.renew()

    def add(self, rail: int, size: int, seconds: float) -> None:
        """One stripe went through: bytes that this rank sent, and the time it took."""
        with self._lock:
            self.sent_bytes[rail] += size
            before = self._since[rail]
            self._since[rail] = (before[0] + size, before[1] + seconds)

    def renew(self) -> None:
        """Begin a period."""
        self._since = [(0, 0.0)] * len(self.sent_bytes)

    def speeds(self) -> list[float | None]:
        """Bytes/s of each rail in this period, or the last in which it was used; None: never."""
        for rail, (size, seconds) in enumerate(self._since):
            if size and seconds > 0:
                self._known[rail] = size / seconds
        return list(self._known)


def unusable(rails: Sequence[Rail]) -> str | None:
    """The first end that this host does not have, in one line; None if it has all."""
    for rail in rails:
        try:
            if rail.interface:
                socket.if_nametoindex(rail.interface)
            elif not rail.address:
                return "a rail names neither an interface nor an address"
            else:
                _bind(rail.address)
        except OSError:
            kind = "interface" if rail.interface else "address"
            return f"no {kind} {rail.interface or rail.address}"
    return None


def _bind(address: str) -> None:
    """Try whether an address is this host's.

    Raises:
        OSError: It is not.
    """
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with contextlib.closing(socket.socket(family, kind)) as trial:
        trial.bind(where)


def shares_by_speed(
    speeds: Sequence[float | None], alive: Sequence[bool], wanted: Sequence[float]
) -> list[float]:
    """Shares in proportion to what each rail carries and to what is wanted of it.

    Args:
        speeds: In any unit; None, unknown, counts as the mean of those that are known.
        alive: Which rails may have a share.
        wanted: By a router, one for each rail; equal where nobody chooses.

    Returns:
        Of sum 1. A living rail that is wanted has at least `LEAST_SHARE`, so that it goes on being
        measured. All 0 where none is.
    """
    known = [speed for speed in speeds if speed is not None]
    usual = sum(known) / len(known) if known else 1.0
    weights = [(usual if speed is None else speed) * want if up else 0.0
               for speed, up, want in zip(speeds, alive, wanted, strict=True)]  # fmt: skip
    total = sum(weights)
    if not total > 0:
        return [0.0] * len(weights)
    floored = [max(w / total, LEAST_SHARE) if w > 0 else 0.0 for w in weights]
    return checked(floored, len(floored))

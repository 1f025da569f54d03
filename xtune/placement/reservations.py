"""Shares that were promised to jobs: a small file in the lake, until released or expired.

A writer holds a lock from reading to renaming, so concurrent ones take turns and none is lost; a
reader needs no lock. A killed writer leaves the file as it was, and the lock free.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xtune.errors import LakeError, XtuneError
from xtune.files import write_atomically

SCHEMA = 1
_FILE, _LOCK = "reservations.json", "reservations.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """What one job has.

    Attributes:
        job: Its name, one reservation each.
        hosts: Ranks by host.
        links: Share by link, 0..1.
        made_ns: When, nanoseconds since the epoch.
        expires_ns: It no longer counts from here on.
    """

    job: str
    hosts: Mapping[str, int]
    links: Mapping[str, float]
    made_ns: int
    expires_ns: int


class Reservations:
    """Reservations of a lake.

    Args:
        root: The lake's folder.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "placement"

    def read(self, now_ns: int) -> list[Reservation]:
        """Those that count now, by job.

        Raises:
            LakeError: The file is damaged or of another version.
        """
        path = self._folder / _FILE
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            found = _parsed(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LakeError(
                f"{path} is damaged or of another version",
                "restore it, or remove it",
            ) from error
        return [reservation for reservation in found if reservation.expires_ns > now_ns]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among writers, across processes; waits for the others.

        Raises:
            LakeError: The lake cannot be written.
        """
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / _LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                for left in self._folder.glob(f".{_FILE}.*.tmp"):  # of a killed writer
                    left.unlink(missing_ok=True)
                yield
        except OSError as error:
            raise LakeError.unwritable(self._folder, error) from error

    def add(self, reservation: Reservation, now_ns: int) -> None:
        """Record one; call it under `locked`. Expired ones go.

        Raises:
            XtuneError: The job has one already.
        """
        found = self.read(now_ns)
        if any(other.job == reservation.job for other in found):
            raise XtuneError(
                f"{reservation.job} has a reservation already",
                f"xtune place --release {reservation.job} returns it",
            )
        self._write([*found, reservation])

    def remove(self, job: str, now_ns: int) -> Reservation:
        """Return a job's; call it under `locked`.

        Raises:
            XtuneError: It has none, or no more.
        """
        found = self.read(now_ns)
        gone = [reservation for reservation in found if reservation.job == job]
        if not gone:
            names = ", ".join(reservation.job for reservation in found) or "none"
            raise XtuneError(f"no reservation of {job}", f"there are: {names}")
        self._write([reservation for reservation in found if reservation.job != job])
        return gone[0]

    def _write(self, found: list[Reservation]) -> None:
        rows = [asdict(reservation) for reservation in sorted(found, key=lambda r: r.job)]
        document = {"schema": SCHEMA, "reservations": rows}
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        write_atomically(self._folder / _FILE, text.encode())


def _parsed(document: Mapping[str, Any]) -> list[Reservation]:
    """The file's content.

    Raises:
        ValueError: A figure that no writer of ours leaves.
    """
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    found = [Reservation(**row) for row in document["reservations"]]
    for row in found:
        ranks, shares = row.hosts.values(), row.links.values()
        sound = all(type(count) is int and count >= 0 for count in ranks)
        sound = sound and all(math.isfinite(share) and share >= 0 for share in shares)
        if not sound or type(row.expires_ns) is not int or type(row.job) is not str:
            raise ValueError(f"reservation of {row.job}")
    return found

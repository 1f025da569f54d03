"""The decision log: one JSON line for each change that the engine made, and nothing else.

A log must not endanger the training job: it never raises, it stops at a size cap, it says once why
it stopped, and it counts what it could not write.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ._files import at_once

_LOG = logging.getLogger("xtune")
SIZE_CAP_BYTES = 256 * 1000 * 1000
FORMAT_VERSION = 1


def log_path(pattern: str, *, rank: int | None, host: str | None = None) -> Path:
    """The file of one rank: ``%h`` is the host, ``%r`` the rank, ``%%`` a percent sign.

    Without ``%r`` a suffix ``.rank<N>`` keeps the ranks of a job apart; it is left out where the
    rank is unknown.

    Args:
        pattern: As given in ``XTUNE_DECISIONS``.
        rank: Global rank, None if unknown.
        host: Host name; this machine's by default.

    Returns:
        The path.
    """
    name = socket.gethostname() if host is None else host
    shown = "unknown" if rank is None else str(rank)
    values = {"h": name, "r": shown, "%": "%"}
    out = []
    has_rank = False
    rest = iter(pattern)
    for char in rest:
        if char != "%":
            out.append(char)
            continue
        code = next(rest, "")
        has_rank = has_rank or code == "r"
        out.append(values.get(code, "%" + code))
    suffix = "" if has_rank or rank is None else f".rank{rank}"
    return Path("".join(out) + suffix)


class DecisionLog:
    """Writes changes as JSON lines that ``xtune collect`` reads back.

    Each line: ``{"xtune_decision": 1, "ts_ns", "job", "rank", "step", "kind", "before", "after",
    "reason"}``, with null for what is unknown, and ``"shadow": true`` where nothing was acted
    upon. Lines are flushed one by one, so that a killed job loses none.

    Args:
        path: File or pattern (see `log_path`); None keeps nothing but the counts.
        rank: Global rank, None if unknown.
        job: Job name, None if unknown.
        clock: Wall-clock time in ns.
        size_cap_bytes: The file never grows past it; what was there before counts.
        shadow: Decisions are made and not acted upon; each line says so.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        rank: int | None = None,
        clock: Callable[[], int] = time.time_ns,
        *,
        job: str | None = None,
        size_cap_bytes: int = SIZE_CAP_BYTES,
        shadow: bool = False,
    ) -> None:
        self.rank = rank
        self.job = job
        self.shadow = shadow
        self.path: Path | None = None
        self.written = 0
        self.dropped = 0
        self.error: str | None = None  # why nothing is written any more
        self._clock = clock
        self._cap = size_cap_bytes
        self._size = 0
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                self.path = log_path(str(path), rank=rank)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "ab", buffering=0, opener=at_once)  # noqa: SIM115
                self._size = os.fstat(self._file.fileno()).st_size
            except (OSError, ValueError) as error:
                self._fail(error)

    def change(
        self, step: int | None, kind: str, before: object, after: object, reason: str = ""
    ) -> None:
        """Note a change; does nothing where before equals after.

        Args:
            step: Iteration, None if unknown.
            kind: What changed: level, ratio, bits, path, retreat, reserve, blacklist...
            before: Value before.
            after: Value after.
            reason: Why.
        """
        if before == after:
            return
        if self._file is None:
            self.dropped += self.path is not None or self.error is not None
            return
        try:
            line = self._line(step, kind, before, after, reason)
            if self._size + len(line) > self._cap:
                self.dropped += 1
                return
            if self._file.write(line) != len(line):
                raise OSError("a line was written in part: the disk is full")
        except Exception as error:  # a full disk, a value whose str() fails: never the job's loss
            self._fail(error)
            self.dropped += 1
            return
        self._size += len(line)
        self.written += 1

    def close(self) -> None:
        """Close the file; later changes are counted as dropped."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)
            self._file = None

    def _line(
        self, step: int | None, kind: str, before: object, after: object, reason: str
    ) -> bytes:
        record: dict[str, object] = {
            "xtune_decision": FORMAT_VERSION,
            "ts_ns": self._clock(),
            "job": self.job,
            "rank": self.rank,
            "step": step,
            "kind": kind,
            "before": _text(before),
            "after": _text(after),
            "reason": reason,
        }
        if self.shadow:
            record["shadow"] = True
        return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"

    def _fail(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"
        _LOG.warning("xtune: decisions are not logged any more: %s", self.error)
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                return  # nothing more can be saved, and the reason is kept


def _text(value: object) -> str | None:
    """Values as text, so that the column has one type; numbers short enough to read."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)

"""Probes as JSON lines, which ``xtune collect`` reads as ``link_probes``."""

from __future__ import annotations

import json
import logging
from typing import IO

from .._files import at_once  # noqa: TID252 - exported under another name
from ..decisions import log_path  # noqa: TID252 - exported under another name
from .config import Path
from .tally import Outcome

_LOG = logging.getLogger("xtune")
FORMAT_VERSION = 1


class ProbeLog:
    """Writes one line a probe; never raises after it was opened, and counts what it leaves out.

    Args:
        pattern: The file; ``%h`` is the host. What it holds already stays and counts.
        host: The sending host.
        size_cap_bytes: The file never grows past it.

    Attributes:
        dropped: Lines not written, at the cap or after a failure.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, pattern: str, host: str, size_cap_bytes: int) -> None:
        path = log_path(pattern, rank=None, host=host)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = open(path, "ab", opener=at_once)  # noqa: SIM115
        self._size = self._file.tell()
        self._host = host
        self._cap = size_cap_bytes
        self.dropped = 0

    def prefix(self, path: Path) -> str:
        """The part of a path's lines that is always the same."""
        fixed = {
            "xtune_probe": FORMAT_VERSION, "src": self._host, "dst": path.dst,
            "path": path.number, "link": path.link, "name": path.name,
        }  # fmt: skip
        return json.dumps(fixed, separators=(",", ":"))[:-1]

    def write(self, prefix: str, outcome: Outcome) -> None:
        """Note the end of one probe.

        Args:
            prefix: From `prefix`.
            outcome: What became of it.
        """
        if self._file is None:
            self.dropped += 1
            return
        signal = outcome.signal
        line = (
            f'{prefix},"ts_ns":{outcome.stamp_ns},"rtt_ns":{_shown(outcome.rtt_ns)}'
            f',"occupancy":{_shown(signal.occupancy)},"error_rate":{_shown(signal.error_rate)}'
            f',"signal_margin":{_shown(signal.margin)}'
            f',"lost":{"true" if outcome.rtt_ns is None else "false"}}}\n'
        ).encode()
        if self._size + len(line) > self._cap:
            self.dropped += 1
            return
        self._size += len(line)
        try:
            self._file.write(line)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Hand what is buffered to the kernel."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        """A full disk ends the log, not the probes; lines lost in the buffer are not counted."""
        self.dropped += 1
        _LOG.warning("xtune: probes are not logged any more: %s", error)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # the same failure again


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)

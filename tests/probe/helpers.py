"""Agents and reflectors as processes of their own, and packets as a stranger makes them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEY = bytes(range(32))
LIMIT_S = 60.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Look again and again until it holds; fail where it never does."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.002)


class Served(subprocess.Popen[str]):
    """An agent or a reflector that is ready."""

    counts: dict[str, int]

    def end(self, number: int = signal.SIGTERM) -> dict[str, int]:
        """Send a signal; the counts that it printed."""
        self.send_signal(number)
        said, failed = self.communicate(timeout=LIMIT_S)
        assert self.returncode == 0, failed
        counts: dict[str, int] = json.loads(said.splitlines()[-1])
        return counts


@contextlib.contextmanager
def serve(
    command: str,
    config: dict[str, Any],
    folder: Path,
    inside: tuple[str, ...] = (),
    module: str = "xtune.policies.probe",
) -> Iterator[Served]:
    """Run one until the end of the block, however that comes.

    The command ``inside`` runs it, in a namespace for example.
    """
    file = folder / f"{command}-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(config))
    process = Served(
        [*inside, sys.executable, "-m", module, command, "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"XTUNE_PROBE_KEY": KEY.hex()},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != "ready\n":
            pytest.fail(process.stderr.read())
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

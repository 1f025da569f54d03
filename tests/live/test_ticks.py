"""Ticks of a live run: those that came late are counted, memory is not filled."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.processes import ROOT
from xtune.cli import _live
from xtune.cli._live import LiveRun
from xtune.cli._live_stop import Status, Stop
from xtune.collectors import Context, Reject, Rows
from xtune.lake import Lake


class Slow:
    """A sampler whose first reading takes long, as a tool does that hangs."""

    parser = ("fabric", 1)
    ports = 1

    def __init__(self, seconds: float) -> None:
        self.messages: list[str] = []
        self.rejected: dict[str, Reject] = {}
        self._seconds = seconds

    def tick(self) -> None:
        time.sleep(self._seconds)
        self._seconds = 0.0

    def take(self) -> Slow:
        return self

    def rows(self, context: Context) -> Iterator[Rows]:
        return iter(())

    def close(self) -> None: ...


def run_of(tmp_path: Path, sampler: Slow, **given: float) -> LiveRun:
    return LiveRun(
        Lake.open(tmp_path / "lake", create=True),
        sampler,
        Context(now_ns=time.time_ns),
        host="h",
        place=tmp_path,
        stop=Stop(),
        status=Status(),
        **given,
    )


def test_a_write_that_hangs_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampling pauses, says so once, and goes on when the write has ended."""
    monkeypatch.setattr(_live, "STALLED_S", 0.3)
    run = run_of(tmp_path, Slow(0.0), flush_s=0.1)
    hang = threading.Event()
    flush = run.writer.flush
    monkeypatch.setattr(run.writer, "flush", lambda items: hang.wait(30) and flush(items))
    threading.Timer(1.0, hang.set).start()
    run.run(0.02, 2.0)
    assert run.samples + run.missed == 100 and run.missed > 5 and run.samples > 20
    assert capsys.readouterr().err.count("nothing is read now") == 1


@pytest.mark.parametrize(("seconds", "missed"), [(0.55, 2), (0.0, 0)])
def test_a_tick_after_the_end_is_not_missed(seconds: float, missed: int, tmp_path: Path) -> None:
    run = run_of(tmp_path, Slow(seconds))
    run.run(0.1, 0.3)
    assert (run.samples, run.missed) == (3 - missed, missed)


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    script = """
import random, signal
from xtune.cli._live_stop import Stop
random.seed(0)
for _ in range(1000):
    with Stop() as stop:
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-4))
        while not stop.wait(2e-5):
            pass
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)

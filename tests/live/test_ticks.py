"""Ticks of a live run: those that came late are counted, those after its end are none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("seconds", "missed"), [(0.55, 2), (0.0, 0)])
def test_a_tick_after_the_end_is_not_missed(seconds: float, missed: int, tmp_path: Path) -> None:
    run = LiveRun(
        Lake.open(tmp_path / "lake", create=True),
        Slow(seconds),
        Context(now_ns=time.time_ns),
        host="h",
        place=tmp_path,
        stop=Stop(),
        status=Status(),
    )
    run.run(0.1, 0.3)
    assert (run.samples, run.missed) == (3 - missed, missed)

from __future__ import annotations

import io
import json
import logging
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from xtune.policies import Bus, DecisionLog
from xtune.policies.bus import HEARD_S
from xtune.policies.decisions import log_path
from xtune.policies.endpoint import exposition
from xtune.policies.handle import Handle


def test_a_snapshot_stays_what_it_was() -> None:
    bus = Bus()
    assert bus.routing.available_share is None
    assert bus.compression.version == 0
    bus.push_routing(at_ns=5, level=2, available_share=0.4)
    held = bus.routing
    bus.push_routing(at_ns=6, level=0, available_share=None)
    assert (held.version, held.level, held.available_share) == (1, 2, 0.4)
    assert (bus.routing.version, bus.routing.level) == (2, 0)
    with pytest.raises(FrozenInstanceError):
        held.level = 3  # type: ignore[misc]


def test_each_side_writes_its_own_half() -> None:
    bus = Bus()
    bus.push_compression(step=7, ratio=0.5, ratio_cap=0.8, wire_bytes=100, reserve=0.2)
    assert bus.routing.version == 0
    assert bus.reserve == bus.compression.reserve == 0.2
    bus.push_routing(level=1)
    assert bus.compression.version == 1


def test_what_routing_said_long_ago_is_unknown() -> None:
    now = [1000.0]
    bus = Bus(clock=lambda: now[0])
    handle = Handle(bus, None)
    now[0] += 2 * HEARD_S
    assert bus.routing_now == bus.routing  # nothing was ever said
    bus.push_routing(at_ns=5, level=2, available_share=0.25, available_gbps=100.0)
    now[0] += HEARD_S
    assert bus.routing_now == bus.routing
    assert handle.signal()["available_gbps"] == 100.0
    now[0] += 0.1
    assert bus.routing.level == 2  # the snapshot itself stays
    signal = handle.signal()
    assert [signal[name] for name in ("level", "available_share", "available_gbps")] == [None] * 3
    assert "xtune_congestion_level" not in exposition(signal)
    bus.push_routing(level=1)
    assert handle.signal()["level"] == 1


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_changes_are_written_with_everything_a_reader_needs(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "d-%r.jsonl", rank=3, clock=lambda: 42, job="j1")
    log.change(9, "level", 1, 1, "same")
    log.change(10, "ratio", 0.5, 2 / 3, "level 2")
    log.change(None, "path", None, "up1", "Stau")
    log.close()
    assert read(tmp_path / "d-3.jsonl") == [
        {
            "xtune_decision": 1,
            "ts_ns": 42,
            "job": "j1",
            "rank": 3,
            "step": 10,
            "kind": "ratio",
            "before": "0.5",
            "after": "0.666667",
            "reason": "level 2",
        },
        {
            "xtune_decision": 1,
            "ts_ns": 42,
            "job": "j1",
            "rank": 3,
            "step": None,
            "kind": "path",
            "before": None,
            "after": "up1",
            "reason": "Stau",
        },
    ]
    assert (log.written, log.dropped) == (2, 0)


def test_names_of_the_file() -> None:
    assert log_path("/x/d.jsonl", rank=4) == Path("/x/d.jsonl.rank4")
    assert log_path("/x/%h/%r.jsonl", rank=4, host="n1") == Path("/x/n1/4.jsonl")
    assert log_path("/x/%h.jsonl", rank=4, host="n1") == Path("/x/n1.jsonl.rank4")
    assert log_path("100%%-%q-%", rank=None) == Path("100%-%q-%")


def test_the_cap_counts_what_it_drops_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "d"
    log = DecisionLog(path, clock=lambda: 1, size_cap_bytes=400)
    for step in range(10):
        log.change(step, "level", step, step + 1)
    log.close()
    size = path.stat().st_size
    assert size <= 400
    assert log.written == len(read(path)) == 10 - log.dropped > 0
    again = DecisionLog(path, clock=lambda: 1, size_cap_bytes=size)
    again.change(1, "level", 1, 2)
    assert (again.written, again.dropped) == (0, 1)
    again.close()
    assert path.stat().st_size == size


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_log_that_ends_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("xtune"), "propagate", True)
    torn = DecisionLog(tmp_path / "torn")

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(data[:10])

    torn.close()
    torn._file = Full()
    for log in (DecisionLog("/dev/full"), DecisionLog("/proc/none/such"), torn):
        for step in range(3):
            log.change(step, "level", 0, 1)
        assert log.dropped == 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all(line.startswith("xtune: decisions are not logged any more: ") for line in said)


def test_nothing_reaches_the_job(tmp_path: Path) -> None:
    for pattern in (tmp_path, "/proc/none/such", "\0"):
        log = DecisionLog(pattern)
        log.change(1, "level", 0, 1)
        assert log.error
        assert log.dropped == 1
        log.close()
    log = DecisionLog(tmp_path / "d")
    log.change(1, "level", Unprintable(), 1)
    assert log.error == "RuntimeError: no"
    assert log.dropped == 1
    full = DecisionLog("/dev/full")
    full.change(1, "level", 0, 1)
    assert full.error is not None
    assert "No space left" in full.error


def test_without_a_file_nothing_is_kept() -> None:
    log = DecisionLog()
    log.change(1, "level", 0, 1)
    assert (log.written, log.dropped, log.error) == (0, 0, None)

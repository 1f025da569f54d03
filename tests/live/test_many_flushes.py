"""Days of flushes: each costs the same, rebuild folds them up, prune and doctor know them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import port_tree
from xtune.cli._live_writer import LiveWriter
from xtune.collectors import Context
from xtune.collectors._live_sysfs import SysfsSampler
from xtune.lake import Lake, inspect, prune

HOUR_NS = 3_600_000_000_000


def xtune(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "xtune", *words], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_flushes_stay_cheap_and_are_compacted(tmp_path: Path) -> None:
    for at in range(2):
        port_tree(
            tmp_path / "sys", f"mlx5_{at}", node_guid=f"0a7f:bc12:45ef:{at + 1:04x}",
            counters={"port_xmit_data": 7, "unicast_xmit_packets": 1},
        )  # fmt: skip
    lake = Lake.open(tmp_path / "lake", create=True)
    now = time.time_ns() - 30 * HOUR_NS  # hours that are closed
    sampler = SysfsSampler(tmp_path / "sys", "h", lambda: now, lambda: now)
    context = Context(now_ns=lambda: now)
    writer = LiveWriter(lake, name="n", path=tmp_path, parser=sampler.parser, host="h", say=print)
    seconds = []
    flushes, ticks = 160, 5
    for _ in range(flushes):
        for _ in range(ticks):
            now += 100_000_000
            sampler.tick()
        began = time.process_time()
        assert writer.flush(list(sampler.take().rows(context))) >= 2 * ticks
        seconds.append(time.process_time() - began)
    sampler.close()
    assert statistics.median(seconds[-40:]) < 3 * statistics.median(seconds[20:60])
    assert len(lake.inputs()) == 1
    assert len(list(lake.ledger.folder.glob("*.json"))) < 120
    rows = lake.read("link_counters").num_rows
    assert rows == flushes * ticks * 2
    health = inspect(lake)
    assert health.damaged == () and sum(health.bytes_per_day["link_counters"].values()) > 0
    assert len(lake.files("link_counters")) == flushes
    assert "link_counters" in xtune(tmp_path, "doctor", "--json")

    xtune(tmp_path, "rebuild")
    again = Lake.open(lake.root)
    assert len(again.files("link_counters")) <= 3
    assert again.read("link_counters").num_rows == rows
    answer = xtune(
        tmp_path, "query", "SELECT count(DISTINCT (link, ts)) AS n FROM link_counters", "--json"
    )
    assert json.loads(answer)["rows"] == [{"n": rows}]
    assert prune(again, timedelta(hours=48), dry_run=True).rows == 0
    assert prune(again, timedelta(hours=1)).rows == rows
    assert Lake.open(lake.root).read("link_counters").num_rows == 0
    assert Lake.open(lake.root).read("ports").num_rows == 2  # a sampler says them once

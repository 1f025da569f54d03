"""Sampling this host: ticks are counted, rows name their source, an interrupt loses none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from tests.commands import xtune
from xtune.lake import Lake

TREE = Path(__file__).parents[2] / "data_samples" / "cluster" / "sysfs" / "node01"


def test_samples_at_the_interval_for_the_duration(tmp_path: Path) -> None:
    done = xtune(
        "collect", "--sysfs", str(TREE), "--interval", "50ms", "--duration", "500ms",
        "--host", "Node01", "--json", cwd=tmp_path,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["host"] == "node01"
    assert document["samples"] + document["missed"] == 10
    counters = Lake.open(tmp_path / "lake").read("link_counters")
    assert counters.num_rows == document["samples"]
    assert counters["ts"].null_count == 0
    stamps = sorted(int(t) for t in counters["ts"].cast(pa.int64()).to_pylist())
    assert len(set(stamps)) == len(stamps)
    inputs = Lake.open(tmp_path / "lake").inputs()
    assert set(counters["source"].to_pylist()) == set(inputs)


def test_interrupt_keeps_what_was_sampled(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "xtune", "collect", "--sysfs", str(TREE), "--interval", "20ms"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    assert running.stderr is not None
    assert "sampling" in running.stderr.readline()
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert "samples" in out
    assert Lake.open(tmp_path / "lake").read("link_counters").num_rows > 0


def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    done = xtune("collect", "--sysfs", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert "no InfiniBand device" in done.stderr
    assert not (tmp_path / "lake").exists()

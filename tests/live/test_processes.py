"""Killed, interrupted, twice at once: what was reported is in the lake, and nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.collectors_ib.helpers import port_tree
from tests.live.processes import FOLLOW, LIVE, ROOT, Running, number
from tests.live.test_follow import decision
from xtune.lake import Lake, inspect

FLUSHED = r"(\d+) rows flushed"


def tree(root: Path, ports: int = 2) -> Path:
    for at in range(ports):
        port_tree(
            root, f"mlx5_{at}", counters={"port_xmit_data": 7, "unicast_xmit_packets": 1},
            node_guid=f"0a7f:bc12:45ef:{at + 1:04x}",
        )  # fmt: skip
    return root


def readings(lake: Path) -> Counter[tuple[str, str, int]]:
    """Readings in the lake by host, link and time."""
    table = Lake.open(lake).read("link_counters", ["host", "link", "ts"])
    stamps = table.column("ts").cast(pa.int64()).to_pylist()
    return Counter(zip(table["host"].to_pylist(), table["link"].to_pylist(), stamps, strict=True))


def test_killed_at_any_time(tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys"), tmp_path / "lake"
    reported = 0
    for round_ in range(4):
        running = Running(LIVE, lake, root, "h", 0.01, "-", 0.05)
        running.wait_for("rows flushed", 2)
        time.sleep(0.03 * round_)
        running.end(signal.SIGKILL)
        reported += number(FLUSHED, running.lines) - 2  # two rows are of ports
    found = readings(lake)
    assert found.total() >= reported > 0
    assert max(found.values()) == 1
    status, _, said = Running(LIVE, lake, root, "h", 0.05, 0.2, 5).end()
    assert status == 0, said
    assert inspect(Lake.open(lake)).damaged == () and inspect(Lake.open(lake)).unfinished == ()


@pytest.mark.parametrize("number_", [signal.SIGINT, signal.SIGTERM])
def test_ended_by_a_signal_it_keeps_everything(number_: int, tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys"), tmp_path / "lake"
    running = Running(LIVE, lake, root, "h", 0.01, "-", 0.1)
    running.wait_for("rows flushed", 2)
    status, out, said = running.end(number_)
    assert status == 130 and "Traceback" not in said
    samples = number(r"(\d+) samples", out)
    assert readings(lake).total() == 2 * samples
    assert number(r"(\d+) rows", out) == 2 * samples + 2


def test_two_collectors_on_one_lake(tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys"), tmp_path / "lake"
    both = [Running(LIVE, lake, root, host, 0.02, 1.5, 0.1) for host in ("h1", "h2")]
    samples = 0
    for running in both:
        status, out, said = running.end()
        assert status == 0, said
        samples += number(r"(\d+) samples", out)
    found = readings(lake)
    assert max(found.values()) == 1 and found.total() == 2 * samples
    assert len(Lake.open(lake).inputs()) == 2


def test_the_clock_does_not_drift(tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys", 1), tmp_path / "lake"
    status, out, said = Running(LIVE, lake, root, "h", 0.01, 2.0, 0.5).end()
    assert status == 0, said
    samples, missed = number(r"(\d+) samples", out), number(r"(\d+) missed", out)
    assert samples + missed == 200 and samples > 100
    stamps = sorted(stamp for _, _, stamp in readings(lake))
    # Readings lie at multiples of the interval from the first, late at most by what was missed.
    late = [(stamp - stamps[0]) % 10_000_000 for stamp in stamps]
    late = [min(ns, 10_000_000 - ns) for ns in late]
    assert sorted(late)[len(late) // 2] < 3_000_000


def test_an_interrupt_while_it_loads_is_one_line(tmp_path: Path) -> None:
    for milliseconds in (60, 120, 200, 300):
        words = [sys.executable, "-m", "xtune", "collect", "--list"]
        pipe = subprocess.PIPE
        running = subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
        time.sleep(milliseconds / 1000)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        if "init_import_site" in said or ("_run_module_as_main" in said and "/xtune/" not in said):
            continue  # Python itself was not up yet, or had not found the package
        # Before Python has its handlers the signal simply ends it.
        assert running.returncode in (0, 130, -signal.SIGINT) and "Traceback" not in said, said


WRITER = """
import sys, time
sys.path.insert(0, ".")
from tests.live.test_follow import decision
with open(sys.argv[1], "ab", buffering=0) as file:
    for number in range(int(sys.argv[2])):
        line = decision(number, 300)
        file.write(line[:100])  # a reader may see half a line
        time.sleep(0.001)
        file.write(line[100:])
"""


def test_a_follower_killed_at_any_time(tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", tmp_path / "lake"
    path.touch()
    count = 1200
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count)], cwd=ROOT)
    reported = 0
    while writer.poll() is None:
        running = Running(FOLLOW, lake, path, 0.02, 2.0, 0.02)
        running.wait_for("rows in the lake", random.choice([1, 2, 5]))
        running.end(signal.SIGKILL)
        reported += number(r"(\d+) rows in the lake", ["0 rows in the lake", *running.lines])
        if reported:  # else it may have been killed before there was a lake
            assert Lake.open(lake).read("decisions").num_rows >= reported
    status, _, said = Running(FOLLOW, lake, path, 0.02, 0.3, 0.02).end()
    assert status == 0, said
    steps = Lake.open(lake).read("decisions")["step"].to_pylist()
    assert Counter(steps) == Counter(range(count))
    assert Lake.open(lake).read("rejected").num_rows == 0
    assert inspect(Lake.open(lake)).damaged == ()


@pytest.mark.slow
def test_two_followers_of_one_file(tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", tmp_path / "lake"
    path.write_bytes(decision(10_000, 300))
    both = [Running(FOLLOW, lake, path, 0.02, "-", 0.02) for _ in range(2)]
    for running in both:
        running.wait_for("following")
    subprocess.run([sys.executable, "-c", WRITER, str(path), "300"], cwd=ROOT, check=True)
    for running in both:
        status, _, said = running.end(signal.SIGINT)
        assert status in (0, 130) and "Traceback" not in said, said
    steps = Lake.open(lake).read("decisions")["step"].to_pylist()
    assert Counter(steps) == Counter([10_000, *range(300)])


def test_the_command_follows(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(decision(0))
    words = [sys.executable, "-m", "xtune", "collect", "--follow", "*.jsonl", "--interval", "50ms",
             "--duration", "1s", "--json"]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["totals"]["rows"] == {"decisions": 1}
    assert document["files"][0]["state"] == "read"
    missing = subprocess.run(
        [*words[:5], "gone.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1 and missing.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_rejected(tmp_path: Path) -> None:
    root, lake = tree(tmp_path / "sys", 1), tmp_path / "lake"
    (root / "mlx5_0/ports/1/counters/port_xmit_data").chmod(0)
    status, _, said = Running(LIVE, lake, root, "h", 0.05, 0.3, 5).end()
    assert status == 0 and "rejected: mlx5_0/ports/1/counters/port_xmit_data" in said

"""What works on a lake that cannot be written, and on one whose telemetry is gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipelines.lakes import A, B, counters, new_lake, put
from xtune.collectors import Context
from xtune.errors import LakeError, NoDataError
from xtune.ingest import collect
from xtune.lake import Lake, prune
from xtune.pipelines import plan_rebuild, rebuild
from xtune.pipelines.checkup import checkup


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """The folder on a filesystem that takes no writes, not even root's."""
    bind = ["mount", "--bind", str(place), str(place)]
    done = subprocess.run(bind, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no filesystem can be mounted here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(lake: Lake, first_s: int) -> None:
    seconds = range(first_s, first_s + 20)
    for link in (A, B):
        put(lake, "link_counters", counters(seconds, link, port_xmit_data=seconds))


def test_a_plan_needs_no_write_and_a_rebuild_says_what_it_lacks(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    fill(lake, 0)
    with read_only(lake.root):
        first = plan_rebuild(lake)
        with pytest.raises(LakeError, match="lake: cannot be written: Read-only"):
            rebuild(lake)
    assert first.partitions
    rebuild(lake)
    with read_only(lake.root):
        assert plan_rebuild(lake).partitions == ()
        found = {finding.check: finding.state for finding in checkup(lake)}
    assert "rebuild lock" not in found
    fill(lake, 7200)
    with read_only(lake.root):
        there = plan_rebuild(lake)
    assert there.partitions and there == plan_rebuild(lake)


def test_after_everything_was_pruned_a_rebuild_says_so(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    with pytest.raises(NoDataError, match="run xtune collect first"):
        rebuild(lake)
    table = tmp_path / "counters.csv"
    table.write_text("time,device,port,port_xmit_data\n2026-03-02T00:00:00Z,mlx5_0,1,5\n")
    collect(lake, [str(table)], context=Context(now_ns=lake.clock, host="h"))
    prune(lake, timedelta(days=1))
    with pytest.raises(NoDataError, match="any more: it was pruned"):
        rebuild(lake)

"""Whoever computes a rebuild, and in how many parts, its tables are the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.fabrics import down, nic, topology_rows
from tests.pipelines.lakes import at, new_lake, port_rows, put
from tests.pipelines.test_incremental import content, counter_rows
from xtune.errors import UsageError
from xtune.executor import open_executor
from xtune.lake import Lake
from xtune.pipelines import Engine, EpisodeRules, Shard, plan_rebuild, rebuild, rebuild_shard
from xtune.pipelines._parts import Parts
from xtune.pipelines._work import cut, memory_share, tiled, within

RULES = EpisodeRules(max_gap_s=2000.0, min_length_s=1000.0)
SERIES: list[float | None] = [0.0, 0.6, 0.12, None, 0.12, 0.0, 0.2, 0.6, 0.6] * 7
LINKS = [nic(leaf, slot) for leaf in range(2) for slot in range(2)] + [down(0, 0)]


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xtune.pipelines._refresh.RANGE_ROWS", 10)


def fill(root: Path, given: list[float | None] = SERIES) -> Lake:
    """Two days of five ports of a fabric, each a little later than the one before."""
    lake = new_lake(root)
    put(lake, "topology_links", topology_rows())
    for number, link in enumerate(LINKS):
        series = [*given[number:], *given[:number]]
        rows = counter_rows(link, series, {40 + number}, [10**9, 0])
        put(lake, "link_counters", rows, source=f"{number:012d}")
    return lake


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    lake = fill(tmp_path_factory.mktemp("engines") / "lake")
    assert rebuild(lake, rules=RULES, threads=1).episodes > 10
    yield content(lake)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_give_the_same_tables(
    tmp_path: Path, expected: dict[str, list[str]], workers: int
) -> None:
    lake = fill(tmp_path / "lake")
    summary = rebuild(lake, rules=RULES, threads=1, engine=Engine(workers=workers))
    assert len(lake.files("derived/link_rates")) == 2 * workers
    assert content(lake) == expected
    # In one process again, all of it is up to date, and one more port changes its range only.
    assert rebuild(lake, rules=RULES, threads=1).computed == ()
    assert summary.computed == ("2026-03-02", "2026-03-03")


def test_a_dask_cluster_gives_the_same_tables(
    tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    pytest.importorskip("distributed")
    lake = fill(tmp_path / "lake")
    rebuild(lake, rules=RULES, threads=1, engine=Engine(name="dask", workers=2))
    assert len(lake.files("derived/link_rates")) == 4
    assert content(lake) == expected


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2)])
def test_shards_in_any_order(
    tmp_path: Path, expected: dict[str, list[str]], order: tuple[int, ...]
) -> None:
    """The last order leaves a share out: the rebuild computes that, and nothing else."""
    lake = fill(tmp_path / "lake")
    for index in order:
        done = rebuild_shard(lake, Shard(index=index, count=3), rules=RULES, threads=1)
        assert len(done.partitions) == 2
        assert not lake.files("derived/link_rates")
    # Again: what is there is not computed once more.
    kept = {path.name: path.stat().st_mtime_ns for path in parts(lake)}
    rebuild_shard(lake, Shard(index=order[0], count=3), rules=RULES, threads=1)
    assert {path.name: path.stat().st_mtime_ns for path in parts(lake)} == kept
    made: list[str] = []
    rebuild(lake, rules=RULES, threads=1, progress=lambda done, text: made.append(text))
    assert content(lake) == expected
    assert len(lake.files("derived/link_rates")) == 6
    assert not parts(lake)
    assert rebuild(lake, rules=RULES, threads=1).computed == ()


def parts(lake: Lake) -> list[Path]:
    folder = lake.root / ".rebuild" / "parts"
    return sorted(folder.iterdir()) if folder.is_dir() else []


@pytest.mark.slow
def test_shards_of_several_counts_and_of_other_rules(
    tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    lake = fill(tmp_path / "lake")
    rebuild_shard(lake, Shard(index=1, count=2), rules=RULES, threads=1)
    rebuild_shard(lake, Shard(index=0, count=3), rules=RULES, threads=1)
    rebuild_shard(lake, Shard(index=2, count=3), rules=EpisodeRules(max_gap_s=9.0), threads=1)
    rebuild(lake, rules=RULES, threads=1)
    assert content(lake) == expected
    assert not parts(lake)


CHILD = """
import sys
from pathlib import Path
from tests.pipelines.lakes import at
from tests.pipelines.test_engines import RULES
from xtune.lake import Lake
from xtune.pipelines import Shard, rebuild_shard
lake = Lake.open(Path(sys.argv[1]), clock=lambda: at(864000))
print("begun", flush=True)
rebuild_shard(lake, Shard(index=int(sys.argv[2]), count=2), rules=RULES, threads=1, day_rows=1)
print("done", flush=True)
"""


def shard_process(root: Path, index: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(index)], stdout=subprocess.PIPE, text=True
    )


def test_shards_at_once_and_one_killed(tmp_path: Path) -> None:
    """Hours, the same share twice at once, the other one killed once it has done something."""
    short = SERIES[:18]
    whole = fill(tmp_path / "whole", short)
    assert rebuild(whole, rules=RULES, threads=1).episodes > 3
    lake = fill(tmp_path / "lake", short)
    children = [shard_process(lake.root, index) for index in (0, 0, 1)]
    store = Parts(lake.root)
    until = time.monotonic() + 120
    while time.monotonic() < until and children[2].poll() is None:
        if any(low is not None for low, _ in store.ranges("2026-03-02T10")):
            break
        time.sleep(0.01)
    children[2].send_signal(signal.SIGKILL)
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, -signal.SIGKILL]
    rebuild(lake, rules=RULES, threads=1, day_rows=1)
    assert content(lake) == content(whole)
    assert not parts(lake)


def test_a_shard_while_a_rebuild_runs(tmp_path: Path, expected: dict[str, list[str]]) -> None:
    """Its parts, and what it reads, are left alone."""
    lake = fill(tmp_path / "lake")
    with lake.shared("shards"):
        (lake.root / ".rebuild" / "parts" / ".tmp-of-another").mkdir(parents=True)
        rebuild(lake, rules=RULES, threads=1)
        assert [path.name for path in parts(lake)] == [".tmp-of-another"]
    assert content(lake) == expected
    with lake.exclusive("rebuild"):
        done = rebuild_shard(lake, Shard(index=0, count=2), rules=RULES, threads=1)
    assert done.partitions == ()  # nothing is stale
    rebuild(lake, rules=RULES, threads=1)
    assert not parts(lake)


def test_more_shards_than_links(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(LINKS[0], [0, 0.6, 0.6, 0.6, 0]))
    for index in range(4):
        rebuild_shard(lake, Shard(index=index, count=4))
    assert rebuild(lake).episodes == 1


def test_a_dry_run_says_what_a_rebuild_does(tmp_path: Path) -> None:
    lake = fill(tmp_path / "lake")
    plan = plan_rebuild(lake, rules=RULES)
    assert plan.partitions == ("2026-03-02", "2026-03-03")
    assert plan.dry_run and not lake.files("derived/link_rates")
    summary = rebuild(lake, rules=RULES, threads=1)
    assert plan.partitions == summary.computed
    assert plan_rebuild(lake, rules=RULES).partitions == ()
    rows = counter_rows(LINKS[0], [0.0, 0.6, 0.6], set(), [10**9])
    put(lake, "link_counters", [{**row, "ts": row["ts"] + at(86400) - at(0)} for row in rows])
    assert plan_rebuild(lake, rules=RULES).partitions == ("2026-03-03",)


def test_engines_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xtune.executor._CONNECT_S", 2)
    with pytest.raises(UsageError, match="engine 'spark' is not known"), open_executor("spark", 1):
        pass
    nowhere = "tcp://127.0.0.1:9"
    with pytest.raises(UsageError, match="no Dask sched"), open_executor("dask", 1, nowhere):
        pass


def test_without_dask_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="engine dask is not installed"), open_executor("dask", 1):
        pass


@pytest.mark.parametrize(
    ("text", "index"), [("0/4", 0), ("3/4", 3), ("4/4", 0), ("1/4", 1), ("1/1", 0), ("0/1", 0)]
)
def test_a_share_counts_from_0_or_1(text: str, index: int) -> None:
    count = int(text.partition("/")[2])
    assert Shard.parse(text) == Shard(index=index, count=count)


@pytest.mark.parametrize("text", ["", "1", "/2", "1/", "5/4", "-1/4", "a/b", "0/0", "1/2/3"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="is not i/n"):
        Shard.parse(text)


def test_ranges_have_every_link_once() -> None:
    links = [f"l{number:02d}" for number in range(10)]
    for count in range(1, 13):
        ranges = cut(links, count)
        assert len(ranges) == min(count, 10)
        assert [sum(within(link, r) for r in ranges) for link in links] == [1] * 10
    assert cut([], 3) == [(None, None)]
    assert tiled([]) == [(None, None)]
    assert tiled([(None, "c"), ("c", None)]) == [(None, "c"), ("c", None)]
    assert tiled([("c", "f")]) == [(None, "c"), ("c", "f"), ("f", None)]
    # Of ranges that overlap, the first stays; what the others leave open is a range of its own.
    assert tiled([(None, "d"), (None, "f"), ("f", None)]) == [
        (None, "d"),
        ("d", "f"),
        ("f", None),
    ]


def test_memory_is_shared_out() -> None:
    assert memory_share("4GB", 3) == "1.333GB"
    assert memory_share(None, 3) is None

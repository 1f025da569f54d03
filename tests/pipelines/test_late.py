"""Rows that come late, rules and spans that change, telemetry that is pruned: the same tables."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.pipelines.fabrics import down, nic, topology_rows
from tests.pipelines.lakes import SECOND, T0, T0_S, A, B, at, derived, new_lake, put
from tests.pipelines.test_incremental import (
    CASES,
    RULES,
    STEP_S,
    Waits,
    content,
    counter_rows,
    record,
)
from xtune.lake import Lake, prune
from xtune.pipelines import EpisodeRules, rebuild

SLOW: Waits = [0.0, 0.0, 0.6, 0.6, 0.6, 0.6, 0.0, 0.0]


@given(**CASES, order=st.permutations(range(4)))
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_late_rows_other_rules_and_spans_do_not_matter(
    first: Waits,
    second: Waits,
    resets: set[int],
    day_rows: int,
    data: st.DataObject,
    order: list[int],
) -> None:
    check_late(first, second, resets, day_rows, data, order)


@pytest.mark.slow
@given(**CASES, order=st.permutations(range(4)))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_late_rows_other_rules_and_spans_do_not_matter_at_length(
    first: Waits,
    second: Waits,
    resets: set[int],
    day_rows: int,
    data: st.DataObject,
    order: list[int],
) -> None:
    check_late(first, second, resets, day_rows, data, order)


def check_late(
    first: Waits,
    second: Waits,
    resets: set[int],
    day_rows: int,
    data: st.DataObject,
    order: list[int],
) -> None:
    """On a fabric, with jobs: quarters of the time arrive in any order; rules and spans change."""
    length = len(first)
    links = {nic(0, 0): first, nic(0, 1): second, down(1, 0): [*second, *first]}
    rows = [
        row
        for number, (link, waits) in enumerate(links.items())
        for row in counter_rows(link, waits, resets if number else set(), [10**12, 0])
    ]
    assume(rows)
    begins = data.draw(st.integers(0, length)) * STEP_S
    quarters = [
        [row for row in rows if order[int((row["ts"] - T0) // (STEP_S * SECOND)) % 16 // 4] == n]
        for n in range(4)
    ]
    strict = EpisodeRules(max_gap_s=0.0, min_length_s=2000.0)
    with tempfile.TemporaryDirectory() as folder:
        whole, pieces = new_lake(Path(folder) / "whole"), new_lake(Path(folder) / "pieces")
        for lake in (whole, pieces):
            put(lake, "topology_links", topology_rows())
        put(whole, "link_counters", rows)
        put(whole, "collectives", job_rows(begins))
        put(whole, "steps", step_rows())
        rebuild(whole, rules=RULES, threads=1)
        for number, batch in enumerate(quarters):
            if batch:
                put(pieces, "link_counters", batch, source=f"{number:012d}")
            if number == 1:
                put(pieces, "steps", step_rows())
            if number == 2:
                put(pieces, "collectives", job_rows(begins))
            noon = datetime.fromtimestamp(T0_S, UTC) + timedelta(days=1)
            since, until = [(None, None), (noon, None), (None, noon), (None, None)][order[number]]
            rules = strict if order[number] == 3 else RULES
            rebuild(pieces, rules=rules, threads=1, day_rows=day_rows, since=since, until=until)
        rebuild(pieces, rules=RULES, threads=1, day_rows=day_rows)
        assert content(pieces) == content(whole)


def job_rows(begins_s: float) -> list[dict[str, Any]]:
    """All-reduces of two ranks, 100 s apart; those from 1000 s on take longer."""
    return [
        {
            "start_ts": at(begins_s + 100 * seq),
            "duration_ns": (1 if seq < 10 else 2) * 10**9 + rank,
            "job": "llm",
            "rank": rank,
            "comm_rank": rank,
            "comm": "c",
            "comm_size": 2,
            "seq": seq,
            "op": "all_reduce",
            "message_bytes": 2**20,
        }
        for seq in range(30)
        for rank in range(2)
    ]


def step_rows() -> list[dict[str, Any]]:
    """Steps of half an hour over a day; one in four takes longer."""
    return [
        {
            "ts": at(1800.0 * (step + 1)),
            "job": "llm",
            "step": step,
            "step_time_s": 1500.0 if step % 4 else 1800.0,
            "loss": 5.0 - step / 50,
        }
        for step in range(40)
    ]


def test_pruned_telemetry_keeps_its_cost(tmp_path: Path) -> None:
    """What an episode cost is not made anew from the records of jobs that are gone."""
    lake = new_lake(tmp_path / "lake", now_s=40 * 86400)
    for name in ("a" * 12, "c" * 12, "d" * 12):
        record(lake, name)
    put(lake, "link_counters", counter_rows(A, SLOW, set(), [10**9]), source="a" * 12)
    put(lake, "steps", step_rows(), source="c" * 12)
    put(lake, "collectives", job_rows(0.0), source="d" * 12)
    rebuild(lake, rules=RULES)
    before = content(lake)
    [episode] = derived(lake, "episodes")
    assert episode["idle_gpu_hours"] > 0 and episode["steps_affected"] > 0
    assert prune(lake, timedelta(days=30)).rows == len(SLOW) + 40 + 60
    later = counter_rows(B, SLOW, set(), [10**9])
    for row in later:
        row["ts"] += 39 * 86400 * SECOND
    put(lake, "link_counters", later, source="b" * 12)
    rebuild(lake, rules=RULES)
    after = content(lake)
    for name in ("episodes", "link_episodes", "episode_costs", "impact_by", "collective_impact"):
        assert set(before[name]) <= set(after[name]), name
    assert len(after["episodes"]) == 2


@pytest.mark.parametrize("days_gone", [1, 2])
def test_pruned_days_of_inputs_that_go_on_keep_their_cost(tmp_path: Path, days_gone: int) -> None:
    """A sampler and a training log have rows of many days: some are gone, the inputs are not."""
    lake = new_lake(tmp_path / "lake", now_s=40 * 86400)
    day = 86400 * SECOND
    rows = {
        "link_counters": counter_rows(A, SLOW, set(), [10**9]),
        "steps": step_rows(),
        "collectives": job_rows(0.0),
    }
    for name, source in zip(rows, "acd", strict=True):
        record(lake, source * 12)
        for days in range(3):
            moves = {"ts": day, "start_ts": day, "step": 40, "seq": 30}
            later = [
                {**row, **{key: row[key] + days * by for key, by in moves.items() if key in row}}
                for row in rows[name]
            ]
            put(lake, name, later, source=source * 12)
    rebuild(lake, rules=RULES)
    before = content(lake)
    assert len(before["episodes"]) == 3
    assert all(row["idle_gpu_hours"] > 0 for row in derived(lake, "episodes"))
    assert prune(lake, timedelta(days=40 - days_gone)).files > 0
    rebuild(lake, rules=RULES)
    after = content(lake)
    for name in ("link_rates", "episodes", "link_episodes", "episode_costs", "impact_by",
                 "collective_impact", "concurrency_minutes", "bursts"):  # fmt: skip
        assert before[name] == after[name], name


@pytest.mark.parametrize("gone", ["derived", "derived/link_rates", "derived/episodes"])
def test_derived_files_that_are_gone_are_made_again(tmp_path: Path, gone: str) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", counter_rows(A, [0.0, 0.6, 0.6, 0.0] * 4, set(), [10**9]))
    rebuild(lake, rules=RULES, threads=1)
    expected = content(lake)
    assert expected["episodes"]
    shutil.rmtree(lake.root / gone)
    rebuild(lake, rules=RULES, threads=1)
    assert content(lake) == expected


def test_only_dates_that_changed_are_written(tmp_path: Path) -> None:
    """An hour of the second day leaves the files of the first, in every table of days."""
    lake = new_lake(tmp_path / "lake")
    rows = counter_rows(A, [*SLOW, *[0.0] * 60, 0.6, 0.6, 0.6, 0.0, 0.0, 0.6], set(), [10**9])
    put(lake, "link_counters", rows[:-1])
    put(lake, "steps", step_rows())
    put(lake, "collectives", job_rows(0.0))
    rebuild(lake, rules=RULES, day_rows=1)
    before = files(lake)
    put(lake, "link_counters", rows[-1:], source="1" * 12)
    done = rebuild(lake, rules=RULES, day_rows=1)
    changed = {name for name in before if before[name] != files(lake).get(name)}
    assert changed and all("date=2026-03-02" not in name for name in changed), changed
    assert done.computed == ("2026-03-03T04",)


def files(lake: Lake) -> dict[str, int]:
    """Live files of the tables that are made day by day."""
    names = ("link_rates", "link_episodes", "episodes", "collective_impact", "episode_costs")
    return {
        f.path.relative_to(lake.root).as_posix(): f.rows
        for name in names
        for f in lake.files(f"derived/{name}")
    }

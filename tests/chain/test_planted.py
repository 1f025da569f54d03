"""Episodes rebuilt from data_samples are the planted ones: all of them, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from xtune.lake import Lake

pytestmark = pytest.mark.xdist_group("chain")


def nanoseconds(column: Any) -> list[int]:
    import pyarrow as pa

    return [int(v) for v in column.cast(pa.int64()).to_pylist()]


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    data = lake.read(f"derived/{table}")
    out: list[dict[str, Any]] = data.drop_columns(["start_ts", "end_ts"]).to_pylist()
    starts, ends = nanoseconds(data["start_ts"]), nanoseconds(data["end_ts"])
    for row, start, end in zip(out, starts, ends, strict=True):
        row["start"], row["end"] = start, end
    return out


def planted_of(row: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any] | None:
    """The planted episode that overlaps a row in time; the generator leaves gaps between them."""
    for episode in truth["episodes"]:
        if row["start"] < episode["end_ns"] and row["end"] > episode["start_ns"]:
            return dict(episode)
    return None


def test_every_planted_link_is_found_and_no_other(
    samples_lake: Lake, truth: dict[str, Any]
) -> None:
    found: dict[int, set[str]] = {}
    for row in rows(samples_lake, "link_episodes"):
        episode = planted_of(row, truth)
        assert episode is not None, f"{row['link']} is not planted"
        found.setdefault(episode["start_ns"], set()).add(row["link"])
    planted = {e["start_ns"]: set(e["links"]) for e in truth["episodes"]}
    assert found == planted


def test_bounds_are_within_one_sampling_interval(
    samples_lake: Lake, truth: dict[str, Any]
) -> None:
    sample_ns = truth["scenario"]["sample_s"] * 1e9
    episodes = rows(samples_lake, "episodes")
    assert len(episodes) == len(truth["episodes"])
    for row in episodes:
        episode = planted_of(row, truth)
        assert episode is not None
        assert abs(row["start"] - episode["start_ns"]) <= sample_ns
        assert abs(row["end"] - episode["end_ns"]) <= sample_ns


def test_causes_and_roots_are_the_planted_ones(samples_lake: Lake, truth: dict[str, Any]) -> None:
    for row in rows(samples_lake, "episodes"):
        episode = planted_of(row, truth)
        assert episode is not None
        assert (row["cause"], row["root_link"]) == (episode["cause"], episode["root"])


def test_idle_gpu_hours_follow_from_the_step_times(
    samples_lake: Lake, truth: dict[str, Any]
) -> None:
    """Lost time by another route: all step times minus as many clean ones, times the ranks."""
    steps = samples_lake.read("steps", ["step_time_s"])["step_time_s"].to_pylist()
    times = sorted(t for t in steps if t is not None)
    scenario = truth["scenario"]
    ranks = scenario["leaves"] * scenario["job_hosts_per_leaf"]
    clean = scenario["compute_s"] + truth["bucket_line_rate_s"]
    lost = sum(t - clean for t in times if t > 1.1 * clean) * ranks / 3600
    found = sum(r["idle_gpu_hours"] or 0.0 for r in rows(samples_lake, "episodes"))
    assert found == pytest.approx(lost, rel=0.1)

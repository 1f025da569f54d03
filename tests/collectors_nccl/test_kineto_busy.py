"""When a device computed, from the kernels of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes
from tests.collectors_nccl.test_kineto import BASE, cpu, encoded, kernel, trace, x
from xtune.collectors import _kineto_busy
from xtune.collectors.kineto import COLLECTOR


def gemm(ts: Any, dur: Any, **more: Any) -> dict[str, Any]:
    return {**x("ampere_bf16_gemm", "kernel", 1.0, 1.0, {}), "ts": ts, "dur": dur, **more}


def spans(rows: list[dict[str, Any]], kind: str = "compute") -> list[tuple[int, int]]:
    return [(r["start_ts"] - BASE, r["end_ts"] - BASE) for r in rows if r["kind"] == kind]


def test_compute_kernels_are_merged_and_collectives_are_none(tmp_path: Path) -> None:
    events = [
        gemm(300.0, 20.0),
        gemm(100.0, 50.0),  # another stream, written later
        gemm(140.0, 30.5),  # overlaps
        gemm(180.5, 9.5),  # ten microseconds after: a launch, not idleness
        kernel(ts=500.25, dur=99.75),
        x("Memcpy DtoD", "gpu_memcpy", 700.0, 50.0, {}),
        cpu(),
    ]
    read = read_bytes(COLLECTOR, encoded(*events), tmp_path, ctx=context(job="llm"))
    assert spans(read.busy) == [(100_000, 190_000), (300_000, 320_000)]
    # The trace watched the device until its last kernel ended, here a collective's.
    assert spans(read.busy, "traced") == [(100_000, 600_000)]
    assert {(r["job"], r["host"], r["rank"]) for r in read.busy} == {("llm", "node-a", 6)}
    assert len(read.rows) == 1 and not read.rejects


def test_a_trace_without_compute_kernels_says_nothing_of_them(tmp_path: Path) -> None:
    """Traces of collectives alone: the device may have computed."""
    assert read_bytes(COLLECTOR, encoded(cpu(), kernel()), tmp_path).busy == []


def test_times_since_an_unknown_start_are_no_spans(tmp_path: Path) -> None:
    data = encoded(gemm(5.0, 1.0), baseTimeNanoseconds=None)
    assert read_bytes(COLLECTOR, data, tmp_path).busy == []
    data = encoded(gemm(1_661_203_462_602_585, 2), baseTimeNanoseconds=None)
    (row,) = [r for r in read_bytes(COLLECTOR, data, tmp_path).busy if r["kind"] == "compute"]
    assert row["start_ts"] == 1_661_203_462_602_585_000
    assert row["end_ts"] - row["start_ts"] == 2_000


@pytest.mark.parametrize(
    ("ts", "dur"),
    [(None, 1.0), ("5", "1"), (5.0, None), (5.0, 0), (5.0, -1), (-5.0, 10.0), ([], []), (5.0, {}),
     (float("nan"), 1.0), (5.0, float("inf")), (5.0, float("nan")), (True, "a")],
)  # fmt: skip
def test_a_kernel_without_a_time_is_passed_over(tmp_path: Path, ts: Any, dur: Any) -> None:
    data = json.dumps(trace(gemm(ts, dur), gemm(10.0, 5.0))).encode()
    assert spans(read_bytes(COLLECTOR, data, tmp_path).busy) == [(10_000, 15_000)]


@given(
    kernels=st.lists(
        st.tuples(st.integers(1, 4000), st.integers(1, 60)), min_size=1, max_size=200
    ),
    held=st.sampled_from([1, 7, 1 << 16]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_spans_are_the_union(tmp_path: Path, kernels: list[tuple[int, int]], held: int) -> None:
    """By another route: microseconds marked one by one; in any order, however many are held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kineto_busy, "_HELD", held)
        read = read_bytes(COLLECTOR, encoded(*(gemm(ts, d) for ts, d in kernels)), tmp_path)
    busy = {us for ts, d in kernels for us in range(ts, ts + d)}
    free = [us for us in range(min(busy), max(busy) + 1) if us not in busy]
    gaps: list[list[int]] = []
    for us in free:
        if gaps and us == gaps[-1][-1] + 1:
            gaps[-1].append(us)
        else:
            gaps.append([us])
    long = [gap for gap in gaps if len(gap) > 10]
    edges = [min(busy), *(us for gap in long for us in (gap[0], gap[-1] + 1)), max(busy) + 1]
    found = [us for span in spans(read.busy) for us in span]
    assert found == [us * 1000 for us in edges]

"""What episodes cost: collectives, steps and idle GPU hours, worked out by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.fabrics import down, nic, topology_rows
from tests.pipelines.lakes import A, at, derived, new_lake, port_rows, put
from xtune.lake import Lake
from xtune.pipelines import rebuild
from xtune.pipelines._engine import connect

MS = 1_000_000
# One port that waits half of each second from 100 s to 160 s.
EPISODE = (100.0, 160.0)


def congested(lake: Lake, link: str = A) -> None:
    waits = [0.5 if EPISODE[0] <= second < EPISODE[1] else 0.0 for second in range(300)]
    put(lake, "link_counters", port_rows(link, waits))


def collective(seq: int | None, start_s: float, ms: float | None, **more: Any) -> dict[str, Any]:
    row = {
        "start_ts": at(start_s),
        "duration_ns": None if ms is None else round(ms * MS),
        "job": "llm",
        "comm": "c0",
        "comm_size": 8,
        "rank": 0,
        "comm_rank": 0,
        "seq": seq,
        "op": "all_reduce",
        "message_bytes": 1 << 20,
        "algorithm": "RING",
        "state": "completed",
    }
    return {**row, **more}


def step(number: int, end_s: float, seconds: float, **more: Any) -> dict[str, Any]:
    row = {"ts": at(end_s), "job": "llm", "run": "r", "step": number, "split": "train"}
    return {**row, "step_time_s": seconds, **more}


def test_slowdown_is_against_the_median_outside(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    outside = [collective(n, n, ms) for n, ms in enumerate([10, 11, 12, 13, 50])]  # median 12
    put(lake, "collectives", [*outside, collective(9, 120, 30)])
    rebuild(lake)
    rows = {row["seq"]: row for row in derived(lake, "collective_impact")}
    [episode] = derived(lake, "episodes")
    assert rows[9]["expected_ns"] == 12 * MS
    assert rows[9]["slowdown"] == pytest.approx(2.5)
    assert rows[9]["exposed_ns"] == 18 * MS
    assert rows[9]["episode_id"] == episode["episode_id"]
    assert rows[0]["episode_id"] is None
    assert (rows[0]["slowdown"], rows[0]["exposed_ns"]) == (pytest.approx(10 / 12), 0)
    assert (episode["collectives"], episode["slowdown"]) == (1, pytest.approx(2.5))
    assert episode["jobs"] == ["llm"]
    # No step is known: the exposed time of 8 ranks.
    assert episode["idle_gpu_hours"] == pytest.approx(0.018 * 8 / 3600)
    assert episode["steps_affected"] is None


def test_the_shortest_rank_is_the_transfer(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    rows = [collective(n, n, 10 + rank, rank=rank, comm_rank=rank)
            for n in range(5) for rank in range(2)]  # fmt: skip
    # Rank 1 came late: rank 0 waited for it inside its kernel. The transfer took 20 ms.
    rows += [collective(9, 120, 500), collective(9, 120.48, 20, rank=1, comm_rank=1)]
    put(lake, "collectives", rows)
    rebuild(lake)
    found = [row for row in derived(lake, "collective_impact") if row["seq"] == 9]
    assert [row["duration_ns"] for row in found] == [500 * MS, 20 * MS]
    assert [row["slowdown"] for row in found] == [2.0, 2.0]
    assert [row["exposed_ns"] for row in found] == [10 * MS, 10 * MS]
    [episode] = derived(lake, "episodes")
    assert (episode["collectives"], episode["slowdown"]) == (1, 2.0)


def test_other_sizes_and_operations_are_not_compared(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    rows = [collective(n, n, 10) for n in range(5)]
    rows += [
        collective(20, 120, 40, message_bytes=1 << 26),
        collective(21, 121, 40, op="all_gather"),
        # The same power of two from another communicator of that size: the nearest there is.
        collective(22, 122, 40, comm="c1", message_bytes=(1 << 20) + 4096),
        collective(23, 123, 40, comm="c1", comm_size=16),
    ]
    put(lake, "collectives", rows)
    rebuild(lake)
    expected = {r["seq"]: r["expected_ns"] for r in derived(lake, "collective_impact")}
    assert [expected[seq] for seq in (20, 21, 22, 23)] == [None, None, 10 * MS, None]
    slowdown = {r["seq"]: r["slowdown"] for r in derived(lake, "collective_impact")}
    assert slowdown[20] is None


def test_two_sources_of_one_collective_are_one_row(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    dump = [collective(n, n, None, start_ts=None, enqueue_ts=at(n)) for n in range(3)]
    timed = [collective(n, n, 10) for n in range(3)]
    put(lake, "collectives", dump, source="0" * 12)
    put(lake, "collectives", timed, source="1" * 12)
    rebuild(lake)
    rows = derived(lake, "collective_impact")
    assert [(row["seq"], row["start_ts"], row["duration_ns"]) for row in rows] == [
        (0, 0.0, 10 * MS),
        (1, 1.0, 10 * MS),
        (2, 2.0, 10 * MS),
    ]


def test_a_collective_belongs_to_the_episode_it_overlaps_longest(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    waits = [0.5 if 100 <= s < 110 or 130 <= s < 160 else 0.0 for s in range(300)]
    put(lake, "link_counters", port_rows(A, waits))
    put(lake, "collectives", [collective(1, 105, 40_000)])  # 5 s of the first, 15 of the second
    rebuild(lake)
    first, second = derived(lake, "episodes")
    [row] = derived(lake, "collective_impact")
    assert row["episode_id"] == second["episode_id"]
    assert (first["collectives"], second["collectives"]) == (1, 1)


def test_idle_gpu_hours_are_the_contracts_formula(tmp_path: Path) -> None:
    """Steps of 2 s, of 5 s inside the episode; 16 ranks."""
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    steps = [step(n, 2.0 * (n + 1), 2.0) for n in range(48)]  # until 96 s
    steps += [step(48 + n, 105.0 + 5 * n, 5.0) for n in range(10)]  # (100, 105] .. (145, 150]
    steps += [step(58, 99.0, 2.0, split="validation")]
    put(lake, "steps", steps)
    put(lake, "collectives", [collective(n, n, 10, comm_size=16) for n in range(5)])
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert episode["steps_affected"] == 10
    assert episode["idle_gpu_hours"] == pytest.approx(10 * (5.0 - 2.0) * 16 / 3600)
    assert episode["jobs"] == ["llm"]
    assert episode["slowdown"] is None  # no collective overlapped it


def test_a_job_without_a_name_costs_as_much(tmp_path: Path) -> None:
    """Half of all steps are inside: the median must still be of those outside."""
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    steps = [step(n, 20 * n + 10, 2.0) for n in range(5)]
    steps += [step(5 + n, 105 + 5 * n, 5.0) for n in range(10)]
    # A restart: steps 8 and 9 come again later, outside.
    steps += [step(n, 200 + n, 2.0, extra=[("attempt", "2")]) for n in (8, 9)]
    put(lake, "steps", [{**row, "job": None, "run": None} for row in steps])
    put(lake, "collectives", [collective(n, n, 10, job=None) for n in range(5)])
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert episode["steps_affected"] == 10
    assert episode["idle_gpu_hours"] == pytest.approx(10 * 3.0 * 8 / 3600)
    assert episode["jobs"] == []


def test_a_step_is_from_its_time_stamp_backwards(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    put(lake, "collectives", [collective(n, n, 10) for n in range(5)])
    put(
        lake,
        "steps",
        [
            step(0, 50, 2.0),
            step(1, 99.9, 2.0),  # ends before
            step(2, 100.5, 4.0),  # reaches in
            step(3, 170, 11.0),  # began inside
            step(4, 172, 2.0),
        ],
    )
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert episode["steps_affected"] == 2
    assert episode["idle_gpu_hours"] == pytest.approx((2 + 9) * 8 / 3600)


def test_ranks_seen_count_where_they_are_more(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    rows = [collective(1, 10, 5, rank=r, comm_rank=r, comm_size=2, comm=f"c{r // 2}")
            for r in range(6)]  # fmt: skip
    put(lake, "collectives", rows)
    put(lake, "steps", [step(0, 50, 2.0), step(1, 120, 3.0)])
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert episode["idle_gpu_hours"] == pytest.approx(1.0 * 6 / 3600)


def test_what_nobody_recorded_is_unknown(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert episode["idle_gpu_hours"] is None
    assert episode["slowdown"] is None
    known = (episode["jobs"], episode["collectives"], episode["steps_affected"])
    assert known == ([], None, None)
    put(lake, "steps", [step(0, 50, 2.0)])  # a job, elsewhere in time
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert (episode["idle_gpu_hours"], episode["steps_affected"]) == (0.0, 0)
    assert episode["collectives"] is None


def test_a_sum_of_cost_is_the_same_in_any_order() -> None:
    values = [0.1, 0.7, 1e16, 0.3, -1e16]
    with connect() as session:
        sums = {
            session.rows(f"SELECT steady_sum(list(x)) FROM unnest({list(order)}) AS t(x)")[0][0]
            for order in itertools.permutations(values)
        }
        [nothing] = session.rows("SELECT steady_sum(list(x)) FROM unnest([NULL::DOUBLE]) AS t(x)")
        [partly] = session.rows("SELECT steady_sum(list(x)) FROM unnest([2.5, NULL]) AS t(x)")
    assert len({sum(order) for order in itertools.permutations(values)}) > 1
    assert len(sums) == 1
    assert (nothing, partly) == ((None,), (2.5,))


def test_steps_of_a_job_of_unknown_size_cost_an_unknown_amount(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    congested(lake)
    put(lake, "steps", [step(0, 50, 2.0), step(1, 120, 3.0)])
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert (episode["steps_affected"], episode["idle_gpu_hours"]) == (1, None)


def test_a_job_on_other_hosts_is_not_hit(tmp_path: Path) -> None:
    """node00's switch port waits: a job below leaf 2 has nothing to do with it."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    congested(lake, down(0, 0))
    near = [collective(n, 100 + n, 10, host="node01") for n in range(3)]
    far = [collective(n, 100 + n, 10, host="node20", job="far") for n in range(3)]
    stranger = [collective(n, 100 + n, 10, host="elsewhere", job="?") for n in range(3)]
    put(lake, "collectives", [*near, *far, *stranger])
    rebuild(lake)
    [episode] = derived(lake, "episodes")
    assert (episode["cause"], episode["root_link"]) == ("slow_receiver", down(0, 0))
    assert episode["jobs"] == ["?", "llm"]  # not known where: not ruled out
    assert nic(0, 0) in episode["evidence"]

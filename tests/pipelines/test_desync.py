"""Ranks that disagree, and the ranks a hang comes from."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.collectors_nccl.helpers import context, read_bytes
from tests.pipelines.hangs import Job
from tests.pipelines.lakes import at, derived, new_lake, put
from tests.samples import samples
from xtune.collectors.flight_recorder import COLLECTOR
from xtune.ingest import collect
from xtune.pipelines import rebuild
from xtune.pipelines._desync import desynchronised
from xtune.pipelines._engine import connect
from xtune.tables import TABLES

Rows = list[dict[str, Any]]


def job(seed: int = 1, **changes: int) -> Job:
    shape = {"tp": 4, "pp": 2, "dp": 2, "steps": 3, "batches": 3, "ahead": 12, "seed": seed}
    return Job(**{**shape, **changes})


def stop(of: Job, rank: int, share: float, *, seen_before: int | None = None) -> None:
    """Stop a rank's host at a share of its program, and its watchdog some operations before."""
    stopped = of.ranks[rank]
    stopped.host_stops = int(share * len(stopped.program))
    if seen_before is not None:
        stopped.seen = stopped.host_stops - seen_before


def judged(
    dumps: Mapping[Any, Mapping[str, Any]], folder: Path, *, name: str | None = None
) -> tuple[Rows, Rows]:
    """Rows of ``desync`` and ``desync_verdict`` of dumps, through the collector."""
    rows: Rows = []
    for key, dump in dumps.items():
        read = read_bytes(COLLECTOR, pickle.dumps(dict(dump)), folder)
        rows += [{**row, "source": f"{key}", "job": name} for row in read.rows]
    with connect(threads=1) as session:
        session.load("collectives", _table(rows))
        found, verdicts, _ = desynchronised(session, lambda source: source.rpartition("/")[0])
    return found, verdicts


def _table(rows: Rows) -> pa.Table:
    schema = TABLES["collectives"].schema
    columns = []
    for kind in schema:
        values = [row.get(kind.name) for row in rows]
        if pa.types.is_timestamp(kind.type):
            columns.append(pa.array(values, pa.int64()).cast(kind.type))
        elif pa.types.is_map(kind.type):
            columns.append(pa.array([list((v or {}).items()) for v in values], kind.type))
        else:
            columns.append(pa.array(values, kind.type))
    return pa.table(columns, schema=schema)


def culprits(verdicts: Rows) -> list[list[int]]:
    return [row["culprits"] for row in verdicts]


def named(found: Rows, kind: str) -> set[int]:
    return {rank for row in found if row["kind"] == kind for rank in row["ranks"]}


@pytest.mark.parametrize("ring", [None, 60])
@pytest.mark.parametrize(("rank", "share"), [(9, 0.5), (0, 0.31), (15, 0.83)])
def test_a_host_that_stops(tmp_path: Path, rank: int, share: float, ring: int | None) -> None:
    hung = job()
    stop(hung, rank, share)
    hung.run()
    found, [verdict] = judged(hung.dumps(ring=ring), tmp_path)
    assert verdict["culprits"] == [rank]
    assert (verdict["cause"], verdict["confidence"]) == ("host", "high")
    assert verdict["waiting"] == verdict["explained"] > 8
    assert named(found, "missing") == {rank}
    for row in found:
        if row["kind"] == "missing":
            entered, lacking, _ = json.loads(row["views"])["views"]
            assert rank in lacking["ranks"]
            assert not set(entered["ranks"]) & set(lacking["ranks"])
            assert set(entered["ranks"]) | set(lacking["ranks"]) == set(
                hung.groups[row["comm"].removeprefix("pg:")]
            )


def test_a_device_that_stops_with_its_watchdog(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 9, 0.5, seen_before=5)
    hung.run()
    _, [verdict] = judged(hung.dumps(), tmp_path)
    assert (verdict["culprits"], verdict["cause"]) == ([9], "device")
    assert "9" in json.loads(verdict["reasons"])["culprits"]


def test_where_all_of_a_rank_completed_its_dump_is_empty_and_tells(tmp_path: Path) -> None:
    hung = job(ahead=1)
    stop(hung, 14, 0.6)
    hung.run()
    found, [verdict] = judged(hung.dumps(), tmp_path)
    assert verdict["culprits"] == [14]
    [empty] = [row for row in found if row["kind"] == "empty_dump"]
    assert empty["ranks"] == [14]
    own, others = json.loads(empty["views"])["views"]
    assert own["last"]["pg:0"]["enqueued"] is not None
    assert 14 not in others["ranks"]


@pytest.mark.parametrize("ring", [None, 60])
def test_a_job_that_ended_well_leaves_no_row(tmp_path: Path, ring: int | None) -> None:
    whole = job()
    whole.run()
    assert judged(whole.dumps(ring=ring), tmp_path) == ([], [])


def test_dumps_written_one_after_another_while_a_job_runs_leave_no_row(tmp_path: Path) -> None:
    early, late = job(), job()
    for of, share in ((early, 0.4), (late, 0.7)):
        for rank in of.ranks:
            rank.host_stops = int(share * len(rank.program))
        of.run()
    dumps = {rank: (early if rank < 5 else late).dumps(ring=40)[rank] for rank in range(16)}
    found, verdicts = judged(dumps, tmp_path)
    assert not culprits(verdicts) or verdicts[0]["confidence"] != "high"
    assert not {row["kind"] for row in found} & {"order", "type", "size"}


def test_a_rank_without_a_dump_is_a_third_thing(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 9, 0.5)
    hung.run()
    dumps = hung.dumps()
    del dumps[9]
    _, [verdict] = judged(dumps, tmp_path)
    assert (verdict["culprits"], verdict["cause"]) == ([9], "absent")
    assert (verdict["absent"], verdict["confidence"]) == ([9], "medium")
    del dumps[3]  # it waited like the others, and its dump was lost
    _, [verdict] = judged(dumps, tmp_path)
    assert verdict["absent"] == [3, 9]
    assert set(verdict["culprits"]) <= {3, 9}


def test_dumps_of_few_ranks_blame_nobody(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 9, 0.5)
    hung.run()
    dumps = {rank: dump for rank, dump in hung.dumps().items() if rank < 4}
    rows = [row for rank, dump in dumps.items()
            for row in read_bytes(COLLECTOR, pickle.dumps(dump), tmp_path).rows]  # fmt: skip
    with connect(threads=1) as session:
        session.load("collectives", _table([{**row, "source": str(row["rank"])} for row in rows]))
        found, verdicts, notes = desynchronised(session, lambda source: "")
    assert (found, verdicts) == ([], [])
    [note] = notes
    assert "4 of 16 ranks are too few" in note


def test_random_hangs_name_the_rank_that_stopped(tmp_path: Path) -> None:
    """Two that stop may hide one another: then one of them is named, and never another rank."""
    exact = 0
    for seed in range(25):
        rnd = random.Random(seed)
        tp, pp, dp = rnd.choice([(4, 2, 2), (2, 2, 2), (2, 4, 2), (4, 1, 2), (2, 3, 2)])
        hung = job(seed, tp=tp, pp=pp, dp=dp, ahead=rnd.choice([4, 12, 30]))
        bad = sorted(rnd.sample(range(tp * pp * dp), rnd.choice([1, 2])))
        share = rnd.uniform(0.2, 0.9)
        device = rnd.random() < 0.5
        for rank in bad:
            stop(hung, rank, share, seen_before=rnd.randint(1, 6) if device else None)
        hung.run()
        _, verdicts = judged(hung.dumps(ring=rnd.choice([None, 40])), tmp_path)
        [verdict] = verdicts
        assert verdict["culprits"]
        assert set(verdict["culprits"]) <= set(bad)
        if len(bad) == 1:
            assert verdict["culprits"] == bad
        exact += verdict["culprits"] == bad
    assert exact >= 20


def test_two_attempts_of_one_job_are_not_mixed(tmp_path: Path) -> None:
    first, second = job(1), job(2)
    stop(first, 9, 0.5)
    stop(second, 4, 0.7)
    dumps: dict[Any, Any] = {}
    for n, hung in enumerate((first, second)):
        hung.run()
        for rank, dump in hung.dumps().items():
            for entry in dump["entries"]:
                entry["time_created_ns"] += n * 3_600_000_000_000
            dumps[f"all/{rank}.{n}"] = dump
    _, verdicts = judged(dumps, tmp_path, name="pretrain")
    assert culprits(verdicts) == [[9], [4]]
    assert verdicts[0]["incident"] != verdicts[1]["incident"]
    assert [row["dumps"] for row in verdicts] == [16, 16]


def test_a_dump_without_a_time_goes_to_its_own_hang(tmp_path: Path) -> None:
    """By its folder; where all lie in one, by its counts of operations."""
    first, second = job(1, ahead=1), job(2, ahead=1)
    stop(first, 9, 0.3)
    stop(second, 9, 0.8)
    for apart in (True, False):
        dumps: dict[Any, Any] = {}
        for n, hung in enumerate((second, first)):
            hung.run()
            for rank, dump in hung.dumps().items():
                for entry in dump["entries"]:
                    entry["time_created_ns"] += n * 3_600_000_000_000
                dumps[f"{n if apart else 'all'}/{rank}x{1 - n}"] = dump
        assert not dumps[f"{0 if apart else 'all'}/9x1"]["entries"]
        _, verdicts = judged(dumps, tmp_path)
        assert culprits(verdicts) == [[9], [9]]
        assert [row["dumps"] for row in verdicts] == [16, 16]
        assert [row["confidence"] for row in verdicts] == ["high", "high"]


def test_one_hang_whose_dumps_lie_in_a_folder_a_host(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 9, 0.5)
    hung.run()
    dumps = {f"host{rank // 4}/_dump_{rank}": dump for rank, dump in hung.dumps().items()}
    _, [verdict] = judged(dumps, tmp_path)
    assert (verdict["dumps"], verdict["culprits"], verdict["absent"]) == (16, [9], [])


def test_a_dump_delivered_twice_counts_once(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 9, 0.5)
    hung.run()
    once = judged(hung.dumps(), tmp_path)
    twice = {f"{n}/{rank}": dump for n in (1, 2) for rank, dump in hung.dumps().items()}
    assert judged(twice, tmp_path) == once


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"profiling_name": "nccl:broadcast"}, "type"),
        ({"input_dtypes": ["Float"], "output_dtypes": ["Float"]}, "type"),
        ({"input_sizes": [[999]], "output_sizes": [[999]]}, "size"),
    ],
)
def test_one_operation_that_differs(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    hung = job(pp=1, dp=4)
    for rank in hung.ranks:
        rank.host_stops = 12
    hung.run()
    dumps = hung.dumps(ring=60)
    [entry] = [e for e in dumps[6]["entries"] if (e["pg_id"], e["collective_seq_id"]) == (0, 1)]
    entry |= changes
    [row], verdicts = judged(dumps, tmp_path)
    assert (row["kind"], row["ranks"], row["comm"], row["seq"]) == (kind, [6], "pg:0", 1)
    usual, other = json.loads(row["views"])["views"]
    assert usual["ranks"] == [r for r in range(16) if r != 6]
    assert other["ranks"] == [6]
    assert verdicts == []  # it completed all the same


def log_rows(ops: Mapping[int, Iterable[tuple[str, int]]], **columns: Any) -> Rows:
    """Rows of an NCCL log: rank -> its operations, (operation, bytes), one a second."""
    return [
        {
            "start_ts": at(seq), "duration_ns": 1000, "job": "j", "rank": rank, "comm": "0xab",
            "comm_size": len(ops), "seq": seq, "op": op, "dtype": "bf16", "message_bytes": size,
            **columns,
        }
        for rank, of_rank in ops.items()
        for seq, (op, size) in enumerate(of_rank)
    ]  # fmt: skip


USUAL = [("all_reduce", 8), ("all_gather", 16), ("all_reduce", 24), ("reduce_scatter", 8)] * 3


def test_two_operations_swapped_and_one_left_out(tmp_path: Path) -> None:
    swapped = [*USUAL]
    swapped[4], swapped[5] = swapped[5], swapped[4]
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", log_rows({0: USUAL, 1: swapped, 2: USUAL, 3: USUAL[:7] + USUAL[8:]}))
    rebuild(lake)
    first, second = derived(lake, "desync")
    assert (first["kind"], first["seq"], first["ranks"], first["ts"]) == ("order", 4, [1], 4.0)
    assert json.loads(first["views"])["last_seq"] == 5
    assert (second["kind"], second["seq"], second["ranks"]) == ("order", 7, [3])
    assert json.loads(second["views"])["last_seq"] == 10
    assert first["incident"] is None


def test_what_is_no_disagreement(tmp_path: Path) -> None:
    uneven = {0: [("all_to_all", 8)], 1: [("all_to_all", 9)]}
    by_op = {0: [("all_reduce", 8)], 1: [("broadcast", 8)]}
    shorter = {0: USUAL, 1: USUAL[:5]}
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", log_rows(uneven, comm="0x1"), source="1" * 12)
    put(lake, "collectives", log_rows(shorter, comm="0x3"), source="3" * 12)
    restarted = log_rows({0: USUAL}, comm="pg:0")
    for row in restarted:
        row["start_ts"] += 3_600_000_000_000
        row["rank"] = 1
        row["message_bytes"] = 5
    put(lake, "collectives", log_rows({0: USUAL}, comm="pg:0") + restarted, source="4" * 12)
    rebuild(lake)
    assert derived(lake, "desync") == []
    with connect(threads=1) as session:
        rows = log_rows(by_op)
        session.load("collectives", _table([{**r, "extra": {"seq_of": "op"}} for r in rows]))
        assert desynchronised(session, lambda source: "") == ([], [], [])


def test_across_midnight_it_is_told_once(tmp_path: Path) -> None:
    rows = log_rows({0: [("all_reduce", 8)], 1: [("broadcast", 8)]})
    rows[0]["start_ts"], rows[1]["start_ts"] = at(50_399.9), at(50_400.1)  # 24:00 is T0 + 14 h
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", rows)
    rebuild(lake)
    [row] = derived(lake, "desync")
    assert (row["ts"], row["kind"], row["ranks"]) == (50_399.9, "type", [0, 1])


def test_without_counts_the_entries_tell(tmp_path: Path) -> None:
    """A dump without ``pg_status``, and groups whose names are no numbers."""
    hung = job()
    stop(hung, 9, 0.5)
    hung.run()
    for ring in (None, 60):
        dumps = hung.dumps(ring=ring)
        for dump in dumps.values():
            dump["pg_status"] = {}
        _, [verdict] = judged(dumps, tmp_path)
        assert verdict["culprits"] == [9]
        renamed = {}
        for rank, dump in hung.dumps(ring=ring).items():
            text = json.dumps(dump)
            for name in hung.groups:
                text = text.replace(f'"name": "{name}"', f'"name": "g_{name}"')
                text = text.replace(f'"process_group": ["{name}"', f'"process_group": ["g_{name}"')
            renamed[rank] = json.loads(text)
        _, [verdict] = judged(renamed, tmp_path)
        assert verdict["culprits"] == [9]


def test_an_operation_under_way_that_differs_is_why_it_hangs(tmp_path: Path) -> None:
    hung = job()
    stop(hung, 15, 0.5)
    hung.run()
    dumps = hung.dumps(ring=60)
    [tensor] = [n for n, ranks in hung.groups.items() if ranks == [0, 1, 2, 3]]
    waiting = [
        {
            (e["process_group"][0], e["collective_seq_id"])
            for e in dumps[rank]["entries"]
            if e["state"] == "scheduled" and not e["is_p2p"]
        }
        for rank in range(4)
    ]
    under_way = min(n for comm, n in set.intersection(*waiting) if comm == tensor)
    for entry in dumps[2]["entries"]:
        if (entry["process_group"][0], entry["collective_seq_id"]) == (tensor, under_way):
            entry["profiling_name"] = "nccl:broadcast"
    found, [verdict] = judged(dumps, tmp_path)
    assert (verdict["culprits"], verdict["cause"]) == ([2], "type")
    assert (verdict["comm"], verdict["seq"]) == (f"pg:{tensor}", under_way)
    assert [row["ranks"] for row in found if row["kind"] == "type"] == [[2]]


def test_where_all_joined_and_none_differs_the_transfer_stopped(tmp_path: Path) -> None:
    """Told only once an operation is older than its timeout; before, it may well complete."""
    dumps = {}
    for rank in range(4):
        one = job(tp=4, pp=1, dp=1).dumps()[rank]
        entry = {
            **entry_of(0, 1, "all_reduce"), "timeout_ms": 1000, "state": "started",
            "time_discovered_started_ns": at(0.5),
        }  # fmt: skip
        one["entries"] = [entry]
        dumps[rank] = one
    assert judged(dumps, tmp_path) == ([], [])
    dumps[0]["entries"].append({**entry_of(0, 2, "all_reduce"), "time_created_ns": at(5)})
    for rank in range(1, 4):
        dumps[rank]["entries"].append({**entry_of(0, 2, "all_reduce"), "time_created_ns": at(5)})
    found, [verdict] = judged(dumps, tmp_path)
    assert found == []
    assert (verdict["culprits"], verdict["cause"]) == ([], "transfer")
    dumps[2]["entries"][0] |= {"state": "scheduled", "time_discovered_started_ns": None}
    _, [verdict] = judged(dumps, tmp_path)
    assert (verdict["culprits"], verdict["cause"]) == ([2], "device")


def entry_of(group: int, number: int, op: str) -> dict[str, Any]:
    """An entry of the group with a process's number ``group``, which is the world's name too."""
    return {
        "record_id": number, "pg_id": group, "process_group": (str(group), "world"),
        "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": f"nccl:{op}",
        "time_created_ns": at(0), "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def test_a_second_rebuild_writes_nothing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "collectives", log_rows({0: [("all_reduce", 8)], 1: [("broadcast", 8)]}))
    rebuild(lake)
    before = [file.path for file in lake.files("derived/desync")]
    assert before
    rebuild(lake)
    assert [file.path for file in lake.files("derived/desync")] == before


@pytest.mark.shared_samples
@pytest.mark.parametrize("apart", [True, False])
def test_public_dumps_of_injected_faults(tmp_path: Path, apart: bool) -> None:
    """Renamed and copied elsewhere, each scenario in a folder of its own or both in one."""
    expected = {}
    for scenario in ("gpu_error_2nd", "lock_gil_1st"):
        source = samples("nccl_flight_recorder", scenario)
        words = (source / "fault_injection.log").read_text()
        expected[scenario] = sorted(json.loads(words.partition("Fault ranks:")[2].split("\n")[0]))
        for rank in range(16):
            place = tmp_path / "in" / (scenario[:2] if apart else "all")
            place.mkdir(parents=True, exist_ok=True)
            name = f"{scenario[:1]}{rank * 7 % 16:x}.bin"
            shutil.copyfile(source / f"_dump_{rank}", place / name)
    lake = new_lake(tmp_path / "lake")
    collect(lake, [str(tmp_path / "in")], context=context())
    summary = rebuild(lake)
    found = derived(lake, "desync_verdict")
    by_cause = {row["cause"]: row["culprits"] for row in found}
    assert by_cause == {"device": expected["gpu_error_2nd"], "host": expected["lock_gil_1st"]}
    assert {row["op"] for row in found} == {"all_to_all"}
    rows = derived(lake, "desync")
    for row in found:
        own = [r for r in rows if r["incident"] == row["incident"]]
        assert named(own, "missing") == set(row["culprits"])
        assert {r["kind"] for r in own} <= {"missing", "empty_dump"}
    assert sum("hangs in all_to_all" in note for note in summary.notes) == 2

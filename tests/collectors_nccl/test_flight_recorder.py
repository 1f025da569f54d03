from __future__ import annotations

import copy
import io
import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors._base import Source, Unknown
from xtune.collectors._plain_pickle import UnsafePickleError, load_plain
from xtune.collectors.flight_recorder import COLLECTOR

ENTRY: dict[str, Any] = {
    "record_id": 7,
    "pg_id": 3,
    "process_group": ("tp", "TENSOR"),
    "collective_seq_id": 41,
    "p2p_seq_id": 0,
    "op_id": 41,
    "profiling_name": "nccl:_all_gather_base",
    "time_created_ns": 1_700_000_000_123_456_789,
    "time_discovered_started_ns": 1_700_000_000_900_000_000,
    "time_discovered_completed_ns": None,
    "duration_ms": 1.25,
    "input_sizes": [[3, 5]],
    "input_dtypes": ["BFloat16"],
    "output_sizes": [[12, 5]],
    "output_dtypes": ["BFloat16"],
    "state": "started",
    "retired": False,
    "timeout_ms": 600000,
    "is_p2p": False,
}
DUMP: dict[str, Any] = {
    "version": "2.9",
    "nccl_version": "2.27.3",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
        "tp": {"name": "tp", "desc": "TENSOR", "ranks": "[4, 5, 6, 7]"},
        "dp": {"name": "dp", "desc": "DATA", "ranks": "[2, 6]"},
    },
    "pg_status": {
        "3": {
            "last_enqueued_collective": 42,
            "last_started_collective": -1,
            "last_completed_collective": 40,
        }
    },
    "entries": [ENTRY],
}


def dump(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DUMP), **changes}


def entry(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ENTRY), **changes}


def test_number_of_a_dump_of_before_pytorch_2_4(tmp_path: Path) -> None:
    old = entry(seq_id=41, op_id=44)
    del old["collective_seq_id"], old["p2p_seq_id"]
    read = read_bytes(COLLECTOR, pickle.dumps(dump(entries=[old])), tmp_path)
    assert [row["seq"] for row in read.rows] == [41]


def test_one_entry_by_hand(tmp_path: Path) -> None:
    read = read_bytes(COLLECTOR, pickle.dumps(DUMP, protocol=2), tmp_path)
    assert not read.rejects and not read.notes
    (row,) = read.rows
    # Rank 6 alone is in all three groups; in tp it is the third of four.
    assert some(row, "rank", "comm_rank", "comm", "comm_size", "seq") == (6, 2, "pg:tp", 4, 41)
    assert some(row, "op", "dtype", "state") == ("all_gather", "bf16", "started")
    assert row["enqueue_ts"] == 1_700_000_000_123_456_789
    assert row["start_ts"] is None  # a watchdog's discovery is no start
    assert row["duration_ns"] == 1_250_000
    assert row["message_bytes"] == 12 * 5 * 2  # the whole array, not the share
    assert row["extra"]["discovered_started_ns"] == "1700000000900000000"
    assert row["extra"]["group_last_enqueued"] == "42"
    assert "group_last_started" not in row["extra"]  # -1 is none


def test_json_variant_gives_the_same_rows(tmp_path: Path) -> None:
    data = json.dumps(DUMP).encode()
    path = tmp_path / "dump.json"
    path.write_bytes(data)
    assert COLLECTOR.claim(path, data) > 0.9
    as_json = read_bytes(COLLECTOR, data, tmp_path).rows
    assert as_json == read_bytes(COLLECTOR, pickle.dumps(DUMP), tmp_path).rows


def as_dump_json(changed: dict[str, Any]) -> bytes:
    """As ``dump_json`` writes it: keys sorted, the status as text, times of 0 for none."""
    plain = copy.deepcopy(changed)
    plain["comm_lib_version"] = plain.pop("nccl_version")
    for status in plain["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})
    for one in plain["entries"]:
        one["thread_id"], one["thread_name"] = "140", "pt_nccl"
        for key, value in one.items():
            if key.startswith("time_") and value is None:
                one[key] = 0
    if not plain["entries"]:
        del plain["entries"]
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def test_dump_json_as_pytorch_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    for changed in (DUMP, dump(entries=[])):
        data = as_dump_json(changed)
        path.write_bytes(data)
        assert COLLECTOR.claim(path, data[:65536]) > 0.9
        as_json = read_bytes(COLLECTOR, data, tmp_path).rows
        assert as_json == read_bytes(COLLECTOR, pickle.dumps(changed), tmp_path).rows
    # Entries come first: the head of a long dump has no process groups yet.
    long = as_dump_json(dump(entries=[entry(record_id=n) for n in range(400)]))
    assert b"pg_config" not in long[:65536] and COLLECTOR.claim(path, long[:65536]) > 0.9


def test_cut_json_dump_keeps_its_whole_entries(tmp_path: Path) -> None:
    entries = [entry(record_id=n, collective_seq_id=n) for n in range(5)]
    data = as_dump_json(dump(entries=entries))
    cut = data[: data.index(b'"collective_seq_id":3') + 30]
    read = read_bytes(COLLECTOR, cut, tmp_path)
    assert [row["seq"] for row in read.rows] == [0, 1, 2]
    (reject,) = read.rejects
    assert "3 whole entries are kept" in reject.reason


def test_forks_rename_the_library_and_unknown_keys_are_named(tmp_path: Path) -> None:
    changed = dump(bccl_comm_state={"7": {"rank": "6"}}, weather="fine")
    changed["entries"][0]["profiling_name"] = "bccl:_all_gather_base"
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps(changed))
    items = list(COLLECTOR.read(Source(path, "dump"), context()))
    assert [item.name for item in items if isinstance(item, Unknown)] == ["weather"]
    (row,) = read_path(COLLECTOR, path).rows
    assert some(row, "op", "seq", "rank") == ("all_gather", 41, 6)


@pytest.mark.parametrize(
    ("name", "sent", "received", "expected"),
    [
        ("nccl:all_reduce", [[8]], [[8]], ("all_reduce", 32)),
        ("nccl:_reduce_scatter_base", [[16]], [[4]], ("reduce_scatter", 64)),
        ("nccl:all_gather", [[4]], [[4], [4], [4], [4]], ("all_gather", 64)),
        ("nccl:reduce_scatter_tensor_coalesced", [[16], [8]], [[4], [2]], ("reduce_scatter", 96)),
        ("nccl:all_to_all", [[12]], [[20]], ("all_to_all", 48)),
        ("nccl:gather", [[4]], [], ("gather", 64)),
        ("nccl:scatter", [], [[4]], ("scatter", 64)),
        ("nccl:broadcast", [[4]], [[4]], ("broadcast", 16)),
        ("nccl:all_reduce_barrier", [[1]], [[1]], ("barrier", None)),
    ],
)
def test_size_is_that_of_nccl_tests(
    tmp_path: Path,
    name: str,
    sent: list[list[int]],
    received: list[list[int]],
    expected: tuple[str, int | None],
) -> None:
    changed = entry(
        profiling_name=name,
        input_sizes=sent,
        output_sizes=received,
        input_dtypes=["Float"] * len(sent),
        output_dtypes=["Float"] * len(received),
    )
    (row,) = read_bytes(COLLECTOR, pickle.dumps(dump(entries=[changed])), tmp_path).rows
    assert some(row, "op", "message_bytes") == expected


def test_send_has_no_number_in_its_group(tmp_path: Path) -> None:
    changed = entry(profiling_name="nccl:send 2->0", is_p2p=True, p2p_seq_id=9)
    (row,) = read_bytes(COLLECTOR, pickle.dumps(dump(entries=[changed])), tmp_path).rows
    assert some(row, "op", "seq") == ("send", None)
    assert some(row["extra"], "p2p_seq", "peer") == ("9", "2->0")


def test_unknown_sizes_are_null_and_do_not_spoil_the_row(tmp_path: Path) -> None:
    changed = entry(input_dtypes=["Quaternion"], time_created_ns=0, duration_ms="soon")
    (row,) = read_bytes(COLLECTOR, pickle.dumps(dump(entries=[changed])), tmp_path).rows
    assert some(row, "message_bytes", "enqueue_ts", "duration_ns") == (None, None, None)
    assert some(row, "seq", "dtype") == (41, "Quaternion")


def test_empty_dump_is_kept_as_evidence(tmp_path: Path) -> None:
    read = read_bytes(COLLECTOR, pickle.dumps(dump(entries=[])), tmp_path)
    (row,) = read.rows
    assert some(row, "op", "state", "rank", "comm", "seq") == (
        "empty_dump",
        "empty",
        6,
        None,
        None,
    )
    assert json.loads(row["extra"]["process_groups"])["dp"] == [2, 6]
    assert json.loads(row["extra"]["process_group_status"]) == {
        "3": {"enqueued": 42, "completed": 40}
    }
    assert read.note("empty Flight Recorder dump").count == 1


def test_groups_and_status_stand_in_the_first_row_of_every_dump(tmp_path: Path) -> None:
    world = list(range(4096))  # 22 kB as text
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(world)}}
    given = dump(entries=[entry(), entry()], pg_config=config)
    read = read_bytes(COLLECTOR, pickle.dumps(given), tmp_path)
    first, second = (row["extra"] for row in read.rows)
    assert json.loads(first["process_groups"]) == {"0": world}
    assert json.loads(first["process_group_status"])["3"]["enqueued"] == 42
    assert first["pg_id"] == second["pg_id"] == "3"
    assert not {"process_groups", "process_group_status"} & second.keys()


ALL = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


@pytest.mark.parametrize(
    ("name", "given_rank", "expected", "words"),
    [
        ("nccl_trace_rank_3", None, 3, "digits that end"),
        ("_dump_2", None, 2, "digits that end"),
        ("_dump_2", 1, 1, None),
        ("dump_node12", None, None, "not known"),  # a host's number is no rank
        ("_dump_9", None, None, "not known"),  # no such rank in the groups
        ("trace_rank_1.pickle", None, None, "not known"),
    ],
)
def test_rank_from_context_or_name(
    tmp_path: Path, name: str, given_rank: int | None, expected: int | None, words: str | None
) -> None:
    data = pickle.dumps(dump(pg_config=ALL))
    read = read_bytes(COLLECTOR, data, tmp_path, name, context(rank=given_rank))
    assert read.rows[0]["rank"] == expected
    assert [words in note.text for note in read.notes if words] == ([True] if words else [])


def test_content_wins_over_the_rank_given(tmp_path: Path) -> None:
    read = read_bytes(COLLECTOR, pickle.dumps(DUMP), tmp_path, ctx=context(rank=1))
    assert read.rows[0]["rank"] == 6
    assert "not the rank given" in read.notes[0].text


def test_own_rank_in_a_send_narrows_the_choice(tmp_path: Path) -> None:
    changed = entry(process_group=("0", "default_pg"), profiling_name="nccl:send 2->0")
    read = read_bytes(COLLECTOR, pickle.dumps(dump(pg_config=ALL, entries=[changed])), tmp_path)
    assert read.rows[0]["rank"] == 2 and not read.notes


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "ran"
    data = pickle.dumps({"entries": [Hostile(target)], "pg_config": {}}, protocol)
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rows
    assert "not plain data" in read.rejects[0].reason
    assert not target.exists()


def test_the_second_lock_holds_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    monkeypatch.setattr("xtune.collectors._plain_pickle._check", lambda *_: None)
    with pytest.raises(UnsafePickleError, match="system"):
        load_plain(pickle.dumps(Hostile(target)))
    assert not target.exists()


def test_bombs_are_refused(tmp_path: Path) -> None:
    long_bomb = b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 64 + b"."
    huge_memo = b"\x80\x02]r\xff\xff\xff\x7f."
    wide_long = b"\x80\x02\x8a\x20" + b"\x7f" * 32 + b"."
    text_long = b"L" + b"9" * 100_000 + b"L\n."
    # A tuple that holds the one before twice, forty times over: its hash visits 2**40 tuples.
    laughs = b"\x80\x02}(K\x01q\x00" + b"".join(
        b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(40)
    )
    key_bomb = laughs + b"K\x01u."
    deep_key = b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s."
    for bomb in (long_bomb, huge_memo, wide_long, text_long, key_bomb, deep_key):
        read = read_bytes(COLLECTOR, bomb, tmp_path)
        assert len(read.rejects) == 1 and not read.rows
    with pytest.raises(UnsafePickleError, match="more than 100 values"):
        load_plain(b"\x80\x02(" + b"]" * 200 + b"t.", max_opcodes=100)


def test_deep_nesting_is_loaded_or_refused_but_never_crashes(tmp_path: Path) -> None:
    data = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    assert len(read_bytes(COLLECTOR, data, tmp_path).rejects) == 1
    assert len(read_bytes(COLLECTOR, b'{"pg_config":' + b"[" * 200_000, tmp_path).rejects) == 1


def test_self_reference_is_harmless(tmp_path: Path) -> None:
    data = dump()
    data["entries"].append(data["entries"])
    data["pg_config"]["0"]["ranks"] = data
    read = read_bytes(COLLECTOR, pickle.dumps(data), tmp_path)
    assert len(read.rows) == 1 and read.rejects[0].offset == "entry 1"


@pytest.mark.parametrize("size", [0, 1, 2, 87])
def test_cut_files(tmp_path: Path, size: int) -> None:
    data = pickle.dumps(DUMP)[:size]
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert len(read.rejects) == 1 and not read.rows


def test_plain_values_come_back_as_they_were() -> None:
    value: dict[str, Any] = {"a": [1, -2, 2**70, 1.5, None, True, "ü", ("x", [], {}, ())], "b": {}}
    value["again"] = value["a"]
    for protocol in range(2, 6):
        assert load_plain(pickle.dumps(value, protocol)) == value
    assert load_plain(pickle.dumps([b"bytes"], 3)) == [b"bytes"]
    unmemoised = pickletools.optimize(pickle.dumps(value, 2))
    assert load_plain(unmemoised) == value


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(DUMP, protocol=data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for content in (bytes(whole), bytes(whole[:cut]), data.draw(st.binary(max_size=60))):
        COLLECTOR.claim(tmp_path, content)
        read = read_bytes(COLLECTOR, content, tmp_path)
        assert read.rows or read.rejects


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_fields_of_any_type_never_raise_and_good_entries_stay(
    tmp_path: Path, data: st.DataObject
) -> None:
    odd = entry()
    for key in data.draw(st.lists(st.sampled_from(sorted(ENTRY)), max_size=5)):
        odd[key] = data.draw(JSON_LIKE)
    changed = dump(entries=[entry(), odd, data.draw(JSON_LIKE), entry(collective_seq_id=42)])
    changed["pg_status"] = data.draw(JSON_LIKE)
    read = read_bytes(COLLECTOR, pickle.dumps(changed), tmp_path)
    seqs = [row["seq"] for row in read.rows if row["comm"] == "pg:tp"]
    assert seqs[0] == 41 and seqs[-1] == 42


def test_gzip_that_is_cut(tmp_path: Path) -> None:
    import gzip

    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb") as stream:
        stream.write(os.urandom(5000))
    assert len(read_bytes(COLLECTOR, buffer.getvalue()[:-900], tmp_path).rejects) == 1


@pytest.mark.shared_samples
@pytest.mark.parametrize("trial", ["gpu_error_2nd", "lock_gil_1st"])
def test_every_public_dump(trial: str) -> None:
    folder = samples("nccl_flight_recorder", trial)
    for rank in range(16):
        path = folder / f"_dump_{rank}"
        assert COLLECTOR.claim(path, path.read_bytes()) > 0.9
        read = read_path(COLLECTOR, path)
        assert not read.rejects
        # The rank that follows from the process groups is the one in the file's name.
        assert {row["rank"] for row in read.rows} == {rank}
        dumped = pickle.loads(path.read_bytes())  # a public file of known content
        assert len(read.rows) == max(len(dumped["entries"]), 1)
        empty = [row for row in read.rows if row["op"] == "empty_dump"]
        assert bool(empty) == (not dumped["entries"])
        for row, raw in zip(read.rows, dumped["entries"], strict=False):
            assert row["enqueue_ts"] == raw["time_created_ns"]
            if not raw["is_p2p"]:
                assert row["seq"] == raw["collective_seq_id"]

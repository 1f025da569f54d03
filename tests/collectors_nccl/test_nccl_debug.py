from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import Read, context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors.nccl_debug import COLLECTOR


def coll(
    name: str = "AllReduce", *, count: int = 1000, dtype: int = 7, comm: str = "0xaa", n: int = 2,
    extra: str = "", op_count: str = "0", op: int = 0,
) -> str:  # fmt: skip
    return (
        f"{name}: opCount {op_count} sendbuff 0x7f0 recvbuff 0x7f8{extra} count {count}"
        f" datatype {dtype} op {op} root 0 comm {comm} [nranks={n}] stream 0x55f0"
    )


def info(host: str, pid: int, body: str, tid: int | None = None) -> str:
    return f"{host}:{pid}:{tid or pid} [0] NCCL INFO {body}"


def init(comm: str, rank: int, n: int, unique: str, event: str = "Init COMPLETE") -> str:
    return (
        f"ncclCommInitRank comm {comm} rank {rank} nranks {n} cudaDev 0 nvmlDev 0 busId 41000"
        f" commId {unique} - {event}"
    )


def read_lines(tmp_path: Path, *lines: str, **ctx: Any) -> Read:
    data = "".join(line + "\n" for line in lines).encode()
    return read_bytes(COLLECTOR, data, tmp_path, ctx=context(**ctx))


def test_init_line_names_the_communicator(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        info("Node-1", 7, init("0xaa", 0, 2, "0x00beef", "Init START")),
        info("node-2", 7, init("0xbb", 1, 2, "0xbeef", "Init START")),
        info("node-1", 7, init("0xaa", 0, 2, "0xbeef")),
        info("node-2", 7, init("0xbb", 1, 2, "0xbeef")),
        info("node-1", 7, coll()),
        info("node-2", 7, coll(comm="0xbb")),
        info("node-1", 7, coll("AllGather", dtype=9)),
    )
    assert not read.rejects and not read.notes
    by_rank = {(r["comm_rank"], r["seq"]): r for r in read.rows}
    assert {r["comm"] for r in read.rows} == {"0xbeef"}
    assert some(by_rank[0, 0], "op", "dtype", "host") == ("all_reduce", "fp32", "node-1")
    assert by_rank[1, 0]["host"] == "node-2"
    # 1000 elements of bf16 from each of 2 ranks.
    assert some(by_rank[0, 1], "op", "message_bytes") == ("all_gather", 1000 * 2 * 2)
    assert by_rank[0, 0]["message_bytes"] == 4000
    assert by_rank[0, 0]["enqueue_ts"] is None and by_rank[0, 0]["start_ts"] is None


def test_op_count_is_hexadecimal_and_no_sequence_number(tmp_path: Path) -> None:
    # One node, NCCL >= 2.27: opCount stays 0. Elsewhere grouped operations share it.
    read = read_lines(
        tmp_path, *(info("h", 1, coll(op_count=c)) for c in ("0", "0", "1b", "1b", "1c"))
    )
    assert [r["seq"] for r in read.rows] == [0, 1, 2, 3, 4]
    assert [r["extra"]["op_count"] for r in read.rows] == ["0", "0", "1b", "1b", "1c"]


def test_each_communicator_counts_for_itself_and_sends_do_not_count(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        info("h", 1, coll(comm="0xaa")),
        info("h", 1, coll(comm="0xbb")),
        info("h", 1, coll("Send", comm="0xaa")),
        info("h", 1, coll(comm="0xaa")),
    )
    assert [some(r, "op", "seq") for r in read.rows] == [
        ("all_reduce", 0), ("all_reduce", 0), ("send", None), ("all_reduce", 1),
    ]  # fmt: skip


def test_pointer_used_again_after_destroy_is_another_communicator(tmp_path: Path) -> None:
    destroy = "comm 0xaa rank 0 nranks 2 cudaDev 0 busId 41000 - Destroy COMPLETE"
    read = read_lines(
        tmp_path,
        info("h", 1, init("0xaa", 0, 2, "0x1")),
        info("h", 1, coll()),
        info("h", 1, coll()),
        info("h", 1, destroy),
        info("h", 1, init("0xaa", 1, 4, "0x2", "Init START")),
        info("h", 1, coll(n=4)),
    )
    assert [some(r, "comm", "comm_rank", "comm_size", "seq") for r in read.rows] == [
        ("0x1", 0, 2, 0), ("0x1", 0, 2, 1), ("0x2", 1, 4, 0),
    ]  # fmt: skip


def test_microseconds_that_early_rccl_prints(tmp_path: Path) -> None:
    lines = [info("node-3", 7, coll()).replace(" NCCL INFO", f" {at} NCCL INFO", 1)
             for at in (1_558_545_003_174_220, 1_558_545_003_174_999)]  # fmt: skip
    read = read_lines(tmp_path, *lines)
    assert [some(r, "host", "enqueue_ts") for r in read.rows] == [
        ("node-3", 1_558_545_003_174_220_000), ("node-3", 1_558_545_003_174_999_000),
    ]  # fmt: skip
    assert not read.rejects and read.rows[0]["extra"]["pid"] == "7"


def test_without_init_the_communicator_is_null_and_a_candidate_is_named(tmp_path: Path) -> None:
    read = read_lines(tmp_path, info("h", 1, coll()), info("h", 2, coll(comm="0xbb")))
    assert [r["comm"] for r in read.rows] == [None, None]
    assert [r["extra"]["comm_pointer"] for r in read.rows] == ["0xaa", "0xbb"]
    assert {r["extra"]["comm_candidate"] for r in read.rows} == {"unnamed:2"}
    assert read.note("no Init line").count == 2
    # Three processes cannot all be in one communicator of two.
    read = read_lines(tmp_path, *(info("h", p, coll(comm=f"0xa{p}")) for p in (1, 2, 3)))
    assert not any("comm_candidate" in r["extra"] for r in read.rows)


def test_same_pid_in_two_containers(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        "3: " + info("pod", 278, init("0xaa", 3, 4, "0x5")),
        "1: " + info("pod", 278, init("0xaa", 1, 4, "0x5")),
        "3: " + info("pod", 278, coll(n=4)),
        "1: " + info("pod", 278, coll(n=4)),
    )
    assert sorted(some(r, "comm_rank", "seq") for r in read.rows) == [(1, 0), (3, 0)]
    assert sorted(r["extra"]["launcher_label"] for r in read.rows) == ["1", "3"]


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        ("12:59:59 ", "13:00:00 ", None),
        ("[12:59:59.9] ", "[13:00:00.1] ", None),
        ("2026-01-31 12:59:59 3: ", "2026-01-31 13:00:00 3: ", "3"),
        ("[2026-01-31T12:59:59Z] [rank3]: ", "[2026-01-31T13:00:00Z] [rank3]: ", "rank3"),
    ],
)
def test_a_time_is_no_label(tmp_path: Path, first: str, second: str, label: str | None) -> None:
    read = read_lines(
        tmp_path,
        first + info("h", 1, init("0xaa", 0, 2, "0x9")),
        second + info("h", 1, coll()),
        second + info("h", 1, coll()),
    )
    # One process before and after: the Init line's communicator is the one that is used.
    assert [some(r, "comm", "seq") for r in read.rows] == [("0x9", 0), ("0x9", 1)]
    assert {r["extra"].get("launcher_label") for r in read.rows} == {label}


@pytest.mark.parametrize(
    "prefix",
    [
        "3: ",
        "[rank3]:",
        "[1,3]<stdout>:",
        "(Worker pid=4711, ip=10.0.0.3) ",
        "node-9: ",
        "worker_1  | ",
        "2026-01-31T12:00:00.5Z ",
        "[2026-01-31 12:00:00] ",
        "7: [2026-01-31 12:00:00.123] ",
        "12:00:00 ",
        "[12:00:00.123456] ",
        "Jan 31 12:00:00 login trainer[77]: ",
    ],
)
def test_launcher_prefixes(tmp_path: Path, prefix: str) -> None:
    read = read_lines(tmp_path, prefix + info("node-1", 7, coll()))
    assert [some(r, "host", "seq") for r in read.rows] == [("node-1", 0)]


def test_doubled_stamps_and_zones(tmp_path: Path) -> None:
    noon = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()) * 10**9
    line = "[2026-07-01 14:00:01] [2026-07-01 14:00:00.25] " + info("h", 1, coll())
    zoned = "2026-07-01T12:00:01Z [2026-07-01 14:00:00] " + info("h", 1, coll())
    read = read_lines(tmp_path, line, zoned)
    # No zone named: null, unless another stamp of the line has one.
    assert [r["enqueue_ts"] for r in read.rows] == [None, noon + 10**9]
    assert read.note("--tz").count == 1
    read = read_lines(tmp_path, line, zoned, tz="Europe/Berlin")
    assert [r["enqueue_ts"] for r in read.rows] == [noon + 250_000_000, noon]
    assert not read.notes[1:]
    read = read_lines(tmp_path, line, tz="Mars/Olympus")
    assert read.rows[0]["enqueue_ts"] is None and read.note("not known")


def test_hour_that_the_clock_change_repeats_is_said(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path, "[2026-10-25 02:30:00] " + info("h", 1, coll()), tz="Europe/Berlin"
    )
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30 summer time
    assert read.rows[0]["enqueue_ts"] == int(first.timestamp()) * 10**9
    assert read.note("clock change").count == 1


def test_rccl(tmp_path: Path) -> None:
    line = info("h", 1, coll(extra=" acc (nil)") + " task 0 globalrank 5").replace(
        "recvbuff 0x7f8", "recvbuff (nil)"
    )
    (row,) = read_lines(tmp_path, line).rows
    assert some(row, "rank", "message_bytes") == (5, 4000)


def test_operator_root_and_peer_only_where_they_mean_something(tmp_path: Path) -> None:
    # NCCL prints "op 0 root 0" for each: an AllGather is no sum, and has no root.
    names = ("AllReduce", "ReduceScatter", "AllGather", "Broadcast", "Reduce", "Send", "Recv")
    read = read_lines(tmp_path, *(info("h", 1, coll(name)) for name in names))
    said = {
        row["op"]: {k: v for k, v in row["extra"].items() if k in ("redop", "root", "peer")}
        for row in read.rows
    }
    assert said == {
        "all_reduce": {"redop": "sum"},
        "reduce_scatter": {"redop": "sum"},
        "all_gather": {},
        "broadcast": {"root": "0"},
        "reduce": {"redop": "sum", "root": "0"},
        "send": {"peer": "0"},
        "recv": {"peer": "0"},
    }


@pytest.mark.parametrize(
    ("line", "name"),
    [
        # 2.4; 2.7; 2.12; 2.18; 2.21; 2.29
        ("comm 0xaa rank 1 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE", None),
        ("comm 0xaa rank 1 nranks 2 cudaDev 0 busId 41000 - Init COMPLETE", None),
        ("comm 0xaa rank 1 nranks 2 cudaDev 0 busId 41000 commId 0x8 - Init COMPLETE", "0x8"),
        (
            "comm 0xaa rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 41000 commId 0x8 - Init START",
            "0x8",
        ),
        (
            "ncclCommInitRank comm 0xaa rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 41000"
            " commId 0xb6fe14a8e1d5 - Init COMPLETE",
            "0xb6fe14a8e1d5",
        ),
        (
            "[Rank 1] ncclCommInitRankConfig comm 0xaa rank 1 nranks 2 cudaDev 0 nvmlDev 0"
            " busId 41000 commId 0x8 - Init START",
            "0x8",
        ),
    ],
)
def test_init_lines_of_each_version(tmp_path: Path, line: str, name: str | None) -> None:
    (row,) = read_lines(tmp_path, info("h", 1, line), info("h", 1, coll())).rows
    assert some(row, "comm", "comm_rank", "comm_size") == (name, 1, 2)


@pytest.mark.parametrize("word", ["splitCount", "childCount"])
@pytest.mark.parametrize("end", [" - Init COMPLETE", "- Init START"])
def test_split_has_the_hash_that_nccl_makes_of_it(tmp_path: Path, word: str, end: str) -> None:
    """A split's line has no commId; its hash is that of parent, count and color."""

    def split(comm: str, parent: str, rank: int, color: int) -> str:
        return (
            f"ncclCommSplit comm {comm} rank {rank} nranks 1 cudaDev 0 nvmlDev 0 busId 41000"
            f" parent {parent} {word} 1 color {color} key {rank}{end}"
        )

    read = read_lines(
        tmp_path,
        info("h", 1, init("0xaa", 0, 2, "0xa30f49afcc93be")),
        info("h", 2, init("0xbb", 1, 2, "0xa30f49afcc93be")),
        info("h", 1, split("0xa1", "0xaa", 0, 7)),
        info("h", 2, split("0xb1", "0xbb", 0, -3)),
        info("h", 3, split("0xc1", "0xcc", 0, 7)),
        *(info("h", p, coll(comm=c, n=1)) for p, c in ((1, "0xa1"), (2, "0xb1"), (3, "0xc1"))),
    )
    # The parent of the third is not known. The others: eatHash and digestHash in C.
    assert [r["comm"] for r in read.rows] == [HASH_OF_7, HASH_OF_MINUS_3, None]
    assert [r["comm_rank"] for r in read.rows] == [0, 0, 0]


def test_dtypes_and_operators(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path, *(info("h", 1, coll(dtype=d, op=o)) for d, o in [(10, 4), (11, 9), (12, 0)])
    )
    assert [some(r, "dtype", "message_bytes") for r in read.rows] == [
        ("fp8e4m3", 1000), ("fp8e5m2", 1000), (None, None),
    ]  # fmt: skip
    assert [r["extra"]["redop"] for r in read.rows] == ["avg", "user", "sum"]


def test_tuning_is_given_to_its_operation_alone(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        info("h", 1, coll("AllGather")),
        info("h", 1, "AllGather: 8000 Bytes -> Algo 1 proto 2 time 92.1"),
        info("h", 1, coll()),
        info("h", 2, "AllReduce: 4000 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"),
        info("h", 1, coll(count=2000)),
        info("h", 1, "AllReduce: 12000 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"),
        info("h", 1, coll(count=3000)),
        info(
            "h",
            1,
            "AllReduce: 12000 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..7}"
            " cgaClusterSize 4",
        ),
    )
    chosen = {some(r, "op", "message_bytes", "algorithm", "protocol") for r in read.rows}
    assert chosen == {
        ("all_gather", 8000, "RING", "SIMPLE"),  # 1000 fp32 of each of 2 ranks
        ("all_reduce", 4000, None, None),  # the line after it is another process's
        ("all_reduce", 8000, None, None),  # the line after it is of another size
        ("all_reduce", 12000, "NVLS_TREE", "LL128"),
    }


HASH_OF_7, HASH_OF_MINUS_3 = "0x305f8f18be0afa0e", "0x572bf2e033338b7a"
HOSTS = (info("node-1", 11, coll(comm="0x1a")), info("dead02", 12, coll(comm="0x2b")))


def test_two_messages_in_one_line_are_both_kept(tmp_path: Path) -> None:
    # The stream of the first runs into the host of the second, which starts like hex digits.
    both = info("node-1", 11, coll(comm="0x1a")) + info("dead02", 12, coll(comm="0x2b"))
    read = read_lines(tmp_path, *HOSTS, both)
    assert not read.rejects
    assert sorted(some(r, "host", "seq") for r in read.rows) == [
        ("dead02", 0), ("dead02", 1), ("node-1", 0), ("node-1", 1),
    ]  # fmt: skip


@given(at=st.integers(0, 400), ends=st.booleans())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_message_cut_by_another_gives_no_wrong_record(tmp_path: Path, at: int, ends: bool) -> None:
    """Rank 1's message is cut at any place by rank 2's whole line."""
    victim = info("node-1", 11, coll("ReduceScatter", count=123456, comm="0x1a"))
    # Where the rest never comes, only a piece with words of the message shows that one was lost.
    at = min(max(at, 0 if ends else victim.index("sendbuff ")), len(victim))
    cut = victim[:at] + info("dead02", 12, coll("Broadcast", count=777, comm="0x2b"))
    rest = [victim[at:]] if ends else []
    read = read_lines(tmp_path, *HOSTS, cut, *rest, *HOSTS)
    said = {some(r, "host", "op", "message_bytes", "comm_size") for r in read.rows}
    truth = {
        ("node-1", "all_reduce", 4000, 2),
        ("dead02", "all_reduce", 4000, 2),
        ("node-1", "reduce_scatter", 123456 * 4 * 2, 2),
        ("dead02", "broadcast", 777 * 4, 2),
    }
    assert said <= truth
    if ends:
        assert said == truth  # both recovered
    assert len(read.rows) + len(read.rejects) >= 5
    # The cut message comes second on its communicator: a number is right or null.
    for row in read.rows:
        wanted = {"reduce_scatter": {1}, "broadcast": {1}, "all_reduce": {0, 2}}[row["op"]]
        assert row["seq"] in wanted | {None}


def test_piece_of_a_third_rank_is_not_joined(tmp_path: Path) -> None:
    victim = info("node-1", 11, coll(count=1, comm="0x1a"))
    third = info("node-3", 13, coll(count=99, comm="0x3c"))
    head = victim[: victim.index("count 1") + len("count 1")]
    tail = third[third.index("99 datatype") :]
    seen = info("node-3", 13, coll(comm="0x3c"))
    for lines in (
        [head + info("dead02", 12, coll(comm="0x2b")), tail],  # joined over a line end
        [head + tail],  # and within one line, where it looks whole
    ):
        read = read_lines(tmp_path, *HOSTS, seen, seen, *lines)
        assert 199 * 4 not in {r["message_bytes"] for r in read.rows}
        assert all(r["message_bytes"] == 4000 for r in read.rows)
        assert len(read.rejects) >= 1


def test_numbers_after_a_lost_message_are_null(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        info("h", 1, coll()),
        info("h", 1, coll(comm="0xbb")),
        info("h", 1, coll())[:80],
        info("h", 2, coll(comm="0xcc")),
        info("h", 1, coll()),
        info("h", 1, init("0xbb", 0, 2, "0x8")),
        info("h", 1, coll(comm="0xbb")),
    )
    assert len(read.rejects) == 1
    of = {p: [r["seq"] for r in read.rows if r["extra"]["comm_pointer"] == p] for p in
          ("0xaa", "0xbb", "0xcc")}  # fmt: skip
    # Which communicator lost one is not known; a new Init line starts a new count.
    assert of == {"0xaa": [0, None], "0xbb": [0, 0], "0xcc": [0]}


def test_ranks_that_disagree_are_both_kept(tmp_path: Path) -> None:
    """NCCL issue 899, RCCL issue 429: order or type differs among ranks."""
    read = read_lines(
        tmp_path,
        info("h", 1, init("0xaa", 0, 2, "0x9")),
        info("h", 2, init("0xbb", 1, 2, "0x9")),
        info("h", 1, coll("AllGather")),
        info("h", 2, coll("AllReduce", comm="0xbb")),
    )
    assert {some(r, "comm", "seq", "comm_rank", "op") for r in read.rows} == {
        ("0x9", 0, 0, "all_gather"), ("0x9", 0, 1, "all_reduce"),
    }  # fmt: skip


def test_lines_without_prefix(tmp_path: Path) -> None:
    read = read_lines(tmp_path, "Rank A:", coll(), coll("AllGather", comm="0xbb"))
    assert [some(r, "op", "seq", "comm", "host") for r in read.rows] == [
        ("all_reduce", 0, None, None), ("all_gather", 0, None, None),
    ]  # fmt: skip


def test_log_without_operations_says_so(tmp_path: Path) -> None:
    read = read_lines(
        tmp_path,
        info("h", 1, "NET/IB : Using [0]mlx5_0:1/IB"),
        info("h", 1, init("0xaa", 0, 2, "0x1")),
        info("h", 2, init("0xbb", 1, 2, "0x1")),
        info("h", 1, init("0xac", 0, 2, "0x2")),
    )
    assert not read.rows and not read.rejects
    assert read.note("nothing of use").count == 1
    assert read.note("communicators in Init lines, without operations").count == 2


def test_claims(tmp_path: Path) -> None:
    def claim(text: str) -> float:
        return COLLECTOR.claim(tmp_path / "log", text.encode())

    assert claim(info("h", 1, coll())) > 0.9
    assert claim("h:1:1 [0] misc/utils.cc:7 NCCL WARN no") == claim("h:1:1 NCCL CALL x ") == 0.8
    # A job's own output, without a line of NCCL: read, and what was missing is said.
    assert claim("Using device: cuda:0, Local Rank: 0\n") == 0.1
    for code in ("local_rank = int(os.environ['LOCAL_RANK'])", "rank 0", '{"local_rank": 0}'):
        assert claim(code) == 0
    (tmp_path / "log").write_text("x\n" * 40000 + info("h", 1, coll()))
    assert claim("x\n" * 32768) == 0.8


def test_file_that_ends_in_a_message(tmp_path: Path) -> None:
    data = (info("h", 1, coll()) + "\n" + info("h", 1, coll())[:-60]).encode()
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert len(read.rows) == 1 and len(read.rejects) == 1


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises_and_good_lines_stay(tmp_path: Path, data: st.DataObject) -> None:
    middle = bytearray(info("h", 1, coll(count=5)).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        middle[data.draw(st.integers(0, len(middle) - 1))] = data.draw(st.integers(0, 255))
    good = info("h", 1, coll(count=3)).encode() + b"\n"
    content = good + bytes(middle) + b"\n" + good + data.draw(st.binary(max_size=50))
    COLLECTOR.claim(tmp_path, content)
    read = read_bytes(COLLECTOR, content, tmp_path)
    assert [r["message_bytes"] for r in read.rows].count(12) == 2


@pytest.mark.shared_samples
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("aioneks_srun_label_4rank.log", 9),
        ("nccl899_order_mismatch_rankA_rankB.log", 6),
        ("rccl429_type_mismatch.log", 4),
        ("sglang_16rank_roce_2.27.5.log", 8),
    ],
)
def test_public_logs_with_operations(name: str, rows: int) -> None:
    path = samples("nccl_coll_logs", name)
    assert COLLECTOR.claim(path, path.read_bytes()) > 0.9
    read = read_path(COLLECTOR, path)
    assert len(read.rows) == rows == path.read_text().count("opCount")
    assert not read.rejects


@pytest.mark.shared_samples
def test_public_logs_without_operations_are_said_to_be() -> None:
    for path in sorted(samples("nccl_debug_logs").iterdir()):
        read = read_path(COLLECTOR, path)
        assert not read.rows and not read.rejects and read.note("nothing of use")

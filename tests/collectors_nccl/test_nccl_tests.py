from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.collectors_nccl.helpers import read_path, some
from tests.collectors_nccl.nccl_tests_log import HEAD, claim, half, line, log, of
from tests.samples import samples
from xtune.collectors.nccl_tests import COLLECTOR


def test_one_line_is_two_rows_by_hand(tmp_path: Path) -> None:
    # 4 MiB in 1000 us is 4.194304 GB/s; among 4 ranks an all-reduce has 1.5 times that.
    text = log("all_reduce_perf", 4, line(1 << 22, (1000.0, 500.0), 1.5), average=9.437)
    read = of(text, tmp_path)
    assert not read.rejects and not read.notes
    out, into = read.rows
    assert some(out, "op", "message_bytes", "duration_ns") == ("all_reduce", 1 << 22, 1_000_000)
    assert some(out, "algbw_gigabytes_s", "busbw_gigabytes_s") == (4.19, 6.29)
    assert some(into, "duration_ns", "busbw_gigabytes_s") == (500_000, 12.58)
    assert some(out, "comm_size", "dtype", "state") == (4, "fp32", "completed")
    # Neither a rank's, nor of one host, nor at a time of day.
    assert some(out, "rank", "host", "start_ts", "enqueue_ts", "comm", "seq") == (None,) * 6
    assert some(out["extra"], "in_place", "redop", "wrong", "iters") == ("false", "sum", "0", "20")
    assert some(into["extra"], "in_place", "hosts") == ("true", "node-0,node-1")
    assert claim(text.encode(), tmp_path) > 0.9


@pytest.mark.parametrize(
    ("program", "op", "factor"),
    [
        ("all_reduce_perf_mpi", "all_reduce", 14 / 8),
        ("all_gather_perf", "all_gather", 7 / 8),
        ("reduce_scatter_perf", "reduce_scatter", 7 / 8),
        ("alltoall_perf", "all_to_all", 7 / 8),
        ("gather_perf", "gather", 7 / 8),
        ("scatter_perf", "scatter", 7 / 8),
        ("broadcast_perf", "broadcast", 1.0),
        ("reduce_perf", "reduce", 1.0),
        ("sendrecv_perf", "send_recv", 1.0),
    ],
)
def test_bus_bandwidth_must_follow_from_the_operation(
    tmp_path: Path, program: str, op: str, factor: float
) -> None:
    right, wrong = line(1 << 30, (9e3, 8e3), factor), line(1 << 30, (9e3, 8e3), factor * 1.02)
    read = of(log(program, 8, right, wrong), tmp_path)
    assert [row["op"] for row in read.rows] == [op, op]
    assert len(read.rejects) == 2
    assert "bus bandwidth" in read.rejects[0].reason and "line 19" in read.rejects[0].offset


def test_bandwidth_that_is_not_size_over_time_is_rejected(tmp_path: Path) -> None:
    text = line(1 << 30, (9e3, 8e3), 1.5).replace("1073741824", "2073741824")
    read = of(log("all_reduce_perf", 4, text), tmp_path)
    assert not read.rows and len(read.rejects) == 2
    assert "size over time" in read.rejects[0].reason


def test_two_tests_in_one_log_and_one_that_failed(tmp_path: Path) -> None:
    rows = line(1 << 20, (50.0, 50.0), 1.0, redop="none", wrong=("0", "N/A"))
    text = log("broadcast_perf", 2, rows, average=20.97) + log("sendrecv_perf", 4)
    text += "srun: error: cnode2: task 1: Exited with exit code 3\n"
    text += log("reduce_perf", 6, line(1 << 20, (50.0, 50.0), 1.0))
    read = of(text, tmp_path)
    assert [(row["op"], row["comm_size"]) for row in read.rows] == [
        ("broadcast", 2),
        ("broadcast", 2),
        ("reduce", 6),
        ("reduce", 6),
    ]
    assert [row["extra"].get("wrong") for row in read.rows] == ["0", None, "0", "0"]
    assert [row["extra"]["test"] for row in read.rows] == ["1", "1", "3", "3"]
    assert read.note("without a single measurement") and read.note("ended before its last line")


def test_average_of_more_lines_than_there_are_is_said(tmp_path: Path) -> None:
    text = log("broadcast_perf", 2, line(1 << 20, (50.0, 50.0), 1.0), average=35.0)
    assert of(text, tmp_path).note("average bus bandwidth")


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "worker-0 | "])
def test_launcher_prefixes_and_lines_of_others_between(tmp_path: Path, prefix: str) -> None:
    plain = log("all_gather_perf", 2, *[line(1 << n, (99.0, 98.0), 0.5) for n in (20, 22)])
    noise = "+ export NCCL_DEBUG=WARN\nnode:12:34 [0] NCCL INFO Using network IB\n"
    marked = "".join(f"{prefix}{words}\n{noise}" for words in plain.splitlines())
    assert of(marked, tmp_path).rows == of(plain, tmp_path).rows
    assert len(of(plain, tmp_path).rows) == 4


def test_cut_line_keeps_its_whole_half(tmp_path: Path) -> None:
    last = line(1 << 20, (99.0, 98.0), 0.5).rstrip()[:-12]
    read = of(log("all_gather_perf", 2, line(1 << 20, (99.0, 98.0), 0.5), last), tmp_path)
    assert [row["extra"]["in_place"] for row in read.rows] == ["false", "true", "false"]
    assert ["cut" in reject.reason for reject in read.rejects] == [True]


def test_line_mixed_with_another_is_rejected(tmp_path: Path) -> None:
    good = line(1 << 20, (99.0, 98.0), 0.5)
    mixed = good[:70] + "node:12:34 [0] NCCL WARN Call to ibv_poll_cq failed" + good[70:]
    read = of(log("all_gather_perf", 2, good, mixed, good), tmp_path)
    assert len(read.rows) == 4 and len(read.rejects) == 1


INFO = "7host:12:34 [0] NCCL INFO AllGather: 1048576 Bytes -> Algo RING proto LL128 channel{x}\n"


@pytest.mark.parametrize("prefix", ["", "0: "])
def test_line_that_nccls_log_interrupts_is_put_together(tmp_path: Path, prefix: str) -> None:
    """Each piece is printed when it is known; another stream's lines come between, glued on."""
    whole = line(1 << 20, (99.0, 98.0), 0.5, redop="none", wrong=("0", "N/A"))
    head, out, into = whole[:52], whole[52:85], whole[85:]
    text = head + INFO + prefix + INFO + prefix + out + INFO + prefix + into
    between = f"{head}\n{prefix}{out}\n{prefix}{into}"  # a line end came between instead
    plain = log("all_gather_perf", 2, whole, whole)
    broken = log("all_gather_perf", 2, text, between)
    broken = "".join(
        words if words.startswith(prefix or "!") else prefix + words
        for words in broken.splitlines(keepends=True)
    )
    read = of(broken, tmp_path)
    assert not read.rejects
    for row in read.rows:
        assert some(row, "algorithm", "protocol") == ("RING", "LL128")
        row["algorithm"] = row["protocol"] = None
    assert read.rows == of(plain, tmp_path).rows and len(read.rows) == 4


def test_interrupted_line_whose_end_never_comes(tmp_path: Path) -> None:
    whole = line(1 << 20, (99.0, 98.0), 0.5)
    text = log("all_gather_perf", 2, whole[:85] + INFO, whole[:52] + INFO, whole)
    read = of(text, tmp_path)
    assert [row["extra"]["in_place"] for row in read.rows] == ["false", "false", "true"]
    assert [reject.offset.split()[1] for reject in read.rejects] == ["12", "13"]


def test_older_table_without_root_with_error_and_device_lines_without_group(
    tmp_path: Path,
) -> None:
    text = (
        "+ srun ./build/all_reduce_perf -b 100M -e 110M -c 0\n"
        "# nThread 1 nGpus 1 minBytes 104857600 maxBytes 115343360 step: 1048576(bytes) "
        "warmup iters: 5 iters: 1 validation: 0 \n#\n# Using devices\n"
        "#   Rank  0 Pid  30938 on      gpu01 device  0 [0x00] Tesla T4\n"
        "#   Rank  1 Pid  24859 on      gpu02 device  0 [0x00] Tesla T4\n"
        "#   Rank  2 Pid  16393 on      gpu03 device  0 [0x00] Tesla T4\n#\n"
        "#       size         count    type   redop     time   algbw   busbw  error"
        "     time   algbw   busbw  error\n"
        "   104857600      26214400   float     sum   202872    0.52    0.69    N/A"
        "   224616    0.47    0.62  2e-07\n"
    )
    read = of(text, tmp_path)
    assert not read.rejects
    assert [some(r, "op", "comm_size", "duration_ns") for r in read.rows] == [
        ("all_reduce", 3, 202_872_000),
        ("all_reduce", 3, 224_616_000),
    ]
    assert read.rows[1]["extra"]["max_error"] == "2e-07"


def test_table_of_one_half(tmp_path: Path) -> None:
    head = "#  size  count  type  redop  time  algbw  busbw  #wrong\n"
    good = "  1048576  262144  float  sum  165.33  6.34  6.34  0\n"
    start = log("all_reduce_perf", 2).replace(HEAD, head)
    read = of(start + good + good[:40] + "\n", tmp_path)
    assert [some(row, "op", "duration_ns") for row in read.rows] == [("all_reduce", 165_330)]
    assert "in_place" not in read.rows[0]["extra"] and len(read.rejects) == 1


def test_first_version_prints_milliseconds(tmp_path: Path) -> None:
    text = (
        "# NCCL Tests compiled with NCCL 2.0\n# Using devices\n"
        "#   Rank  0 on       gpu1 device  0 [0x06] Tesla P100\n"
        "#   Rank  1 on       gpu1 device  1 [0x07] Tesla P100\n"
        "#      bytes             N    type      op     time  algbw  busbw      res"
        "     time  algbw  busbw      res\n"
        "    33554432       8388608   float     sum    2.000  16.78  16.78    0e+00"
        "    4.000   8.39   8.39    0e+00\n"
    )
    read = of(text, tmp_path)
    assert not read.rejects
    assert [row["duration_ns"] for row in read.rows] == [2_000_000, 4_000_000]
    # Nothing names the test: the operation is not guessed.
    assert [some(row, "op", "comm_size", "host") for row in read.rows] == [(None, 2, "gpu1")] * 2
    assert read.note("which test a table is of")


def unnamed(ranks: int, *lines: str) -> str:
    text = log("none", ranks, *lines, average=1.0)
    return text.replace("# Collective test starting: none\n", "")


def test_operation_that_the_columns_alone_tell(tmp_path: Path) -> None:
    small, large = 1 << 10, 1 << 26
    # Only an all-reduce has a bus bandwidth above the algorithm's; small sizes show it not.
    text = unnamed(4, line(small, (90.0, 90.0), 1.5), line(large, (1000.0, 1000.0), 1.5))
    assert [row["op"] for row in of(text, tmp_path).rows] == ["all_reduce"] * 4
    text = unnamed(4, line(small, (90.0, 90.0), 1.0), line(large, (1000.0, 1000.0), 1.0))
    assert [row["op"] for row in of(text, tmp_path).rows] == ["send_recv"] * 4
    rooted = line(large, (1000.0, 1000.0), 1.0).replace("    -1 ", "     0 ")
    assert {row["op"] for row in of(unnamed(4, rooted), tmp_path).rows} == {"reduce"}
    sent = rooted.replace("   sum", "  none")
    assert {row["op"] for row in of(unnamed(4, sent), tmp_path).rows} == {"broadcast"}
    share = line(large, (1000.0, 1000.0), 0.75).replace(f"{large // 4:12}", f"{large // 16:12}")
    assert {row["op"] for row in of(unnamed(4, share), tmp_path).rows} == {"reduce_scatter"}


def test_operation_that_two_tests_may_be_is_not_guessed(tmp_path: Path) -> None:
    large = 1 << 26
    two = unnamed(2, line(large, (1000.0, 1000.0), 1.0))  # all-reduce, or send and receive
    share = line(large, (1000.0, 1000.0), 0.75).replace(f"{large // 4:12}", f"{large // 16:12}")
    gathered = unnamed(4, share.replace("   sum", "  none"))  # or all to all
    other = unnamed(8, line(large, (1000.0, 1000.0), 1.5))  # an all-reduce of four
    for text in (two, gathered, other):
        read = of(text, tmp_path)
        assert [row["op"] for row in read.rows] == [None, None] and not read.rejects
        assert read.note("which test a table is of")


def test_operation_without_reduction_has_a_blank_column(tmp_path: Path) -> None:
    blank = line(1 << 20, (99.0, 98.0), 0.5, redop="")
    read = of(log("all_gather_perf", 2, blank), tmp_path)
    assert not read.rejects and len(read.rows) == 2
    assert "redop" not in read.rows[0]["extra"]


def test_replay_prints_the_in_place_half_alone(tmp_path: Path) -> None:
    whole = line(1 << 20, (99.0, 98.0), 0.5)
    at = whole.index("-1") + 2
    only = whole[:at] + " " * 32 + half(1 << 20, 98.0, 0.5, "0") + "\n"
    (row,) = of(log("all_gather_perf", 2, only), tmp_path).rows
    assert some(row, "duration_ns") == (98_000,) and row["extra"]["in_place"] == "true"


def test_iteration_columns_and_time_stamps(tmp_path: Path) -> None:
    columns = "time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%"
    head = f"#  size  count  type  redop  root  {columns}  {columns}  timestamp\n"
    values = "1000.0  4.19  4.19  0  900.0  1100.0  1090.0  3.10"
    text = log("broadcast_perf", 2).replace(HEAD, head)
    text += f"  4194304  1048576  float  none  0  {values}  {values}  2026-01-31 08:00:01\n"
    read = of(text, tmp_path)
    assert not read.rejects and len(read.rows) == 2
    extra = read.rows[0]["extra"]
    assert some(extra, "iter_min", "iter_p99", "written_at") == (
        "900.0",
        "1090.0",
        "2026-01-31 08:00:01",
    )


def test_cut_device_list_leaves_the_ranks_unknown(tmp_path: Path) -> None:
    text = log("all_reduce_perf", 4, line(1 << 20, (99.0, 98.0), 1.9)).replace(
        HEAD, "...\n" + HEAD
    )
    read = of(text, tmp_path)
    assert [row["comm_size"] for row in read.rows] == [None, None] and not read.rejects


@pytest.mark.parametrize("of_what", ["Rank  1", "Group  0", "99.00", "1048576", "-1"])
def test_number_of_thousands_of_digits_costs_itself(tmp_path: Path, of_what: str) -> None:
    text = log("broadcast_perf", 2, line(1 << 20, (99.0, 98.0), 1.0))
    digits = re.sub(r"\d", "", of_what.split(".")[0]) + "9" * 5000
    of(text.replace(of_what, digits), tmp_path)


def test_groups_of_equal_size_are_one_communicator_each(tmp_path: Path) -> None:
    text = log("broadcast_perf", 4, line(1 << 20, (99.0, 98.0), 1.0))
    text = re.sub(r"Rank  ([23]) Group  0", r"Rank  \1 Group  1", text)
    assert [row["comm_size"] for row in of(text, tmp_path).rows] == [2, 2]


@pytest.mark.shared_samples
def test_log_that_nccls_own_lines_cut_up_agrees_with_its_average() -> None:
    path = samples("nccl_debug_logs", "whk_h100_g2_auto_nccl2.29.2.log")
    read = read_path(COLLECTOR, path)
    assert not read.rejects and not read.notes and len(read.rows) == 12
    mine = [row["busbw_gigabytes_s"] for row in read.rows]
    (said,) = re.findall(r"# Avg bus bandwidth\s*: (\S+)", path.read_text())
    assert sum(mine) / len(mine) == pytest.approx(float(said), abs=0.006)
    assert {some(row, "algorithm", "protocol") for row in read.rows} == {("RING", "SIMPLE")}


@pytest.mark.shared_samples
def test_samples_agree_with_the_tests_own_averages() -> None:
    """Each test of these logs prints the mean bus bandwidth of its lines, both halves."""
    for name in ("xxrjun_N10_G8.log", "xxrjun_nccl_N2_G1_cnode2-001_cnode2-002.log"):
        path = samples("nccl_tests", name)
        said = re.findall(r"# Avg bus bandwidth\s*: (\S+)", path.read_text())
        read = read_path(COLLECTOR, path)
        assert not read.rejects and not read.notes
        for number, average in enumerate(said, 1):
            mine = [
                row["busbw_gigabytes_s"]
                for row in read.rows
                if row["extra"]["test"] == str(number)
            ]
            assert sum(mine) / len(mine) == pytest.approx(float(average), abs=0.006)


def test_a_plan_of_operations_is_no_measurement(tmp_path: Path) -> None:
    planned = b"comm_type,msg_size,_elapsed_time,algbw,busbw\nall_reduce,8,None,None,None\n"
    assert COLLECTOR.claim(tmp_path / "plan.csv", planned) == 0.0
    assert COLLECTOR.claim(tmp_path / "plan.csv", planned.replace(b"None", b"9.5")) == 0.9

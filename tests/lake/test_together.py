"""A log that two programs wrote to is read by the collectors of both, as one input."""

from __future__ import annotations

import time
from pathlib import Path

from xtune.collectors import Context
from xtune.ingest import IngestSummary, collect
from xtune.lake import Lake

LOG = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid     77 on     node-a device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid     78 on     node-a device  1 [0x0a] NVIDIA H100
node-a:77:77 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 2 cudaDev 0 nvmlDev 0 \
busId 7000 commId 0xbeef - Init COMPLETE
node-a:77:77 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 262144 datatype 7 \
op 0 root 0 comm 0xaa [nranks=2] stream 0x3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    100.0   10.49   10.49      0    200.0    5.24    5.24      0
# Avg bus bandwidth    : 7.86
"""  # noqa: E501


def run(lake: Path, path: Path, kind: str | None = None) -> IngestSummary:
    context = Context(now_ns=time.time_ns)
    return collect(Lake.open(lake, create=True), [str(path)], context=context, kind=kind)


def test_both_kinds_of_lines_are_read_once(tmp_path: Path) -> None:
    log = tmp_path / "all_reduce.log"
    log.write_text(LOG)
    (result,) = run(tmp_path / "lake", log).files
    assert (result.collector, result.state) == ("nccl_debug+nccl_tests", "read")
    assert result.rows == {"collectives": 3}
    rows = Lake.open(tmp_path / "lake").read("collectives", ["comm", "duration_ns"]).to_pylist()
    found = sorted((row["comm"] or "", row["duration_ns"] or 0) for row in rows)
    assert found == [("", 100_000), ("", 200_000), ("0xbeef", 0)]
    (again,) = run(tmp_path / "lake", log).files
    assert again.state == "unchanged"


def test_a_forced_kind_reads_alone_and_replaces(tmp_path: Path) -> None:
    log = tmp_path / "all_reduce.log"
    log.write_text(LOG)
    run(tmp_path / "lake", log)
    (result,) = run(tmp_path / "lake", log, "nccl_tests").files
    assert (result.collector, result.state) == ("nccl_tests", "replaced")
    assert Lake.open(tmp_path / "lake").read("collectives").num_rows == 2

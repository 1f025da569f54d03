"""Logs of nccl-tests, tables made of them, and companions in other formats."""

from tests.expected._expected import Expected

_LINES = "twice grep -cE '^ +[0-9]+ +[0-9]+ +(float|double)': each line has two halves"

EXPECTED = {
    "whk_all_reduce.txt": Expected(kind="nccl_tests", rows={"collectives": 62}, how=_LINES),
    "whk_all_reduce.csv": Expected(
        kind="nccl_tests", rows={"collectives": 31}, how="wc -l, less the header"
    ),
    "xxrjun_N10_G8.log": Expected(kind="nccl_tests", rows={"collectives": 100}, how=_LINES),
    "xxrjun_nccl_N2_G1_cnode2-001_cnode2-002.log": Expected(
        kind="nccl_tests", rows={"collectives": 40}, how=_LINES
    ),
    "xxrjun_nccl_N2_G1_cnode2-002_cnode2-008.log": Expected(
        kind="nccl_tests", rows={"collectives": 20}, how=_LINES
    ),
    "xxrjun_pairwise_summary.csv": Expected(
        kind="nccl_tests",
        rejects=1,
        state="rejected",
        reason="a summary of whole tests",
        how="head -1: average and peak of each test, no size and time of an operation",
    ),
    "xxrjun_pairwise_failures.txt": Expected(
        kind=None, rejects=1, state="unknown", how="a list of names of failed tests"
    ),
    "whk_tp_latency.json": Expected(
        kind=None, rejects=1, state="unknown", how="jq keys: a sweep of a script of its own"
    ),
    "bigscience_a100_n4_allreduce_bench.txt": Expected(
        kind="nccl_debug", how="grep -c opCount is 0: NCCL's log of init, no operation"
    ),
}

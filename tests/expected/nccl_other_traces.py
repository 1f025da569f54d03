"""Traces by other means: rocprofv3, NCCL's topology dump, a tracing library of its own."""

from tests.expected._expected import Expected

EXPECTED = {
    "rocprof_rccl_trace.csv": Expected(
        kind="rocprof",
        rows={"collectives": 5},
        how="grep -c ncclAllReduce: the others move no data",
    ),
    "zhiyi_nccl_topo.xml": Expected(
        kind=None, rejects=1, state="unknown", how="head: the PCI tree of one host, no telemetry"
    ),
    "zhiyi_pnccl_result_0.txt": Expected(
        kind=None, rejects=1, state="unknown", how="head: calls of a tracing library of its own"
    ),
}

"""Pieces of ibqueryerrors' output: a port, an aggregate, no error at all, the error stream."""

from tests.expected._expected import Expected

EXPECTED = {
    "exadata_excerpt.txt": Expected(
        kind="ibqueryerrors",
        rows={"link_counters": 1, "ports": 1},
        how="grep -cE 'GUID 0x[0-9a-f]+ port [0-9]+:'",
    ),
    "ucx_9590_c_flag_excerpt.txt": Expected(
        kind="ibqueryerrors",
        how="grep -cE 'port [0-9]+:' is 0: the sum over all ports of a switch is no port",
    ),
    "guilbaults48_no_errors_node.txt": Expected(
        kind="ibqueryerrors",
        how="its own summary: 1 ports checked, 0 ports have errors; none is printed",
    ),
    "guilbaults12_stderr_mixed.txt": Expected(
        kind="ibqueryerrors", how="grep -vc '^src/query_smp.c' is 0: messages alone"
    ),
}

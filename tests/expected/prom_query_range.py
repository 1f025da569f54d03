"""Prometheus's own documentation of a range query: two series of ``up``, nothing of ours."""

from tests.expected._expected import Expected

EXPECTED = {
    "prom_docs_matrix_0.json": Expected(
        kind="prometheus", how="jq -r '.data.result[].metric.__name__' | sort -u: up"
    ),
}

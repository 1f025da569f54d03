"""Made from an Nsight Systems export by another project's scripts: no export is among them."""

from tests.expected._expected import Expected

EXPECTED = {
    "zhiyi_nsys_allgather.json": Expected(
        kind=None, rejects=1, state="unknown", how="head: two JSON objects of a script of its own"
    ),
    "zhiyi_nsys_events.json": Expected(
        kind=None, rejects=1, state="unknown", how="jq keys: ranks, then events of its own names"
    ),
}

"""NCCL Inspector's own documented output."""

from tests.expected._expected import Expected

EXPECTED = {
    "nccl_readme_examples.jsonl": Expected(
        kind="nccl_inspector", rows={"collectives": 2}, how="grep -c coll_perf"
    ),
    "nccl_readme_prom.prom": Expected(
        kind="nccl_inspector_prom",
        rows={"collectives": 2},
        how="sed 's/^[^{]*//; s/} .*//' | sort -u | wc -l: label sets, two metrics each",
    ),
}

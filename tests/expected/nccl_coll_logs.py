"""NCCL's COLL messages: one row each."""

from __future__ import annotations

from tests.expected._expected import Expected


def _logged(rows: int) -> Expected:
    return Expected(kind="nccl_debug", rows={"collectives": rows}, how="grep -c 'opCount '")


EXPECTED = {
    "aioneks_srun_label_4rank.log": _logged(9),
    "nccl899_order_mismatch_rankA_rankB.log": _logged(6),
    "rccl429_type_mismatch.log": _logged(4),
    "sglang_16rank_roce_2.27.5.log": _logged(8),
}

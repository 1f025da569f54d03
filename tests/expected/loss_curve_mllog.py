"""Results of MLPerf training v4.0."""

from __future__ import annotations

from tests.expected._expected import Expected

_LOSSES = """grep -cE '"key": "(train_loss|eval_loss|eval_accuracy)"'"""

EXPECTED = {
    "google_gpt3.txt": Expected(kind="loss_mllog", rows={"steps": 24}, how=_LOSSES),
    "habana_llama2_70b.txt": Expected(kind="loss_mllog", rows={"steps": 15}, how=_LOSSES),
    "nvidia_h200_llama2_70b.txt": Expected(kind="loss_mllog", rows={"steps": 5}, how=_LOSSES),
}

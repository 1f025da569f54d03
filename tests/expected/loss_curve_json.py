"""Hugging Face trainer states and Megatron-LM's golden values."""

from __future__ import annotations

from tests.expected._expected import Expected

EXPECTED = {
    "agc_trainer_state.json": Expected(
        kind="loss_table",
        rows={"steps": 4},
        how="jq '[.log_history[]|select(.loss)]|length'; one more is the closing row",
    ),
    "jaong_trainer_state.json": Expected(
        kind="loss_table",
        rows={"steps": 20},
        how="jq '[.log_history[]|select(.loss or .eval_loss)]|length'",
    ),
    "megatron_bert_golden_h100.json": Expected(
        kind="loss_table", rows={"steps": 100}, how="""jq '.["lm loss"].values|length'"""
    ),
}

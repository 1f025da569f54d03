"""Loss lines of small trainers and of Megatron-DeepSpeed."""

from __future__ import annotations

from tests.expected._expected import Expected

EXPECTED = {
    "aioneks_fsdp_srun_label.log": Expected(
        kind="loss_text", rows={"steps": 12}, how="grep -c 'Batch [0-9]* Loss'"
    ),
    "bigscience_megatron_log_blocks.txt": Expected(
        kind="loss_megatron",
        rows={"steps": 101},
        how="grep -cE 'iteration +[0-9]+/ *[0-9]+ *[|]': 98; grep -c 'lm loss value': 3",
    ),
    "dlrover_events_0.log": Expected(kind="loss_text", rows={"steps": 1}, how="grep -c '#log'"),
    "nanogpt_adamw.log": Expected(
        kind="loss_text", rows={"steps": 9612}, how="grep -cE '^s:[0-9]+ (trl|tel):'"
    ),
    "nanogpt_llmc_main.log": Expected(
        kind="loss_text",
        rows={"steps": 3034},
        rejects=1,
        how="grep -cE '^s:[0-9]+ (trl|tel):': 3035, the last one cut",
    ),
    "nanogpt_medium_main.log": Expected(
        kind="loss_text", rows={"steps": 241}, how="grep -cE '^s:[0-9]+ (trl|tel):'"
    ),
    "torchtitan_llama3_cuda.txt": Expected(kind="loss_text", rows={"steps": 100}, how="wc -l"),
}

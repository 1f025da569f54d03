"""Progress lines of Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and Primus.

Source of the format: ``training_log`` in megatron/training/training.py, and older variants
(wrapped lines, seconds instead of ms, no time stamp, no colon); GPT-NeoX's megatron/logging.py.

What it assumes: an iteration is one optimizer step. Losses are **means over the log interval**
(``steps_since_last_line`` in ``extra``, where the log is whole); ``elapsed time per iteration`` is
such a mean too. ``lm loss`` is absent where every step of the interval was skipped:
null. ``tokens`` is the rise of consumed tokens per step.

When it lies: the time in brackets is local (``--tz``), and is when the line was printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Source
from xtune.collectors._megatron_log import START
from xtune.collectors._training_log import Kind, read_log, tail


class LossMegatron(Collector):
    """Reads Megatron-LM's stdout, and NCCL's messages in it."""

    name = "loss_megatron"
    title = "Megatron-LM stdout (iteration N/M | ... | lm loss: ...)"
    lines_of = "training"
    produce = "redirect pretrain_gpt.py's stdout to a file (--log-interval 1 for each step)"
    gives = "loss, gradient norm, learning rate, step time and skipped steps of each interval"
    lacks = "steps between two lines: losses and times are means over the log interval"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """High where a progress line stands in the head or the tail."""
        text = head.decode("utf-8", "replace")
        for part in (text, tail(path, head)):
            if START.search(part) and "elapsed time per iteration" in part.replace("\n", " "):
                return 0.95
        arguments = "-- arguments --" in text and "tensor_model_parallel_size" in text
        return 0.85 if arguments else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a progress line or validation line."""
        yield from read_log(source, context, Kind.MEGATRON)


COLLECTOR = LossMegatron()

"""Loss lines on a trainer's stdout: DeepSpeed, NeMo, Hugging Face, torchtitan, nanoGPT, llm.c.

Each line says its step and its loss, and is read by the first pattern that fits from its start
(after a rank prefix, a time stamp and terminal colours). Logs that embed source code and
nvidia-smi's table hold many numbers that are no loss: only whole patterns count.

When it lies: a ``Batch N`` line counts batches, which are steps only without accumulation. NeMo
repeats its last validation loss: it is put at the first step that says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xtune.collectors._base import Collector, Context, Item, Source
from xtune.collectors._loss_forms import event, match
from xtune.collectors._training_log import Kind, read_log, tail


class LossText(Collector):
    """Reads loss lines of DeepSpeed, NeMo, Hugging Face, torchtitan, nanoGPT and the like."""

    name = "loss_text"
    title = "loss lines of DeepSpeed, NeMo, Hugging Face, torchtitan, nanoGPT, llm.c and similar"
    lines_of = "training"
    produce = "redirect the trainer's stdout and stderr to a file: srun -o train_%j.log ..."
    gives = "loss, gradient norm, learning rate and step time as far as the lines say them"
    lacks = "steps between two lines; tokens; a step where Hugging Face draws no progress bar"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """By how many lines of head and tail are loss lines; bare pairs only if all lines are."""
        lines = head.decode("utf-8", "replace").replace("\r", "\n").splitlines()[:2000]
        if len(head) > 1000:
            lines = lines[:-1]
        lines += tail(path, head).replace("\r", "\n").splitlines()[1:2000]
        found = [match(line) for line in lines if line.strip()]
        named = sum(said is not None and not said.bare for said in found)
        if named:
            return 0.75 if named >= 3 else 0.5
        if any(event(line) is not None for line in lines):
            return 0.6
        return 0.4 if len(found) >= 2 and None not in found else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a loss line and split."""
        yield from read_log(source, context, Kind.LOSS)


COLLECTOR = LossText()

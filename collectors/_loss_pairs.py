"""Loss lines made of named values: Hugging Face's dicts, NeMo's progress, DeepSpeed's steps.

Sources: transformers' ProgressCallback and PrinterCallback (print of the logs), NeMo's
MegatronProgressBar and MegatronProgressPrinter over Lightning's progress bar, DeepSpeed's
``_report_progress`` (runtime/engine.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._values import natural, real

_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)"
# Lightning's bar pads each value to five places: nan.0
_PADDED = re.compile(r"(nan|inf)\.0*$")
_DICT = re.compile(r"\{(?=[^{}]*'(?:loss|eval_loss|train_runtime)':)('[^{}]*)\}")
_DICT_PAIR = re.compile(rf"'([^']{{1,64}})': '?({_NUMBER})'?(?=[,}}]|$)")
_BAR = re.compile(r"\|\s*\d+/\d+\s*\[([^\]]*)\]")
_BAR_PAIR = re.compile(rf"(?:^|, )([A-Za-z_][\w /-]{{0,63}})=({_NUMBER}(?:\.0*)?)(?=,|$)")
_PRINTED = re.compile(r"\bTraining epoch \d+, iteration \d+/\d+ \| (.*)$")
_DEEPSPEED = re.compile(r"\bstep=(\d{1,18}), skipped=(\d{1,18}), lr=\[?([^\],\s]+)[^=]*, mom=")

_COLUMNS = {
    "reduced_train_loss": ("train", "loss"),
    "val_loss": ("validation", "loss"),
    "lr": ("train", "learning_rate"),
    "learning_rate": ("train", "learning_rate"),
    "grad_norm": ("train", "grad_norm"),
    "gradient_norm": ("train", "grad_norm"),
    "train_step_timing in s": ("train", "step_time_s"),
    "train_step_timing": ("train", "step_time_s"),
    "iteration_time": ("train", "step_time_s"),
}
_EXTRA = ("consumed_samples", "global_batch_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a line says.

    Attributes:
        before: What stands before it: a launcher's prefix, a time.
        step: Its step; null where it says none.
        values: Split -> column of ``steps`` -> value.
        extra: What has no column.
        skipped_in_all: Steps skipped since the start of the run.
        bare: Two numbers without names.
        closing: A trainer's last line, whose loss is a mean over the run.
        repeats: The validation loss is the last known one, said again at each step.
    """

    before: str
    step: int | None
    values: dict[str, dict[str, Any]]
    extra: dict[str, Any] = field(default_factory=dict)
    skipped_in_all: int | None = None
    bare: bool = False
    closing: bool = False
    repeats: bool = False


def dict_line(line: str) -> Said | None:
    """``{'loss': 2.1, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.1}``."""
    found = _DICT.search(line)
    if found is None:
        return None
    pairs = dict(_DICT_PAIR.findall(found[1]))
    step = _whole(pairs.get("global_step", pairs.get("step")))
    if "epoch" not in pairs and step is None:
        return None
    before = line[: found.start()]
    if "train_runtime" in pairs:
        return Said(before=before, step=step, values={}, closing=True)
    values: dict[str, dict[str, Any]] = {}
    if "loss" in pairs:
        values["train"] = {
            column: real(pairs[column])
            for column in ("loss", "grad_norm", "learning_rate")
            if column in pairs
        }
    if "eval_loss" in pairs:
        values["validation"] = {"loss": real(pairs["eval_loss"])}
    if not values:
        return None
    return Said(before=before, step=step, values=values, extra={"epoch": pairs.get("epoch")})


def lightning_line(line: str) -> Said | None:
    """NeMo's progress bar, and the lines it prints where there is no terminal."""
    if "global_step" not in line:
        return None
    found = _BAR.search(line)
    if found is not None:
        pairs = {name: _PADDED.sub(r"\1", value) for name, value in _BAR_PAIR.findall(found[1])}
    else:
        found = _PRINTED.search(line)
        if found is None:
            return None
        parts = (part.partition(": ") for part in found[1].split(" | "))
        pairs = {name.strip(): value.strip() for name, _, value in parts}
    if real(pairs.get("global_step")) is None:
        return None
    if "reduced_train_loss" not in pairs and "loss" in pairs:
        pairs["reduced_train_loss"] = pairs["loss"]
    values: dict[str, dict[str, Any]] = {}
    for name, (split, column) in _COLUMNS.items():
        value = real(pairs.get(name))
        if value is not None:
            values.setdefault(split, {}).setdefault(column, value)
    if "loss" not in values.get("train", {}):
        return None
    return Said(
        before=line[: found.start()],
        step=_exact(pairs.get("global_step")),
        values=values,
        extra={name: _exact(pairs.get(name)) for name in _EXTRA},
        repeats=True,
    )


def step_line(line: str) -> Said | None:
    """``[Rank 0] step=10, skipped=0, lr=[0.0001], mom=[[0.9, 0.999]]``: no loss is in it."""
    found = _DEEPSPEED.search(line)
    if found is None:
        return None
    return Said(
        before=line[: found.start()],
        step=int(found[1]),
        values={"train": {"learning_rate": real(found[3])}},
        skipped_in_all=natural(found[2]),
    )


def _whole(value: str | None) -> int | None:
    return natural(real(value))


def _exact(value: str | None) -> int | None:
    """A count of a progress bar; one with an exponent is rounded to three digits: null."""
    return None if value is None or "e" in value.lower() else _whole(value)

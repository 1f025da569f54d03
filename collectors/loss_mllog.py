"""MLPerf's training log (``:::MLLOG {json}``): losses of language-model benchmarks.

Source of the format: mlcommons/logging. ``time_ms`` is the epoch. In the language benchmarks what
MLPerf calls ``eval_accuracy`` is the loss in nats (their quality targets are 2.69, 0.925, 3.3),
as it is in flux1 (0.586); in others it is an accuracy, and left out. ``tracked_stats`` may hold a
training loss and the time of a step. A step is ``samples_count`` over ``global_batch_size``,
or, where a trainer counts tokens in ``epoch_num``, tokens over batch and
``max_sequence_length``; where that is no whole number the step is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import Collector, Context, Item, Note, Reject, RowBuffer, Source
from xtune.collectors._steps import lasting
from xtune.collectors._textlines import Lines
from xtune.collectors._values import as_extra, natural, positive, real, scaled, text

_MARK = b":::MLLOG "
_LOSSES = {"train_loss": "train", "eval_loss": "validation"}
_BY_LOSS = ("gpt", "llama", "deepseek", "flux")
_TRACKED = ("reduced_train_loss", "train_loss", "loss")
_SETTINGS = ("submission_benchmark", "global_batch_size", "max_sequence_length")


class LossMllog(Collector):
    """Reads losses of MLPerf training logs."""

    name = "loss_mllog"
    title = "MLPerf training logs (:::MLLOG)"
    produce = "the result_*.txt of an MLPerf training submission (mlperf_logging.mllog on stdout)"
    gives = "training and evaluation losses with their time, step where batch and samples are said"
    lacks = "accuracies of benchmarks whose target is no loss; gradient norm"
    version = 2

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where a line has the log's mark, after whatever a launcher put before it."""
        return 0.96 if _MARK + b"{" in head else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a loss."""
        rows = RowBuffer("steps", context)
        lines = Lines(source)
        settings: dict[str, Any] = {}
        found = accuracies = 0
        for line in lines:
            at = line.data.find(_MARK)
            if at < 0:
                continue
            try:
                record, _ = json.JSONDecoder().raw_decode(line.text.partition(_MARK.decode())[2])
            except (ValueError, RecursionError) as error:
                yield Reject(line.place, f"not JSON: {error}")
                continue
            key = record.get("key") if isinstance(record, dict) else None
            if key in _SETTINGS:
                settings[key] = record.get("value")
            split = _LOSSES.get(key) if isinstance(key, str) else None
            if key == "eval_accuracy":
                benchmark = str(settings.get("submission_benchmark"))
                split = "validation" if benchmark.startswith(_BY_LOSS) else None
                accuracies += split is None
            loss, seconds = record.get("value") if split else None, None
            if key == "tracked_stats" and isinstance(stats := record.get("value"), dict):
                loss = next((stats[name] for name in _TRACKED if name in stats), None)
                split = None if loss is None else "train"
                seconds = lasting(real(stats.get("train_step_time")))
            if split is not None:
                found += 1
                row = _row(record, split, settings, context)
                rows.add({**row, "loss": real(loss), "step_time_s": seconds})
            if rows.full:
                yield from rows.flush()
        yield from rows.flush()
        yield from lines.rejects
        if accuracies:
            yield Note(
                "eval_accuracy of a benchmark whose target is no loss: left out", accuracies
            )
        if not found:
            yield Note("no loss in this MLPerf log")


def _row(
    record: dict[str, Any], split: str, settings: dict[str, Any], context: Context
) -> dict[str, Any]:
    metadata = record.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    samples = natural(metadata.get("samples_count"))
    tokens = positive(metadata.get("epoch_num"))
    batch = positive(settings.get("global_batch_size"))
    length = positive(settings.get("max_sequence_length"))
    step: int | None = None
    if batch and samples is not None and samples % batch == 0:
        step = samples // batch
    elif batch and length and tokens and tokens % (batch * length) == 0:
        step = tokens // (batch * length)
    return {
        "ts": scaled(record.get("time_ms"), 1_000_000),
        "job": context.job,
        "run": context.run,
        "step": step,
        "split": split,
        "learning_rate": real(metadata.get("lr")) if split == "train" else None,
        "extra": as_extra(
            {
                "key": text(record.get("key"), 64),
                "benchmark": text(settings.get("submission_benchmark"), 64),
                "samples_count": samples,
                "epoch_num": tokens,
            }
        ),
    }


COLLECTOR = LossMllog()

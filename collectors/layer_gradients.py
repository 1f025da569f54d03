"""Gradient norms by layer, as ``LayerNorms`` of an exported policy logs them: JSON lines.

A line is ``{"xtune_layer_gradients": 1, "ts_ns", "job", "run", "rank", "step", "scope", "layer",
"depth", "elements", "norm", "density"}``, the last five of which are lists of one length: a row
each. ``scope`` is ``full``, or ``shard`` where a rank logged its own part of a sharded gradient
(the squares of the shards' norms add up); it and the rank are in ``extra``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
    Unknown,
)
from xtune.collectors._json_lines import json_objects
from xtune.collectors._textlines import Lines
from xtune.collectors._values import as_extra, natural, positive, real, small, text

_MARK = "xtune_layer_gradients"
_LISTS = ("layer", "depth", "elements", "norm", "density")
_KNOWN = frozenset({_MARK, "ts_ns", "job", "run", "rank", "step", "scope", *_LISTS})


class LayerGradients(Collector):
    """Reads logs of layer gradient norms; each line stands alone."""

    name = "layer_gradients"
    title = "layer gradient norms that a training job logs (LayerNorms)"
    produce = (
        'norms = policy.LayerNorms(model, "norms-%h-%r.jsonl", every=10); norms.step() '
        "after the backward pass"
    )
    gives = "L2 norm, density, size and depth of each parameter's gradient"
    lacks = "the norm of a whole gradient where each rank holds a shard of it"
    tail_lines = True

    def claim(self, path: Path, head: bytes) -> float:
        """Certain where the first line has the log's own mark."""
        return 0.99 if head.lstrip().startswith(b'{"xtune_layer_gradients"') else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """One row a parameter and step."""
        rows = RowBuffer("layer_gradients", context)
        lines = Lines(source)
        newer = 0
        for found in json_objects(lines):
            if isinstance(found, Reject):
                yield found
                continue
            line, record = found
            version = natural(record.get(_MARK))
            if version is None:
                yield Reject(line.place, "not a line of layer norms: no version")
                continue
            columns = [record.get(name) for name in _LISTS]
            sizes = {len(c) if isinstance(c, list) else None for c in columns}
            if len(sizes) != 1 or None in sizes:
                reason = f"{', '.join(_LISTS)} are not lists of one length"
                yield Reject(line.place, reason, "the line is left out")
                continue
            newer += version != 1
            for name in record.keys() - _KNOWN:
                yield Unknown(name)
            for row in _rows(record, columns, context):
                rows.add(row)
                if rows.full:
                    yield from rows.flush()
        yield from rows.flush()
        yield from lines.rejects
        if newer:
            yield Note(
                "layer norms of a newer version: fields that are not known are left out", newer
            )


def _rows(
    record: dict[str, Any], columns: list[Any], context: Context
) -> Iterator[dict[str, Any]]:
    rank = small(record.get("rank"))
    extra = as_extra(
        {
            "rank": context.rank if rank is None else rank,
            "scope": text(record.get("scope"), 64),
        }
    )
    same = {
        "ts": positive(record.get("ts_ns")),
        "job": text(record.get("job"), 256) or context.job,
        "run": text(record.get("run"), 256) or context.run,
        "step": natural(record.get("step")),
    }
    for layer, depth, elements, norm, density in zip(*columns, strict=True):
        yield {
            **same,
            "layer": text(layer),
            "depth": _share(depth),
            "elements": natural(elements),
            "norm": _length(norm),
            "density": _share(density),
            "extra": dict(extra),
        }


def _length(value: Any) -> float | None:
    """A norm, NaN and infinity included; one below zero is none."""
    number = real(value)
    return None if number is not None and number < 0 else number


def _share(value: Any) -> float | None:
    number = real(value)
    return number if number is not None and 0.0 <= number <= 1.0 else None


COLLECTOR = LayerGradients()

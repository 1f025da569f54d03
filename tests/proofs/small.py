"""A model and a text small enough for a test, with several buckets and quantised layers."""

from __future__ import annotations

import numpy as np

from xtune.proofs.corpus import Corpus
from xtune.proofs.course import Settings
from xtune.proofs.model import Shape

SHAPE = Shape(width=64, layers=1, hidden=96, heads=2, context=16, vocabulary=128)


def settings(**changes: object) -> Settings:
    """Forty iterations after five, evaluated and kept every ten."""
    given: dict[str, object] = {
        "warm": 5, "steps": 40, "windows": 2, "rise": 5, "every": 10, "held_out_windows": 8,
        "error_every": 5, "bucket_bytes": 65_536, "first_bucket_bytes": 16_384, "shape": SHAPE,
        **changes,
    }  # fmt: skip
    return Settings(**given)  # type: ignore[arg-type]


def corpus() -> Corpus:
    """Tokens of which each mostly follows from the one before."""
    random = np.random.default_rng(7)
    tokens = [0]
    for jump in random.random(6000) < 0.2:
        tokens.append(int(random.integers(128)) if jump else (tokens[-1] * 5 + 3) % 128)
    array = np.array(tokens, dtype=np.uint16)
    about: dict[str, object] = {
        "name": "made", "bytes": 12_000, "bytes_per_token": 2.0, "tokenizer": "none",
    }  # fmt: skip
    return Corpus(train=array[:5000], held_out=array[5000:], about=about)

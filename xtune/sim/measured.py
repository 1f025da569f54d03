"""What ``make convergence`` measured of compression, as constants of the response.

Each run branched from a full-precision warm start, so a higher loss at its end is a number of
uncompressed iterations lost: with a loss that falls by ``c`` nats an e-fold of iterations, a
branch of ``S`` iterations after ``W`` that ends ``d`` nats higher made the progress of
``(W + S) exp(-d/c) - W`` of them. The model, the text and the seeds are in the file's provenance;
what they say of another model is an assumption.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student_t

FILE = "measured_response.json"
KINDS = ("quantise", "drop", "drop_residual", "shared")  # of methods that the constants are from
FIRST_BITS, FIRST_BLOCK = 4, 256  # of the quantiser whose error power is the unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A constant with its 95 % interval over random seeds; None where there are too few."""

    value: float
    low: float | None
    high: float | None
    seeds: int


def load() -> dict[str, Any]:
    """The stored measurement.

    Raises:
        FileNotFoundError: it is not part of this installation.
    """
    document: dict[str, Any] = json.loads((resources.files("xtune.sim") / FILE).read_text())
    return document


def penalty_of(damage: float, *, fall: float, warm: int, steps: int) -> float:
    """Iterations lost per iteration made.

    Args:
        damage: Nats per token above full precision at the end of the branch.
        fall: Nats per e-fold of iterations by which full precision falls.
        warm: Iterations before the branch.
        steps: Iterations of the branch.

    Returns:
        0 where nothing was lost, less where something was won; infinite where all was lost.
    """
    progress = (warm + steps) * math.exp(-damage / fall) - warm
    return steps / progress - 1.0 if progress > 0 else math.inf


def error_feedback_parts(carried: float) -> tuple[float, float]:
    """Error power lost for good, and error power as noise, both in that of the quantiser.

    With a share of the residual carried into the next round, the rest of each rounding is lost,
    and a rounding appears twice in what is sent: when it is made, and as what is made up for.

    Args:
        carried: the share, 0 without error feedback.
    """
    return (1.0 - carried) ** 2, 1.0 + carried**2


def relative_error(bits_input: int, bits_head: int, mean_bits: float, block: int) -> float:
    """Error power in that of 4 bits in blocks of 256.

    Six decibels a bit, as for any uniform quantiser; the scale of a block is its largest value,
    which grows as sqrt(2 ln block) for normal values.

    Args:
        bits_input: Of the layers near the input.
        bits_head: Of the head.
        mean_bits: Of all elements, from which the head's share follows.
        block: Elements that share a scale.
    """
    head = 0.0
    if bits_head != bits_input:
        head = (mean_bits - bits_input) / (bits_head - bits_input)
    power = (1 - head) * 4.0 ** (FIRST_BITS - bits_input) + head * 4.0 ** (FIRST_BITS - bits_head)
    return power * math.log(block) / math.log(FIRST_BLOCK)


def constants(
    document: Mapping[str, Any], dropped_power: Callable[[float], float]
) -> dict[str, Constant]:
    """Constants of the response from a measurement.

    Args:
        document: What `load` gives.
        dropped_power: Share of a gradient's power that keeping a share of elements loses.

    Returns:
        Those that were measured, by name: ``lost`` and ``noise``, penalties of 4 bits for what is
        rounded away for good and as noise, see `error_feedback_parts`; ``drop``,
        ``drop_residual`` and ``shared``, penalty per square of the power that is not sent, without
        and with a residual, and under a shared selection.
    """
    rows = document["methods"]
    common = sorted(set.intersection(*(set(row["seeds"]) for row in rows.values())))
    fits = [_one_seed(document, seed, dropped_power) for seed in common]
    return {name: _interval([fit[name] for fit in fits]) for name in (fits[0] if fits else ())}


def _one_seed(
    document: Mapping[str, Any], seed: int, dropped_power: Callable[[float], float]
) -> dict[str, float]:
    settings = document["provenance"]["settings"]
    fall = document["full_precision"]["nats_per_e_fold"]
    by_kind: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    for row in document["methods"].values():
        change = row["perplexity_changes"][row["seeds"].index(seed)]
        lost = penalty_of(
            math.log1p(change), fall=fall, warm=settings["warm"], steps=settings["steps"]
        )
        by_kind.setdefault(row["kind"], []).append((row, lost))
    out: dict[str, float] = {}
    fine = [(r, lost) for r, lost in by_kind.get("quantise", []) if r["bits_input"] >= FIRST_BITS]
    if len(fine) > 1:
        errors = np.array([_error_of(row) for row, _ in fine])
        parts = np.array([error_feedback_parts(row["gain"] or 0.0) for row, _ in fine])
        design = errors[:, None] * parts
        (bias, noise), _ = nnls(design, np.array([lost for _, lost in fine]))
        out |= {"lost": float(bias), "noise": float(noise)}
    for kind in ("drop", "drop_residual", "shared"):
        if kind in by_kind:
            square = np.array([dropped_power(row["keep_share"]) ** 2 for row, _ in by_kind[kind]])
            found = np.array([lost for _, lost in by_kind[kind]])
            out[kind] = float(square @ found / (square @ square))
    return out


def _error_of(row: Mapping[str, Any]) -> float:
    return relative_error(row["bits_input"], row["bits_head"], row["mean_bits"], row["block"])


def _interval(values: Sequence[float]) -> Constant:
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Constant(value=mean, low=None, high=None, seeds=count)
    half = float(student_t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Constant(value=mean, low=mean - half, high=mean + half, seeds=count)

"""What convergence runs measured of compression, as constants of the response.

Of ``make convergence``, or of the user's own. Each run branched from a full-precision warm start,
so a higher loss at its end is a number of uncompressed iterations lost: with a loss that falls by
``c`` nats an e-fold of iterations, a branch of ``S`` iterations after ``W`` that ends ``d`` nats
higher made the progress of ``(W + S) exp(-d/c) - W`` of them. A constant is the penalty late in
training under which the response itself makes that progress, its early surcharge included. The
model, the text and the seeds are in the file's provenance; what they say of another model is an
assumption.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, nnls
from scipy.stats import t as student_t

from xtune.errors import CalibrationError

FILE = "measured_response.json"
KINDS = ("quantise", "drop", "drop_residual", "shared")  # of methods that the constants are from
SCHEMA_VERSION = 1
HINT = "it is what python -m xtune.proofs.convergence --response FILE writes"
KEPT = (1e-6, 0.99)  # shares of elements: beyond them nothing or all of the power is dropped
MOST_ITERATIONS = 1_000_000
LEAST_PROGRESS = 1e-3  # of the iterations of a branch; below it all was lost
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


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A measurement of one's own, as ``make convergence`` writes it, and a digest of it.

    Raises:
        CalibrationError: It is none, or it lacks what the constants are made of.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: cannot be read: {error}", HINT) from error
    try:
        _check(document)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CalibrationError(f"{path}: is no measured response: {what}", HINT) from error
    text = json.dumps(document, sort_keys=True)
    return document, hashlib.sha256(text.encode()).hexdigest()[:12]


def _check(document: Mapping[str, Any]) -> None:
    """Raises where the constants cannot be made of a document."""
    if document["schema"] != SCHEMA_VERSION:
        raise ValueError(f"schema {document['schema']!r}, this version reads {SCHEMA_VERSION}")
    json.dumps(document["provenance"], allow_nan=False)  # the calibration keeps it
    settings = document["provenance"]["settings"]
    for name, least in (("warm", 0), ("steps", 1)):
        _number(settings, name, least, MOST_ITERATIONS, whole=True)
    full = document["full_precision"]
    _number(full, "nats_per_e_fold", 1e-9, 1e9)
    methods = {n: row for n, row in document["methods"].items() if row["kind"] in KINDS}
    if not methods:
        raise ValueError(f"no method of kind {', '.join(KINDS)}")
    for name, row in methods.items():
        try:
            _check_method(row)
            for seed, change in zip(row["seeds"], row["perplexity_changes"], strict=True):
                _check_change(seed, change, full["nats_per_e_fold"], settings)
        except (LookupError, TypeError, ValueError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{name}: {what}") from error
    if not common_seeds(document):
        raise ValueError("its methods have no seed in common")
    rows = list(methods.values())
    if all(row["kind"] == "quantise" for row in rows) and not len(_designed(rows)[0]):
        raise ValueError(
            f"two quantisers of {FIRST_BITS} bits or more with unlike gain are needed"
        )


def _number(
    row: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False
) -> None:
    """Raises where a value of a row is no number, or not in [low, high]."""
    value = row[name]
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not low <= value <= high:
        a = "a whole number" if whole else "a number"
        raise ValueError(f"{name} is {value!r}, not {a} from {low:g} to {high:g}")


def _check_method(row: Mapping[str, Any]) -> None:
    """Raises where a row lacks what its constants are made of."""
    seeds, changes = row["seeds"], row["perplexity_changes"]
    if len(changes) != len(seeds) or not changes:
        raise ValueError("a perplexity change for each seed is needed")
    if any(type(seed) is not int for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ValueError("its seeds are not whole numbers that each occur once")
    if row["kind"] != "quantise":
        _number(row, "keep_share", *KEPT)
        return
    for part in ("bits_input", "bits_head", "mean_bits"):
        _number(row, part, 1, 32)
    _number(row, "block", 2, 1 << 30, whole=True)
    if row["gain"] is not None:
        _number(row, "gain", 0, 1)
    ends = sorted((row["bits_input"], row["bits_head"]))
    if ends[0] != ends[1]:
        _number(row, "mean_bits", *ends)


def _check_change(seed: int, change: Any, fall: float, settings: Mapping[str, Any]) -> None:
    """Raises where a branch's change of perplexity tells no penalty."""
    if type(change) not in (int, float) or not -1 < change < math.inf:
        raise ValueError(f"seed {seed}: {change!r} is no change of perplexity")
    warm, steps = settings["warm"], settings["steps"]
    try:
        progress = _progress(math.log1p(change), fall, warm, steps)
    except OverflowError:
        progress = math.inf
    if not LEAST_PROGRESS <= progress / steps < math.inf:
        lost = "a diverged run" if change > 0 else "more than can be won"
        raise ValueError(
            f"seed {seed}: a perplexity change of {change:g} after {steps} iterations is {lost}, "
            "of which no penalty can be told: leave the method out"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Early:
    """How much more compression costs early in training.

    Attributes:
        penalty: Surcharge at iteration 0, in penalties late in training.
        iterations: Over which it fades by a factor e.
    """

    penalty: float = 0.0
    iterations: float = 1.0

    def factor(self, step: float) -> float:
        """Penalty at an iteration, in penalties late in training."""
        return 1.0 + self.penalty * math.exp(-step / self.iterations)


LATE = Early()  # no surcharge


def penalty_of(damage: float, *, fall: float, warm: int, steps: int, early: Early = LATE) -> float:
    """Penalty late in training of a branch: iterations lost per iteration made.

    Args:
        damage: Nats per token above full precision at the end of the branch.
        fall: Nats per e-fold of iterations by which full precision falls.
        warm: Iterations before the branch.
        steps: Iterations of the branch.
        early: Surcharge that the branch paid too.

    Returns:
        0 where nothing was lost, less where something was won; infinite where all was lost.
    """
    progress = _progress(damage, fall, warm, steps)
    if progress <= 0:
        return math.inf
    factors = np.array([early.factor(step) for step in range(warm, warm + steps)])
    if progress >= steps:  # to first order: what was won is noise
        return (steps / progress - 1.0) / float(factors.mean())

    def excess(penalty: float) -> float:
        return float((1.0 / (1.0 + penalty * factors)).sum()) - progress

    # No factor is below 1, so twice what it were without a surcharge is more than enough.
    return float(brentq(excess, 0.0, 2 * (steps / progress - 1.0), xtol=1e-15, rtol=1e-12))


def _progress(damage: float, fall: float, warm: int, steps: int) -> float:
    """Uncompressed iterations that a branch was worth."""
    return (warm + steps) * math.exp(-damage / fall) - warm


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


def common_seeds(document: Mapping[str, Any]) -> list[int]:
    """Random seeds that every method was run with."""
    rows = [row for row in document["methods"].values() if row["kind"] in KINDS]
    return sorted(set.intersection(*(set(row["seeds"]) for row in rows))) if rows else []


def constants(
    document: Mapping[str, Any], dropped_power: Callable[[float], float], early: Early = LATE
) -> dict[str, Constant]:
    """Constants of the response from a measurement.

    Args:
        document: What `load` gives.
        dropped_power: Share of a gradient's power that keeping a share of elements loses.
        early: Surcharge early in training, which each branch paid for the iterations it made.

    Returns:
        Those that were measured, by name: ``lost`` and ``noise``, penalties of 4 bits for what is
        rounded away for good and as noise, see `error_feedback_parts`; ``drop``,
        ``drop_residual`` and ``shared``, penalty per square of the power that is not sent, without
        and with a residual, and under a shared selection.
    """
    common = common_seeds(document)
    fits = [_one_seed(document, seed, dropped_power, early) for seed in common]
    return {name: _interval([fit[name] for fit in fits]) for name in (fits[0] if fits else ())}


def _one_seed(
    document: Mapping[str, Any],
    seed: int,
    dropped_power: Callable[[float], float],
    early: Early,
) -> dict[str, float]:
    settings = document["provenance"]["settings"]
    fall = document["full_precision"]["nats_per_e_fold"]
    by_kind: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    for row in document["methods"].values():
        if row["kind"] not in KINDS:
            continue
        change = row["perplexity_changes"][row["seeds"].index(seed)]
        lost = penalty_of(
            math.log1p(change), fall=fall, warm=settings["warm"], steps=settings["steps"],
            early=early,
        )  # fmt: skip
        by_kind.setdefault(row["kind"], []).append((row, lost))
    out: dict[str, float] = {}
    quantised = by_kind.get("quantise", [])
    fine, design = _designed([row for row, _ in quantised])
    if len(fine):
        (bias, noise), _ = nnls(design, np.array([lost for _, lost in quantised])[fine])
        out |= {"lost": float(bias), "noise": float(noise)}
    for kind in ("drop", "drop_residual", "shared"):
        if kind in by_kind:
            square = np.array([dropped_power(row["keep_share"]) ** 2 for row, _ in by_kind[kind]])
            found = np.array([lost for _, lost in by_kind[kind]])
            out[kind] = float(square @ found / (square @ square))
    return out


def _designed(rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], NDArray[np.float64]]:
    """Quantisers that the two constants are fitted to, and the errors of each of either kind.

    None where all errors are in one proportion: then the two cannot be told apart.
    """
    fine = [i for i, row in enumerate(rows) if row["bits_input"] >= FIRST_BITS]
    parts = [error_feedback_parts(rows[i]["gain"] or 0.0) for i in fine]
    design = np.array([_error_of(rows[i]) for i in fine])[:, None] * np.reshape(parts, (-1, 2))
    return (fine, design) if np.linalg.matrix_rank(design) == 2 else ([], design)


def _error_of(row: Mapping[str, Any]) -> float:
    return relative_error(row["bits_input"], row["bits_head"], row["mean_bits"], row["block"])


def _interval(values: Sequence[float]) -> Constant:
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Constant(value=mean, low=None, high=None, seeds=count)
    half = float(student_t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Constant(value=mean, low=mean - half, high=mean + half, seeds=count)

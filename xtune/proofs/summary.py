"""From finished runs to figures: paired differences, intervals, bytes saved, extra iterations.

All differences are paired: a method against full precision of the same seed, from the same warm
start and on the same data, so that what the seeds share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from scipy.stats import t as student_t

from xtune.proofs.course import Settings
from xtune.proofs.methods import Method, plan_of
from xtune.proofs.model import Llama
from xtune.proofs.ranks import layers_of

BASELINE = "fp32"
LOSS_WEIGHT = 0.05  # of the newest training loss in its moving average
TARGET_SHARE = 0.95  # of full precision's iterations, where the loss to be reached is read
CONFIDENCE = 0.95

Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]  # by method and seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean over seeds with Student's interval; None where one seed says nothing of spread."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """The interval at 95 % confidence."""
        mean = fmean(values)
        if len(values) < 2:
            return Interval(mean=mean, sd=None, low=None, high=None)
        sd = stdev(values)
        factor = float(student_t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
        half = factor * sd / math.sqrt(len(values))
        return Interval(mean=mean, sd=sd, low=mean - half, high=mean + half)

    def to_json(self) -> dict[str, float | None]:
        """As plain data."""
        return {"mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high}


def smoothed(losses: Sequence[float]) -> list[float]:
    """Exponential moving average that starts at the first loss."""
    out: list[float] = []
    for loss in losses:
        out.append(loss if not out else out[-1] + LOSS_WEIGHT * (loss - out[-1]))
    return out


def extra_iterations(losses: Sequence[float], baseline: Sequence[float]) -> float:
    """Iterations to the loss that full precision has at 95 % of its iterations, ratio - 1.

    Both curves are smoothed; infinite if the loss is never reached. The baseline's own count is
    that at which it first reaches the loss.
    """
    reference = smoothed(baseline)
    target = reference[max(0, round(TARGET_SHARE * len(reference)) - 1)]

    def first(curve: Sequence[float]) -> float:
        return next((i + 1 for i, loss in enumerate(curve) if loss <= target), math.inf)

    return first(smoothed(losses)) / first(reference) - 1.0


def perplexity_change(loss: float, baseline: float) -> float:
    """Relative change of perplexity, from losses in nats per token."""
    return math.expm1(loss - baseline)


def savings(runs: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, float]:
    """Shares of bytes not sent, in the branch and with the warm start as the baseline sends it."""
    sent = fmean(sum(run["bytes"]) for run in runs)
    out = {}
    for kind in ("bf16", "fp32"):
        step = int(runs[0][f"dense_bytes_{kind}"])
        branch, warm = settings.steps * step, settings.warm * step
        out[f"saved_vs_{kind}"] = 1.0 - sent / branch
        out[f"saved_vs_{kind}_with_warm_start"] = 1.0 - (sent + warm) / (branch + warm)
    return out


def summarise(
    method: Method, runs: Runs, settings: Settings, bytes_per_token: float
) -> dict[str, Any]:
    """One row of the table: a method over all seeds that both it and full precision have.

    Raises:
        ValueError: there is no such seed.
    """
    seeds = sorted(set(runs[method.name]) & set(runs[BASELINE]))
    if not seeds:
        raise ValueError(f"{method.name}: no seed has both it and full precision")
    mine = [runs[method.name][seed] for seed in seeds]
    plain = [runs[BASELINE][seed] for seed in seeds]
    pairs = list(zip(mine, plain, strict=True))
    final = [(a["held_out"][-1], b["held_out"][-1]) for a, b in pairs]
    changes = [perplexity_change(a, b) for a, b in final]
    extra = median(extra_iterations(a["train"], b["train"]) for a, b in pairs)
    phases = zip(*(a["held_out"][1:] for a in mine), strict=True)
    plain_phases = zip(*(b["held_out"][1:] for b in plain), strict=True)
    return {
        "label": method.label,
        "kind": method.kind,
        **_bits(method, settings),
        "gain": method.gain,
        "block": method.block if method.kind == "quantise" else None,
        "keep_share": mine[0]["keep_share"],
        "seeds": seeds,
        "perplexity": math.exp(fmean(a for a, _ in final)),
        "nats_per_byte": fmean(a for a, _ in final) / bytes_per_token,
        "perplexity_changes": changes,
        "perplexity_change": Interval.of(changes).to_json(),
        "nats_per_token_change": fmean(a - b for a, b in final),
        "nats_per_byte_change": fmean(a - b for a, b in final) / bytes_per_token,
        "damage_by_phase": [
            fmean(a) - fmean(b) for a, b in zip(phases, plain_phases, strict=True)
        ],
        **savings(mine, settings),
        "extra_iterations": extra if math.isfinite(extra) else None,
        "error_power": fmean(fmean(_known(a["error_power"])) for a in mine),
        "error_power_by_phase": [
            fmean(_known(p) or [0.0]) for p in zip(*(a["error_power"] for a in mine), strict=True)
        ],
        "about": [a["about"] for a in mine],
    }


def response(
    table: Mapping[str, Mapping[str, Any]], runs: Runs, settings: Settings, provenance: Any
) -> dict[str, Any]:
    """The summary that is kept: damage against ratio, bits, gain, share kept and phase."""
    plain = [run["held_out"] for run in runs[BASELINE].values()]
    curve = [fmean(losses) for losses in zip(*plain, strict=True)]
    phases = [min(settings.steps, settings.every * (i + 1)) for i in range(len(curve) - 1)]
    half = (len(curve) - 1) // 2
    later = settings.warm + settings.steps
    earlier = settings.warm + ([0, *phases])[half]
    return {
        "schema": 1,
        "provenance": provenance,
        "phases": phases,
        "full_precision": {
            "held_out": curve,
            "nats_per_e_fold": (curve[half] - curve[-1]) / math.log(later / earlier),
        },
        "methods": {name: dict(row) for name, row in table.items()},
    }


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _bits(method: Method, settings: Settings) -> dict[str, Any]:
    """Planned bits near the input, at the head and on average over the elements."""
    if method.kind != "quantise":
        return {"bits_input": None, "bits_head": None, "mean_bits": None}
    named = list(Llama(settings.shape, 0).named_parameters())
    layers = layers_of([n for n, _ in named], [p.numel() for _, p in named])
    bits = plan_of(method, layers, settings.world).bits
    total = sum(layer.elements for layer in layers)
    mean = sum(b * layer.elements for b, layer in zip(bits, layers, strict=True)) / total
    return {"bits_input": method.bits_input, "bits_head": method.bits_head, "mean_bits": mean}

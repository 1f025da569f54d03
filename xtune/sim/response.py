"""What compression does to training: progress per iteration under a plan.

An iteration under a plan is worth ``1 / (1 + penalty)`` of an uncompressed one. The penalty grows
with the error power of what is sent, relative to the gradient's own power. The form is fixed
here; its constants are parameters of the calibration: what :mod:`.measured` holds, assumed for
the user's model until a training run of the user's has measured them. It lies for bits under 3,
for models far from the one it was measured on, and where bias adds up over many thousands of
iterations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from xtune.policies.compress.wire import DENSE_BITS
from xtune.policies.plan import Layer, Plan, in_head
from xtune.policies.spec import Compression
from xtune.sim import measured
from xtune.sim.calibration import Calibration, Parameter

REFERENCE_BITS = 4
REFERENCE_BLOCK = 256
_PROTOTYPE = (
    "measured with a prototype: a LLaMA-style model of 1.07 M parameters, 4 ranks, 200 iterations"
    " after a shared warm start"
)


def assumed_response() -> tuple[Parameter, ...]:
    """The constants, as assumed parameters with their source."""
    rows = (
        (
            "quantiser_error", 0.0161,
            "relative error power of 4-bit blocks of 256 (relative error 0.127): "
            "measured with a prototype on normal values",
        ),
        (
            "penalty_quantise", 0.30,
            f"penalty per error power without error feedback; {_PROTOTYPE}: perplexity +0.12 % at "
            "4 bits, with 0.5 nat per e-fold of iterations",
        ),
        (
            "penalty_carried", 1.14,
            "penalty per error power added where the whole residual is carried, growing with the "
            f"square of the share; {_PROTOTYPE}: +0.12, +0.22, +0.58 % at shares 0, 0.5, 1",
        ),
        (
            "penalty_drop", 1.0,
            f"penalty per square of the gradient power dropped, without residual; {_PROTOTYPE}: "
            "perplexity +1.1, +11.6, +24.6 % at 35, 5, 1 % kept",
        ),
        (
            "drop_feedback", 0.45,
            f"share of the dropping penalty that a residual leaves; {_PROTOTYPE}: +4.9 for "
            "+11.6 % at 5 % kept",
        ),
        (
            "penalty_shared", 0.45,
            "penalty per square of the gradient power that a shared selection leaves to the "
            f"residual: that of dropping with a residual; {_PROTOTYPE}",
        ),
        (
            "early_penalty", 10.0,
            "how much more compression costs at the very start; measured with a prototype: +2.2 to"
            " +3.2 % from iteration 0, +0.2 % after a warm start",
        ),
        (
            "early_iterations", 200.0,
            "iterations over which that fades by a factor e: the warm start of the prototype",
        ),
    )  # fmt: skip
    prototype = {
        name: Parameter(
            name=name, value=value, unit="iterations" if name == "early_iterations" else "",
            assumed=True, why=why,
        )
        for name, value, why in rows
    }  # fmt: skip
    error = prototype["quantiser_error"].value
    return tuple((prototype | _measured(measured.load(), error)).values())


def _measured(document: Mapping[str, Any], error: float) -> dict[str, Parameter]:
    """What the stored measurement says, in place of the prototype's figures."""
    found = measured.constants(document, dropped_power)
    about = document["provenance"]
    settings = about["settings"]
    why = (
        f"measured by make convergence: {about['parameters']} parameters, {settings['world']} "
        f"ranks, {settings['steps']} iterations after a warm start of {settings['warm']}, "
        f"{len(about['seeds'])} random seeds"
    )
    scales = {
        "penalty_quantise": ("quantise", 1 / error),
        "penalty_carried": ("carried", 1 / error),
        "penalty_drop": ("drop", 1.0),
        "penalty_shared": ("shared", 1.0),
    }
    out = {}
    for name, (measured_as, scale) in scales.items():
        if measured_as in found:
            constant = found[measured_as]
            out[name] = Parameter(
                name=name,
                value=max(0.0, constant.value * scale),
                low=None if constant.low is None else constant.low * scale,
                high=None if constant.high is None else constant.high * scale,
                assumed=True,
                why=why,
            )
    if found.get("drop_residual") and found["drop"].value > 0:
        share = found["drop_residual"].value / found["drop"].value
        out["drop_feedback"] = Parameter(name="drop_feedback", value=share, assumed=True, why=why)
    return out


class Response:
    """Progress per iteration for the plans of one policy.

    Args:
        calibration: Where the constants are from.
        compression: The policy's compression half.
        elements: Elements of each layer, in the order of a plan's bits.
    """

    def __init__(
        self, calibration: Calibration, compression: Compression, elements: Sequence[int]
    ) -> None:
        self._calibration = calibration
        self._compression = compression
        self._elements = tuple(elements)
        last = max(1, len(self._elements) - 1)
        layers = [
            Layer(name=str(i), elements=count, depth=i / last)
            for i, count in enumerate(self._elements)
        ]
        self._heads = in_head(layers, compression.head_share)
        self._penalties: dict[tuple[str, tuple[int, ...], float], float] = {}

    def penalty(self, plan: Plan) -> float:
        """Penalty late in training, 0 for an uncompressed or bf16 plan."""
        key = (plan.mode, plan.bits, plan.keep_share)
        if key not in self._penalties:
            self._penalties[key] = self._late_penalty(plan)
        return self._penalties[key]

    def progress(self, plan: Plan, step: int) -> float:
        """Uncompressed iterations that iteration ``step`` is worth, in (0, 1]."""
        late = self.penalty(plan)
        if late == 0.0:
            return 1.0
        c = self._calibration
        early = c["early_penalty"] * math.exp(-step / c["early_iterations"])
        return 1.0 / (1.0 + late * (1.0 + early))

    def _late_penalty(self, plan: Plan) -> float:
        c, compression = self._calibration, self._compression
        if plan.mode in ("drop", "shared"):
            shared = plan.mode == "shared"
            lost = dropped_power(plan.keep_share if shared else compression.drop_keep_share)
            if shared and compression.error_feedback:
                return c["penalty_shared"] * lost * lost
            left = c["drop_feedback"] if compression.error_feedback else 1.0
            return c["penalty_drop"] * lost * lost * left
        if plan.mode != "quantise":
            return 0.0
        penalty = 0.0
        for count, bits, head in zip(self._elements, plan.bits, self._heads, strict=True):
            if bits < DENSE_BITS:
                decay = compression.residual_decay_head if head else compression.residual_decay
                carried = decay if compression.error_feedback else 0.0
                per_power = c["penalty_quantise"] + c["penalty_carried"] * carried * carried
                penalty += count * self._error_power(bits) * per_power
        return penalty / sum(self._elements)

    def _error_power(self, bits: int) -> float:
        """Relative error power of one layer's quantiser.

        Six decibels a bit, as for any uniform quantiser; the scale of a block is its largest
        value, which grows as sqrt(2 ln block) for normal values.
        """
        wider = math.log(self._compression.block) / math.log(REFERENCE_BLOCK)
        reference = self._calibration["quantiser_error"]
        return float(reference * wider * 4.0 ** (REFERENCE_BITS - bits))


@lru_cache(maxsize=64)
def dropped_power(keep_share: float) -> float:
    """Share of a normal vector's power in all but its largest ``keep_share`` of elements.

    The kept part beyond ``z`` holds 2 (z phi(z) + Q(z)) of it.
    """
    if keep_share >= 1.0:
        return 0.0
    normal = NormalDist()
    z = normal.inv_cdf(1.0 - keep_share / 2.0)
    return max(0.0, 1.0 - 2.0 * (z * normal.pdf(z) + (1.0 - normal.cdf(z))))

"""What compression does to training: progress per iteration under a plan.

An iteration under a plan is worth ``1 / (1 + penalty)`` of an uncompressed one. The penalty grows
with the error power of what is sent, relative to the gradient's own power. The form is fixed
here; its constants are parameters of the calibration: what :mod:`.measured` holds, assumed for
the user's model until runs of the user's have measured them (``xtune calibrate --response``). It
lies for bits under 3, for models far from the one it was measured on, and where bias adds up over
many thousands of iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from xtune.policies.compress.wire import DENSE_BITS
from xtune.policies.plan import Layer, Plan, in_head
from xtune.policies.spec import Compression
from xtune.sim import measured
from xtune.sim.calibration import Calibration, Parameter

# In a prototype, 200 iterations from iteration 0 lost about 6.5 times as many iterations to
# compression as 200 after 200 uncompressed ones. The branches of make convergence, all from
# iteration 200, show no surcharge that fades. Both hold for 26 that fades over 50 iterations:
# (1 + 26/4 (1 - e^-4)) / (1 + 26/4 (e^-4 - e^-8)) = 6.6, and 2 % of it is left at iteration 200.
EARLY = measured.Early(penalty=26.0, iterations=50.0)
_PROTOTYPE = (
    "from a prototype, a LLaMA-style model of 1.07 M parameters on 4 ranks: perplexity +2.2 to "
    "+3.2 % after 200 iterations from iteration 0, +0.2 % after 200 uncompressed ones; and from "
    "make convergence, whose branches from iteration 200 show no such fading"
)
PENALTIES = (
    ("lost", "penalty for what 4 bits in blocks of 256 round away for good"),
    ("noise", "penalty for what they round away as noise"),
    ("drop", "penalty per square of the gradient power dropped, without residual"),
    ("drop_residual", "penalty per square of the gradient power dropped, with a residual"),
    ("shared", "penalty per square of the power that a shared selection leaves for later"),
)


def assumed_response() -> tuple[Parameter, ...]:
    """The constants, as assumed parameters with their source."""
    early = (
        ("early_penalty", EARLY.penalty, "", "how much more compression costs at the very start"),
        (
            "early_iterations",
            EARLY.iterations,
            "iterations",
            "over which that fades by a factor e",
        ),
    )
    first = [
        Parameter(
            name=name,
            value=value,
            unit=unit,
            assumed=True,
            why=f"{what}; {_PROTOTYPE}",
            needs="none that is read yet: convergence runs of one's own from iteration 0",
        )
        for name, value, unit, what in early
    ]
    document = measured.load()
    return (*first, *_penalties(document, f"measured by make convergence: {_about(document)}"))


def with_response(
    calibration: Calibration, document: Mapping[str, Any], digest: str
) -> Calibration:
    """The calibration under a response that was measured on runs of the user's own.

    Args:
        calibration: Under the stored response.
        document: What `measured.read` gives; what it did not measure stays as it is.
        digest: Of the document.
    """
    own = {p.name: p for p in _own(document)}
    held_out = calibration.held_out
    return replace(
        calibration,
        parameters={**calibration.parameters, **own},
        inputs={**calibration.inputs, "response": digest},
        response=document["provenance"],
        held_out=None if held_out is None else with_response(held_out, document, digest),
    )


def _own(document: Mapping[str, Any]) -> list[Parameter]:
    """The constants that a measurement of the user's own model holds, which are not assumed."""
    why = f"measured on runs of one's own: {_about(document)}"
    runs = sum(
        len(row["seeds"]) for row in document["methods"].values() if row["kind"] in measured.KINDS
    )
    found = _penalties(document, why)
    return [replace(p, assumed=False, n=runs, tables=("response",), needs="") for p in found]


def _about(document: Mapping[str, Any]) -> str:
    about = document["provenance"]
    settings = about["settings"]
    size = about.get("parameters")
    return (
        f"{'a model' if size is None else f'{size} parameters'}, {settings.get('world', '?')} "
        f"ranks, {settings['steps']} iterations after a warm start of {settings['warm']}, "
        f"{len(measured.common_seeds(document))} random seeds"
    )


def _penalties(document: Mapping[str, Any], why: str) -> list[Parameter]:
    """Those that a measurement holds."""
    found = measured.constants(document, dropped_power, EARLY)
    return [
        Parameter(
            name=f"penalty_{name}",
            value=max(0.0, found[name].value),
            low=_not_below_zero(found[name].low),
            high=_not_below_zero(found[name].high),
            assumed=True,
            why=f"{what}; {why}",
            needs="convergence runs of one's own: xtune calibrate --response",
        )
        for name, what in PENALTIES
        if name in found
    ]


def _not_below_zero(value: float | None) -> float | None:
    return None if value is None else max(0.0, value)


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
        self._early = measured.Early(
            penalty=calibration["early_penalty"], iterations=calibration["early_iterations"]
        )
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
        return 1.0 / (1.0 + late * self._early.factor(step))

    def _late_penalty(self, plan: Plan) -> float:
        c, compression = self._calibration, self._compression
        if plan.mode in ("drop", "shared"):
            shared = plan.mode == "shared"
            lost = dropped_power(plan.keep_share if shared else compression.drop_keep_share)
            if shared and compression.error_feedback:
                return c["penalty_shared"] * lost * lost
            kept = "_residual" if compression.error_feedback else ""
            return c[f"penalty_drop{kept}"] * lost * lost
        if plan.mode != "quantise":
            return 0.0
        penalty = 0.0
        for count, bits, head in zip(self._elements, plan.bits, self._heads, strict=True):
            if bits < DENSE_BITS:
                decay = compression.residual_decay_head if head else compression.residual_decay
                carried = decay if compression.error_feedback else 0.0
                bias, noise = measured.error_feedback_parts(carried)
                per_power = c["penalty_lost"] * bias + c["penalty_noise"] * noise
                error = measured.relative_error(bits, bits, bits, compression.block)
                penalty += count * error * per_power
        return penalty / sum(self._elements)


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

"""The simulator's own error: what its fast rung is off by, of each policy that is compared.

It is measured a policy and a calibration (:mod:`xtune.sim.fidelity`), and one rule carries it: in
quadrature with the interval over seeds, an absolute figure by the policy's own bias and deviation,
a gain by those of the paired difference (:func:`xtune.studies._stats.figures`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xtune.policies.spec import Policy
    from xtune.sim import Calibration
    from xtune.sim.fidelity import Fidelity
    from xtune.studies._stats import Error

#: Metrics that are off by what the step time is off by, relatively; of others that is not known.
OF_STEPS = ("time_to_target_s", "mean_step_s", "steps_per_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnErrors:
    """Own errors of the policies that are compared on one calibration, relative.

    Attributes:
        metric: The objective.
        measured: By the policy's name; the best is "".
    """

    metric: str
    measured: Mapping[str, Fidelity] = field(default_factory=dict)

    def absolute(self, name: str) -> Error | None:
        """Bias and sd of a policy's own figure; None where they are not known."""
        found = self.measured.get(name)
        if found is None or self.metric not in OF_STEPS:
            return None
        return _finite((found.bias, found.sd))

    def of_difference(self, name: str) -> Error | None:
        """Bias and sd of the best's difference from another policy; None where not known."""
        from xtune.sim.fidelity import difference

        best, other = self.measured.get(""), self.measured.get(name)
        if best is None or other is None or self.metric not in OF_STEPS:
            return None
        return _finite(difference(best, other))


def _finite(error: Error) -> Error | None:
    return error if all(map(math.isfinite, error)) else None


def measured(policy: Policy, calibration: Calibration, seed: int, cache: Path) -> Fidelity:
    """Of one policy, in whatever process."""
    from xtune.sim.cache import PhaseCache
    from xtune.sim.fidelity import fidelity

    return fidelity(policy, calibration, cache=PhaseCache(cache), seed=seed)

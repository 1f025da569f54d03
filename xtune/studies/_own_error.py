"""The simulator's own error: what its fast rung is off by, of each policy that is compared.

It is measured a policy and a calibration (:mod:`xtune.sim.fidelity`), and one rule carries it: in
quadrature with the interval over seeds, an absolute figure by the policy's own bias and deviation,
a gain by those of the paired difference (:func:`xtune.studies._stats.figures`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.studies._work import MOST_LOSSES, Workers, seconds_left

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


def measure(
    policies: Mapping[str, Policy],
    calibration: Calibration,
    workers: Workers,
    *,
    seed: int,
    cache: Path,
    deadline: float,
    progress: Callable[[int, Policy], None],
) -> tuple[dict[str, Fidelity], dict[str, str]]:
    """What the simulator is off by under each policy, and why that is not known of others.

    Where a worker dies it is not said on which policy. From then on they are measured one at a
    time, and one that workers die on twice is given up. The others do not depend on it.

    Args:
        policies: By any key.
        calibration: What is simulated.
        workers: Where.
        seed: Of the measurements.
        cache: Folder of sampled phases.
        deadline: On the monotonic clock.
        progress: Told how many are done, and the last of them.

    Returns:
        What was measured, and the reasons why others were not, by key.

    Raises:
        TimeoutError: The deadline has passed.
    """
    found: dict[str, Fidelity] = {}
    reasons: dict[str, str] = {}
    todo, losses, alone = dict(policies), Counter[str](), False
    while todo:
        batch = list(todo)[:1] if alone else list(todo)
        calls: dict[str, Future[Fidelity]] = {}
        try:
            for key in batch:
                calls[key] = workers.executor.submit(measured, todo[key], calibration, seed, cache)
            for key, call in calls.items():
                try:
                    found[key] = call.result(timeout=seconds_left(deadline))
                except (TimeoutError, BrokenProcessPool):
                    raise
                except Exception as error:  # of one policy, as out of memory: the others go on
                    reasons[key] = f"{type(error).__name__}: {error}"
                policy = todo.pop(key)
                progress(len(policies) - len(todo), policy)
        except BrokenProcessPool:
            workers.close()
            first = next(iter(todo))
            losses[first] += alone
            alone = True
            if losses[first] >= MOST_LOSSES:
                reasons[first] = "worker processes died on it"
                progress(len(policies) - len(todo) + 1, todo.pop(first))
        finally:
            for call in calls.values():
                call.cancel()
    return found, reasons

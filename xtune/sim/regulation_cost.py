"""Times one regulation of the controller: ``python -m xtune.sim.regulation_cost``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from xtune.policies.controller import Controller
from xtune.policies.plan import Layer
from xtune.policies.presets import preset

LAYERS = 64
ROUNDS = 2000


def measure_regulation(
    *, layers: int = LAYERS, rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median seconds of ``report``, ``agree`` and the ``begin`` that puts the plan in force.

    The small all-reduce between ranks is not in it; a simulator adds that from the link latency.

    Args:
        layers: Layers of the model.
        rounds: Regulations that are timed.
        clock: Seconds, monotonic.
    """
    shapes = [Layer(name=str(i), elements=1 << 22, depth=i / layers) for i in range(layers)]
    controller = Controller(preset("joint"), shapes, 16)
    took = []
    for step in range(rounds):
        slow = 1.0 + step % 3  # so that plans do change
        controller.observe(step, comm_s=slow, modelled_s=1.0, wire_bytes=1, gradient_change=0.1)
        begin = clock()
        controller.agree(step, controller.report())
        controller.begin(step + 1)
        took.append(clock() - begin)
    return statistics.median(took)


if __name__ == "__main__":
    print(f"{measure_regulation() * 1e6:.1f} us a regulation of {LAYERS} layers")

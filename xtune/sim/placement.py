"""Flows on the paths that the engine places them on before a phase begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xtune.policies._core import hash31
from xtune.policies.phase_placement import place
from xtune.sim.fabric import Fabric
from xtune.sim.flows import Flows


def placed(fabric: Fabric, flows: Flows, *, free: Sequence[float] | None = None) -> Flows:
    """The same flows, each with a primary path by the engine's placement.

    Run them with one pair (``Routing.pairs``): with more, units go round over drawn paths too.

    Args:
        fabric: The fabric.
        flows: All flows that whoever places them knows of.
        free: Share of each port's rate that other traffic leaves free, 0..1; all by default.
    """
    rate = fabric.step_bytes(1000) / 1000.0
    left = rate if free is None else rate * np.asarray(free)
    routes = fabric.routes(flows.src, flows.dst)
    crossing = np.flatnonzero(routes.links > 2)
    paths = [
        [
            fabric.path(int(flows.src[i]), int(flows.dst[i]), number)[1:-1]
            for number in range(int(routes.count[i]))
        ]
        for i in crossing
    ]
    turns = [hash31(int(i), 0) for i in crossing]
    chosen = place(paths, flows.size[crossing].tolist(), left.tolist(), turns)
    spine = flows.spine.copy()
    spine[crossing] = chosen
    return flows.with_paths(spine)

"""The simulator: fabric (rung A), sampled phases (rung B), the training loop (rung C).

The names below load on first use, since rung A brings numba and the fits bring polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xtune.sim.calibration import Calibration, Parameter
    from xtune.sim.evaluation import Evaluation, evaluate, mean_interval
    from xtune.sim.fit import calibrate
    from xtune.sim.loop import Run, simulate
    from xtune.sim.network import scope_notes

__all__ = [
    "Calibration",
    "Evaluation",
    "Parameter",
    "Run",
    "calibrate",
    "evaluate",
    "mean_interval",
    "scope_notes",
    "simulate",
]

_HOME = {
    "Calibration": "calibration",
    "Evaluation": "evaluation",
    "Parameter": "calibration",
    "Run": "loop",
    "calibrate": "fit",
    "evaluate": "evaluation",
    "mean_interval": "evaluation",
    "scope_notes": "network",
    "simulate": "loop",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"xtune.sim.{_HOME[name]}"), name)

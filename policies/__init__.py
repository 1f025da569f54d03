"""The engine: routing and gradient compression under one policy, for a job and for a simulator.

Names load when they are first used, so that importing the package costs nothing and pulls in
neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._fields import Parameter, PolicyError
    from .actuators.rails import Rail
    from .bus import Bus, CompressionState, RoutingState
    from .choice_table import ChoiceTable
    from .controller import Controller
    from .decisions import DecisionLog
    from .endpoint import Endpoint, serve
    from .forecast import Forecaster, make_forecaster
    from .forecast_batch import ForecastTable
    from .layer_norms import LayerNorms
    from .paths import DirectedLink, PathFinder
    from .plan import Layer, Plan
    from .presets import PRESETS, preset
    from .router import Router
    from .schedule import BurstSchedule
    from .spec import PARAMETERS, Policy, dumps, loads, replace_fields
    from .steering import Steering
    from .topology import Fabric, read_fabric

_HOME = {
    "PARAMETERS": "spec",
    "PRESETS": "presets",
    "BurstSchedule": "schedule",
    "Bus": "bus",
    "ChoiceTable": "choice_table",
    "CompressionState": "bus",
    "Controller": "controller",
    "DecisionLog": "decisions",
    "DirectedLink": "paths",
    "Endpoint": "endpoint",
    "Fabric": "topology",
    "ForecastTable": "forecast_batch",
    "Forecaster": "forecast",
    "Layer": "plan",
    "LayerNorms": "layer_norms",
    "Parameter": "_fields",
    "PathFinder": "paths",
    "Plan": "plan",
    "Policy": "spec",
    "PolicyError": "_fields",
    "Rail": "actuators.rails",
    "Router": "router",
    "RoutingState": "bus",
    "Steering": "steering",
    "dumps": "spec",
    "loads": "spec",
    "make_forecaster": "forecast",
    "preset": "presets",
    "replace_fields": "spec",
    "read_fabric": "topology",
    "serve": "endpoint",
}

__all__ = [
    "PARAMETERS",
    "PRESETS",
    "BurstSchedule",
    "Bus",
    "ChoiceTable",
    "CompressionState",
    "Controller",
    "DecisionLog",
    "DirectedLink",
    "Endpoint",
    "Fabric",
    "ForecastTable",
    "Forecaster",
    "Layer",
    "LayerNorms",
    "Parameter",
    "PathFinder",
    "Plan",
    "Policy",
    "PolicyError",
    "Rail",
    "Router",
    "RoutingState",
    "Steering",
    "dumps",
    "loads",
    "make_forecaster",
    "preset",
    "read_fabric",
    "replace_fields",
    "serve",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

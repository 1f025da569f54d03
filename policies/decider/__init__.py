"""The decider: one process that all probe agents report to, and that tells hosts what it knows.

``python -m <package>.decider run --config FILE`` serves, ``show FILE`` prints what a decider or a
host knows; `WeightsFeed` hands a router the verdicts. Names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import Config, load_config
    from .server import Decider
    from .weights import WeightsFeed, WeightsReader

_HOME = {
    "Config": "config",
    "Decider": "server",
    "WeightsFeed": "weights",
    "WeightsReader": "weights",
    "load_config": "config",
}

__all__ = ["Config", "Decider", "WeightsFeed", "WeightsReader", "load_config"]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

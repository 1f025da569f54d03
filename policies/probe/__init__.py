"""Probes: an agent in its own process measures paths, a reflector answers, the router reads.

``python -m <package>.probe agent --config FILE`` sends, ``reflect`` answers, ``show`` prints what
an agent knows; `Feed` hands a router what is new. Names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent
    from .config import Config, ConfigError, Listen, Path, load_config
    from .feed import Feed
    from .packet import Codec, KeyFileError, load_key
    from .readings import Reading, ReadingsError, ReadingsReader, ReadingsWriter
    from .reflector import Reflector

_HOME = {
    "Agent": "agent",
    "Codec": "packet",
    "Config": "config",
    "ConfigError": "config",
    "Feed": "feed",
    "KeyFileError": "packet",
    "Listen": "config",
    "Path": "config",
    "Reading": "readings",
    "ReadingsError": "readings",
    "ReadingsReader": "readings",
    "ReadingsWriter": "readings",
    "Reflector": "reflector",
    "load_config": "config",
    "load_key": "packet",
}

__all__ = [
    "Agent",
    "Codec",
    "Config",
    "ConfigError",
    "Feed",
    "KeyFileError",
    "Listen",
    "Path",
    "Reading",
    "ReadingsError",
    "ReadingsReader",
    "ReadingsWriter",
    "Reflector",
    "load_config",
    "load_key",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

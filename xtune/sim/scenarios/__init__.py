"""Scenarios: jobs and fabrics that need no telemetry. One file each; all of it is assumed."""

from __future__ import annotations

from xtune.errors import UsageError
from xtune.sim.scenarios._base import Claim, Scenario

__all__ = ["SCENARIOS", "Claim", "Scenario", "scenario"]

SCENARIOS = ("founding-dense", "founding-moe")


def scenario(name: str) -> Scenario:
    """A scenario by its name.

    Raises:
        UsageError: There is no such scenario.
    """
    from importlib import import_module

    if name not in SCENARIOS:
        raise UsageError(f"no scenario {name!r}", f"there are: {', '.join(SCENARIOS)}")
    module = import_module(f"xtune.sim.scenarios.{name.replace('-', '_')}")
    made: Scenario = module.make()
    return made

"""Scenarios: jobs and fabrics that need no telemetry. One file each; all of it is assumed."""

from __future__ import annotations

from pathlib import Path

from xtune.errors import UsageError
from xtune.sim.scenarios._base import Claim, Scenario

__all__ = ["SCENARIOS", "Claim", "Scenario", "scenario"]

SCENARIOS = ("founding-dense", "founding-moe")


def scenario(name: str) -> Scenario:
    """A scenario by its name, or the job of a workload file.

    Raises:
        InputError: The file is not a workload.
        UsageError: There is no such scenario, or the file holds no compute times.
    """
    from importlib import import_module

    if name not in SCENARIOS:
        if Path(name).is_file():
            from xtune.sim.scenarios.from_file import of_file

            return of_file(Path(name))
        known = ", ".join(SCENARIOS)
        raise UsageError(f"no scenario {name!r}", f"there are: {known}; or a SimAI workload file")
    module = import_module(f"xtune.sim.scenarios.{name.replace('-', '_')}")
    made: Scenario = module.make()
    return made

"""Scenarios: jobs and fabrics that need no telemetry. One file each; all of it is assumed."""

from __future__ import annotations

from pathlib import Path

from xtune.errors import InputError, UsageError
from xtune.sim.scenarios._base import Claim, Scenario

__all__ = ["SCENARIOS", "Claim", "Scenario", "scenario"]

SCENARIOS = ("founding-dense", "founding-moe")


def scenario(name: str) -> Scenario:
    """A scenario by its name, or the job of a workload file.

    Raises:
        InputError: The file is not there, or is not a workload.
        UsageError: There is no such scenario, or the file holds no compute times.
    """
    from importlib import import_module

    if name not in SCENARIOS:
        return _of_path(name)
    module = import_module(f"xtune.sim.scenarios.{name.replace('-', '_')}")
    made: Scenario = module.make()
    return made


def _of_path(name: str) -> Scenario:
    """The job of a workload file; a bare word is meant as a scenario's name."""
    from xtune.sim.scenarios.from_file import of_file

    path = Path(name)
    hint = f"there are: {', '.join(SCENARIOS)}; or a SimAI workload file"
    if path.is_file():
        return of_file(path)
    if name and path.is_dir():
        raise InputError(f"{name}: a folder, not a file", hint)
    if path.exists() and name:
        raise InputError(f"{name}: not a regular file", hint)
    if "/" in name or path.suffix:
        raise InputError(f"{name}: no such file", hint)
    raise UsageError(f"no scenario {name!r}", hint)

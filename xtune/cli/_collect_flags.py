"""Which flags of ``xtune collect`` go together: one that would do nothing is wrong usage."""

from __future__ import annotations

import typer

from xtune.errors import UsageError

_ALWAYS = {"lake", "list_", "job", "run_name", "host", "rank", "label", "json", "debug"}
_READING = {"kind", "tz", "time_from", "map_", "host_map", "strict"}
_LIVE = {"interval", "duration"}
#: What is collected -> the parameters that say how.
_GOES_WITH = {
    "reading files": {"paths", "dry_run", *_READING},
    "--follow": {"paths", "follow", *_READING, *_LIVE},
    "--fabric": {"fabric", *_LIVE},
    "--url": {"url", "since", "until", "step", "dry_run", *_READING},
    "live sampling, which names no files": {"sysfs", "procfs", *_LIVE},
}


def check_flags(context: typer.Context) -> None:
    """Refuse flags that do not go with what is asked for.

    Raises:
        UsageError: One was given that would do nothing.
    """
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name != "DEFAULT":
            given[parameter.name] = parameter
    way = next(
        (way for way in ("--url", "--fabric", "--follow") if way.removeprefix("--") in given),
        "reading files" if "paths" in given else "live sampling, which names no files",
    )
    for name, parameter in given.items():
        if name not in _ALWAYS | _GOES_WITH[way]:
            what = "naming files" if name == "paths" else max(parameter.opts, key=len)
            raise UsageError(f"{what} does not go with {way}")

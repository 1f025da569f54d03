"""``xtune doctor``: is the environment sound, and the lake?"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import typer

from xtune.cli._common import DebugOption, JsonOption, LakeOption, config, open_lake
from xtune.console import emit_json, progress, say, table
from xtune.errors import XtuneError

if TYPE_CHECKING:
    from xtune.lake import Lake

PACKAGES = ("duckdb", "polars", "pyarrow", "optuna", "torch", "numba", "plotly", "scikit-learn")
LEAST_FREE_BYTES = 1_000_000_000

Check = tuple[str, str, str, str]  # what, state (ok, warn, bad), found, how to mend


def run(lake: LakeOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Check environment and lake; says how to mend each finding. --json lists all."""
    checks = [*_environment(), *_lake(lake)]
    if json:
        names = ("check", "state", "found", "mend")
        emit_json(
            {"schema": 1, "checks": [dict(zip(names, check, strict=True)) for check in checks]}
        )
    else:
        _show(checks)
    if any(state == "bad" for _, state, _, _ in checks):
        raise typer.Exit(1)


def _show(checks: list[Check]) -> None:
    """What needs somebody's hand, then a count of the rest; in full where a terminal is narrow."""
    wrong = [check for check in checks if check[1] != "ok"]
    if wrong:
        wide = not sys.stdout.isatty()
        table("", ("check", "state", "found", "how to mend"), wrong, text=not wide)
    say(f"{len(checks)} checks: {len(checks) - len(wrong)} ok, {len(wrong)} to look at")
    good = dict.fromkeys(name for name, state, *_ in checks if state == "ok")
    if good:
        say(f"ok: {', '.join(good)} (--json has what was found)")


def _environment() -> list[Check]:
    python = sys.version.split()[0]
    good = sys.version_info >= (3, 11)
    checks: list[Check] = [
        ("python", "ok" if good else "bad", python, "" if good else "use 3.11 or newer")
    ]
    for name in PACKAGES:
        try:
            checks.append((name, "ok", version(name), ""))
        except PackageNotFoundError:
            checks.append((name, "bad", "not installed", "pip install xtune again"))
    if importlib.util.find_spec("numba") is None:
        checks.append(("numba", "bad", "cannot be imported", "pip install numba"))
    return checks


def _lake(flag: str | None) -> list[Check]:
    from xtune.lake import inspect

    try:
        lake = open_lake(flag)
        with progress("reading", None) as update:
            health = inspect(lake, read_through=True, on_file=update)
    except XtuneError as error:
        return [("lake", "bad", error.message, error.hint)]
    checks: list[Check] = [("lake", "ok", str(lake.root), "")]
    free = shutil.disk_usage(lake.root).free
    full = free < LEAST_FREE_BYTES
    checks.append(
        ("free space", "warn" if full else "ok", f"{free / 1e9:.1f} GB",
         "xtune prune --keep 30d" if full else "")
    )  # fmt: skip
    left = len(health.unfinished)
    checks.append(
        ("unfinished writes", "warn" if left else "ok", str(left),
         "left by killed writers; the next write sweeps them" if left else "")
    )  # fmt: skip
    checks += [
        ("damaged file", "bad", line, mend)
        for line, mend in zip(health.damaged, health.mends, strict=True)
    ]
    for (schema, wrote), count in sorted(health.versions.items()):
        checks.append(("schema", "ok", f"{count} files of schema {schema}, xtune {wrote}", ""))
    for file in health.ahead:
        checks.append(
            ("clock order", "warn", f"{file.table}: rows later than now in {file.path.name}",
             "set the source's clock; --tz for local times")
        )  # fmt: skip
    if health.backwards:
        checks.append(
            ("clock order", "warn", "ledger entries later than now", "set this host's clock")
        )
    if not health.damaged:
        checks += _telemetry(lake)
    for name, days in sorted(health.bytes_per_day.items()):
        mean = sum(days.values()) / len(days)
        checks.append(
            ("bytes a day", "ok", f"{name}: {mean / 1e6:.2f} MB on {len(days)} days", "")
        )
    rejected = sum(file.rows for file in lake.files("rejected"))
    if rejected:
        checks.append(
            ("rejected", "warn", f"{rejected} pieces of input",
             'xtune query "SELECT reason, count(*) FROM rejected GROUP BY reason"')
        )  # fmt: skip
    return checks


def _telemetry(lake: Lake) -> list[Check]:
    """What keeps the pipelines from telling more."""
    from xtune.pipelines import EpisodeRules
    from xtune.pipelines.checkup import checkup

    settings = config()
    rules = EpisodeRules(
        min_length_s=settings.get("episodes.min_length_s").value,
        max_gap_s=settings.get("episodes.max_gap_s").value,
    )
    try:
        found = checkup(lake, rules)
    except XtuneError as error:
        return [("pipelines", "bad", error.message, error.hint)]
    return [(one.check, one.state, one.found, one.mend) for one in found]

"""``xtune export``: a tuned policy as an importable module and a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xtune.cli._common import DebugOption, DryRunOption, JsonOption, LakeOption, open_lake
from xtune.console import emit_json, say
from xtune.errors import ExportError, UsageError

if TYPE_CHECKING:
    from xtune.lake import Lake
    from xtune.policies.spec import Policy


def run(
    study: Annotated[str, typer.Option("--study", help="Study to take the policy from.")],
    lake: LakeOption = None,
    trial: Annotated[str, typer.Option("--trial", help="best, or a trial's number.")] = "best",
    name: Annotated[
        str | None, typer.Option("--name", help="Module is xtune_policy_<name>; the study's name.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("dist"),
    with_names: Annotated[
        bool, typer.Option("--with-names", help="Keep job names in the provenance.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the policy as a module and a wheel; prints the wheel's SHA-256."""
    from xtune.export import export_policy, planned
    from xtune.studies import load_result

    store = open_lake(lake)
    policy = _policy(load_result(store.root, study), trial)
    if with_names:
        policy = _named(policy, store)
    module = (name or study.partition("@")[0]).lower().replace("-", "_")
    if dry_run:
        folder, wheel = planned(policy, out, module)
        if json:
            emit_json({"schema": 1, "name": module, "module": str(folder), "wheel": str(wheel),
                       "sha256": None})  # fmt: skip
        else:
            say(f"would write {folder}/ and {wheel}")
        return
    exported = export_policy(policy, out, module)
    if json:
        emit_json(
            {
                "schema": 1,
                "name": exported.name,
                "module": str(exported.module),
                "wheel": str(exported.wheel),
                "sha256": exported.sha256,
            }
        )
        return
    say(f"module  {exported.module}")
    say(f"wheel   {exported.wheel}")
    say(f"SHA-256 {exported.sha256}")


def _policy(document: dict[str, Any], trial: str) -> Policy:
    from dataclasses import replace

    from xtune.policies.spec import Policy, PolicyError, replace_fields

    if document["best"] is None:
        raise ExportError("the study has no completed trial", "run xtune tune again")
    try:
        policy = Policy.from_json(document["policy"])
    except PolicyError as error:
        raise ExportError(
            f"the study's policy is not one of this version: {error}", "run xtune tune again"
        ) from error
    if trial == "best":
        return policy
    if not trial.isascii() or not trial.isdigit():
        raise UsageError(f"--trial: {trial!r} is neither best nor a number")
    for row in document["trials"]:
        if row["number"] == int(trial):
            if row["state"] != "complete":
                raise ExportError(f"trial {trial} is {row['state']}: {row.get('reason', '')}")
            provenance = {
                **policy.provenance,
                "trial": row["number"],
                "expected": {
                    "source": "simulator",
                    document["objective"]["name"]: {k: row[k] for k in ("mean", "low", "high")},
                },
            }
            return replace(replace_fields(policy, row["params"]), provenance=provenance)
    raise ExportError(f"the study has no trial {trial}", "xtune tune prints the trials")


def _named(policy: Policy, lake: Lake) -> Policy:
    """With the job that the study's own calibration was fitted on, not the latest one's."""
    from dataclasses import replace

    from xtune.sim import Calibration

    fingerprint = policy.provenance["calibration"]
    job = Calibration.load(lake.root / "calibrations" / f"{fingerprint}.json").job
    return replace(policy, provenance={**policy.provenance, "job": job})

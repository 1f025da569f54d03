"""``xtune demo``: the whole main job on the sample telemetry."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from xtune.cli._common import DebugOption
from xtune.console import say
from xtune.errors import InputError

STUDY = "period_T"
JOB = "pretrain-7b"
MARK = ".xtune-demo"
SELECT = "SELECT cause, count(*) AS n FROM episodes GROUP BY cause"


def run(
    data: Annotated[Path, typer.Option("--data", help="Folder of telemetry.")] = Path(
        "data_samples"
    ),
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("demo"),
    debug: DebugOption = False,
) -> None:
    """Collect, rebuild, calibrate, tune, export and report on the sample telemetry."""
    if not (data / "cluster").is_dir():
        raise InputError(
            f"{data} holds no folder cluster", "run it in the project's folder, or --data DIR"
        )
    if out.exists() and not (out / MARK).is_file():
        raise InputError(f"{out} is there and is not a demo's folder", "choose another --out")
    lake = str(out / "lake")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).write_text("made by xtune demo, which deletes and makes it anew\n")
    began = time.monotonic()
    steps = (
        ("collect", str(data / "cluster"), "--job", JOB, "--tz", "UTC"),
        ("rebuild",),
        ("episodes", "--top", "10"),
        ("calibrate",),
        ("tune", "--study", STUDY),
        ("export", "--study", STUDY, "--out", str(out / "dist")),
        ("report", "--study", STUDY, "--out", str(out / "report.html")),
    )
    for index, words in enumerate(steps, 1):
        print()
        command = [*words, "--lake", lake]
        say(f"[{index}/{len(steps)}] $ xtune {shlex.join(command)}")
        sys.stdout.flush()
        _run(command)
    wheel = next((out / "dist").glob("*.whl"))
    print()
    say(f"done in {time.monotonic() - began:.0f} s")
    say(f"  report  {out / 'report.html'}  (open it in a browser)")
    say(f"  wheel   {wheel}  (pip install it beside torch, then import xtune_policy_period_t)")
    say(f'  lake    {lake}  (xtune query --lake {lake} "{SELECT}")')


def _run(command: list[str]) -> None:
    """One command as typed; an exit status that is not 0 ends the demo with it."""
    from xtune.cli import app

    if status := app(command, standalone_mode=False):
        raise typer.Exit(status)

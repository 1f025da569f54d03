"""``xtune demo``: the whole main job on the sample telemetry."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
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
    from xtune.cli import calibrate, collect, episodes, export, rebuild, report, tune

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
    cluster = str(data / "cluster")
    steps: list[tuple[str, Callable[[], None]]] = [
        (
            f"xtune collect {cluster} --job {JOB} --tz UTC",
            lambda: _call(collect.run, paths=[cluster], lake=lake, job=JOB, tz="UTC"),
        ),
        ("xtune rebuild", lambda: rebuild.run(lake=lake)),
        ("xtune episodes --top 10", lambda: episodes.run(lake=lake, top=10)),
        ("xtune calibrate", lambda: calibrate.run(lake=lake)),
        (f"xtune tune --study {STUDY}", lambda: tune.run(study=STUDY, lake=lake)),
        (
            f"xtune export --study {STUDY}",
            lambda: export.run(study=STUDY, lake=lake, out=out / "dist"),
        ),
        (
            f"xtune report --study {STUDY}",
            lambda: report.run(study=STUDY, lake=lake, out=out / "report.html"),
        ),
    ]
    for index, (command, step) in enumerate(steps, 1):
        print()
        say(f"[{index}/{len(steps)}] $ {command}")
        sys.stdout.flush()
        step()
    wheel = next((out / "dist").glob("*.whl"))
    print()
    say(f"done in {time.monotonic() - began:.0f} s")
    say(f"  report  {out / 'report.html'}  (open it in a browser)")
    say(f"  wheel   {wheel}  (pip install it beside torch, then import xtune_policy_period_t)")
    say(f'  lake    {lake}  (xtune query --lake {lake} "{SELECT}")')


def _call(command: Callable[..., None], **arguments: object) -> None:
    """A command that ends with an exit status; anything but 0 stops the demo."""
    try:
        command(**arguments)
    except typer.Exit as done:
        if done.exit_code:
            raise

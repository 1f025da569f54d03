"""What the command lines of simulated studies share: keep the figures, print, say what failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xtune.errors import UsageError, XtuneError
from xtune.files import write_atomically

Report = dict[str, Any]


def run_study(
    name: str, study: Callable[[], Report], as_text: Callable[[Report], str], out: Path | None
) -> Report | None:
    """Run a study, keep its figures and print them; an error is one line on stderr.

    Args:
        name: Of the study, before an error.
        study: Gives the figures.
        as_text: Them for a terminal.
        out: Where to keep them as JSON, if anywhere.

    Returns:
        The figures; None where there was an error.
    """
    try:
        if out is not None:
            check_out(out)  # not after minutes of work
        report = study()
        if out is not None:
            write_report(out, report)
    except (XtuneError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    print(as_text(report))
    return report


def check_out(out: Path) -> None:
    """Refuse a file that has no folder to stand in.

    Raises:
        UsageError: There is none.
    """
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"--out {out}: is a folder or has none to stand in")


def write_report(out: Path, report: Report) -> None:
    """Keep figures as JSON.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(out, (json.dumps(report, indent=1) + "\n").encode())

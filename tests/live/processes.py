"""Starts real collectors with short flushes, and reads what they report."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Arguments: lake, sysfs root, host, interval, duration or -, flush.
LIVE = """
import sys, time
from pathlib import Path
from xtune.cli._live import sample_host
from xtune.collectors import Context
from xtune.lake import Lake
lake, root, host, interval, duration, flush = sys.argv[1:7]
def work():
    sample_host(
        Lake.open(Path(lake), create=True), Path(root), Context(host=host, now_ns=time.time_ns),
        interval_s=float(interval), duration_s=None if duration == "-" else float(duration),
        json=False, flush_s=float(flush), report_s=0.0,
    )
"""
#: Arguments: lake, path, interval, duration or -, flush.
FOLLOW = """
import sys, time
from pathlib import Path
from xtune.cli._live_follow import follow
from xtune.cli._live_stop import Status
from xtune.collectors import Context
from xtune.ingest import Follower
from xtune.lake import Lake
lake, path, interval, duration, flush = sys.argv[1:6]
def work():
    follower = Follower(
        Lake.open(Path(lake), create=True), [path], context=Context(now_ns=time.time_ns),
        flush_s=float(flush), say=lambda text: print(text, file=sys.stderr),
    )
    if follow(follower, interval_s=float(interval), status=Status(0.0),
              duration_s=None if duration == "-" else float(duration)):
        raise typer.Exit(130)
"""
# What a user gets: one line for what is wrong, and the exit status.
TAIL = """
import typer
import xtune.cli
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(work)
xtune.cli.app = lambda: app(args=[])
sys.exit(xtune.cli.main())
"""


class Running:
    """A collector under way."""

    def __init__(self, script: str, *arguments: object, before: str = "") -> None:
        words = [sys.executable, "-c", before + script + TAIL, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        self.lines: list[str] = []

    def wait_for(self, words: str, times: int = 1) -> str:
        """Read what it says until a line with ``words`` came ``times`` times; that line.

        Empty where it ended before.
        """
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if words in line:
                times -= 1
                if times == 0:
                    return line
        return ""

    def end(self, signal: int | None = None) -> tuple[int, str, str]:
        """Send a signal, wait for the end; status, stdout and all of stderr."""
        if signal is not None:
            self.process.send_signal(signal)
        try:
            out, err = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()  # or a later test gets its warnings
            raise
        self.lines += err.splitlines()
        return self.process.returncode, out, "\n".join(self.lines)


def number(pattern: str, text: str | Sequence[str]) -> int:
    """The last number that a pattern finds."""
    return int(re.findall(pattern, text if isinstance(text, str) else "\n".join(text))[-1])

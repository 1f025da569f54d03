"""Runs ``collect`` in forked children that kill themselves at a chosen step on the disk.

Usage: ``python -m tests.lake.crash FOLDER``: for k = 1, 2, ... a child works on the lake
``FOLDER/<k>`` and is killed by signal 9 just before its k-th open, rename, mkdir, removal or lock
below that folder, until one child gets through. Reading is left to the caller: this process must
fork before anything of Arrow starts a thread.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.lake.toy import COLLECTORS, context
from xtune.ingest import collect
from xtune.lake import Lake

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"}


def work(root: Path, inputs: Path) -> None:
    """Two runs of collect: one over small files, one after the first of them has grown."""
    lake = Lake.open(root, create=True)
    collect(lake, [str(inputs / "before")], context=context(), collectors=COLLECTORS)
    grown = root.parent / "inputs" / "before" / "a.txt"
    grown.write_bytes((inputs / "a-grown.txt").read_bytes())
    collect(lake, [str(inputs / "before")], context=context(), collectors=COLLECTORS)


def dies_at(step: int, root: Path, inputs: Path) -> bool:
    """Whether a child was killed before it was done."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event not in EVENTS:
                return
            if event == "fcntl.flock" or str(root) in str(arguments[0]):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work(root, inputs)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"step {step}: the child failed instead of dying")
    return os.WIFSIGNALED(status)


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    first = (folder / "inputs" / "before" / "a.txt").read_bytes()
    step = 1
    while dies_at(step, folder / str(step), folder / "inputs"):
        (folder / "inputs" / "before" / "a.txt").write_bytes(first)
        step += 1
    print(step)


if __name__ == "__main__":
    main()

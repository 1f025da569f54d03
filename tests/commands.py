"""The command line as a user calls it, without the second that a process of its own takes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from xtune.cli import main


def xtune(*words: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """Run the command in this process: its exit status and what it wrote.

    What only a process shows (signals, pipes, terminals, what starting imports) is not seen here.

    Args:
        *words: The command line after the program's name.
        cwd: The folder it runs in.
        **environment: ``XTUNE_*`` variables; there are no others of that name.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XTUNE_")}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd),
        patch.dict(os.environ, {**clean, **environment}, clear=True),
        patch.object(sys, "argv", ["xtune", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main()
    written = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return CompletedProcess(list(words), status, *written)

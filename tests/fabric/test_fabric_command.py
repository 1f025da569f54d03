"""``xtune collect --fabric`` where there is nothing to read: one line, and the right status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def collect(folder: Path, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("XTUNE_")}
    return subprocess.run(
        [sys.executable, "-m", "xtune", "collect", "--fabric", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**clean, "PATH": str(path)},
        timeout=60,
        check=False,
    )


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_without_the_tools_it_says_what_to_install(tmp_path: Path) -> None:
    done = collect(tmp_path, tmp_path, "--duration", "1s", "--json")
    assert done.returncode == 1 and done.stdout == ""
    assert "ibnetdiscover: not installed (install infiniband-diags)" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_fabric_it_says_what_the_tool_says(tmp_path: Path) -> None:
    words = "ibwarn: [4242] mad_rpc_open_port: can't open UMAD port ((null):0)"
    tool(tmp_path, "ibnetdiscover", f'echo "{words}" >&2; exit 1')
    done = collect(tmp_path, tmp_path, "--duration", "1s")
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("xtune: ")]
    assert "can't open UMAD port" in line and "4242" not in line and "subnet manager" in line


@pytest.mark.parametrize("words", [("--interval", "10ms"), ("file",), ("--duration", "soon")])
def test_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = collect(tmp_path, tmp_path, *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr

"""Debian's packages of the real programs that tests run beside xtune."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

_Found = TypeVar("_Found")
_LOCK = Path(tempfile.gettempdir()) / "xtune-tests-apt.lock"


def installed(
    look: Callable[[], _Found | None], packages: Sequence[str], *, recommended: bool = True
) -> _Found:
    """What ``look`` finds; in CI after its packages were installed, else skips the test aloud.

    Processes of one test run take turns: ``apt-get`` waits for another's ``dpkg``, and fails on
    another's ``update``.
    """
    found = look()
    if found is not None:
        return found
    may = os.environ.get("CI") == "true" or os.environ.get("XTUNE_TEST_APT") == "1"
    names = ", ".join(packages)
    if not may or not shutil.which("apt-get"):
        pytest.skip(f"{names}: not here; CI=true or XTUNE_TEST_APT=1 installs")
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = look()  # another process may have installed it meanwhile
        if found is None:
            _apt("update", "-qq")
            fewer = [] if recommended else ["--no-install-recommends"]
            _apt("install", "-y", "-qq", *fewer, *packages)
            found = look()
    if found is None:
        pytest.fail(f"{names}: installed but not found")
    return found


def _apt(*words: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"

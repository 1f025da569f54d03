"""Network namespaces of this machine, by iproute2, removed with their owner.

A namespace outlives the process that made it, even one that is killed, so its name tells the
owner: process number and start time. Whoever makes namespaces next removes those whose owner is
gone.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from xtune.errors import XtuneError

T = TypeVar("T")
_FOLDER = Path("/run/netns")
_PREFIX = "xtune-"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h
_LIMIT_S = 60.0


class NamespaceError(XtuneError):
    """There is no right to make namespaces, a tool is missing, or a command failed."""


class Namespaces:
    """A set of namespaces, each called by a short name.

    Args:
        nodes: The short names.

    Raises:
        NamespaceError: They cannot be made here; none of them is left.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if missing:
            raise NamespaceError(f"{missing[0]} is not here", "install iproute2")
        remove_leftovers()
        tag = f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(2)}"
        self.names = {node: f"{tag}-{node}" for node in nodes}
        try:
            _batch(["ip"], [f"netns add {name}" for name in self.names.values()])
        except NamespaceError as error:
            self.close()
            raise NamespaceError(
                f"network namespaces cannot be made: {error.message}", "needs CAP_SYS_ADMIN"
            ) from error

    def ip(self, node: str, lines: Sequence[str]) -> None:
        """Run commands of ``ip`` in a namespace.

        Raises:
            NamespaceError: One failed; those before it were carried out.
        """
        _batch(["ip", "-n", self.names[node]], lines)

    def tc(self, node: str, lines: Sequence[str]) -> None:
        """Run commands of ``tc`` in a namespace; raises as `ip` does."""
        _batch(["tc", "-n", self.names[node]], lines)

    def command(self, node: str) -> list[str]:
        """What to put before a command so that it runs in a namespace."""
        return ["ip", "netns", "exec", self.names[node]]

    def inside(self, node: str, function: Callable[[], T]) -> T:
        """See `inside`."""
        return inside(self.names[node], function)

    def close(self) -> None:
        """Remove them, and with them all that was in them."""
        _remove([name for name in self.names.values() if (_FOLDER / name).exists()])


def inside(name: str, function: Callable[[], T]) -> T:
    """Call a function on a thread that is in a namespace; others of this process are not.

    Raises:
        OSError: There is no such namespace, or this process may not enter it.
    """

    def enter() -> T:
        with open(_FOLDER / name) as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), _NEW_NETWORK):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        return function()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


def leftovers() -> list[str]:
    """Namespaces whose owner is gone."""
    if not _FOLDER.is_dir():
        return []
    found = []
    for name in sorted(os.listdir(_FOLDER)):
        parts = name.removeprefix(_PREFIX).split("-")
        ours = name.startswith(_PREFIX) and len(parts) >= 4
        if ours and parts[0].isdecimal() and _start_time(int(parts[0])) != parts[1]:
            found.append(name)
    return found


def remove_leftovers() -> None:
    """Remove the namespaces of owners that were killed."""
    _remove(leftovers())


def _remove(names: Sequence[str]) -> None:
    for name in names:  # one by one: another process may remove the same leftovers
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def _batch(command: Sequence[str], lines: Sequence[str]) -> None:
    done = subprocess.run(
        [*command, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, check=False, timeout=_LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip() or "no reason given").splitlines()
        raise NamespaceError(f"{command[0]}: {said[0]}")

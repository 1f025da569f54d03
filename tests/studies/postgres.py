"""A real PostgreSQL server for a test, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debian import installed


def programs() -> Path | None:
    """Folder of the server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    onpath = shutil.which("initdb")
    return Path(onpath).resolve().parent if onpath else None


@contextmanager
def server() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a server, yield the URL of its database and what stops it; stop it."""
    binaries = installed(programs, ["postgresql"], recommended=False)
    with tempfile.TemporaryDirectory(prefix="xtune-pg-") as name:
        yield from _served(binaries, Path(name))


def _served(binaries: Path, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    data = folder / "data"
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        entry = pwd.getpwnam("postgres")
        user = {"user": entry.pw_uid, "group": entry.pw_gid}
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*words: str) -> None:
        done = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=120, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    call(str(binaries / "initdb"), "-D", str(data), "-U", "xtune", "-A", "trust", "-N")
    control = [str(binaries / "pg_ctl"), "-D", str(data), "-w"]
    settings = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
    )
    call(*control, "-l", str(folder / "log"), "-o", settings, "start")

    def stop() -> None:
        if (data / "postmaster.pid").is_file():
            call(*control, "-m", "immediate", "stop")

    try:
        yield f"postgresql+psycopg://xtune@127.0.0.1:{port}/postgres", stop
    finally:
        stop()

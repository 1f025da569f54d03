"""ibsim with opensm on it, and the diagnostic tools attached to one of its hosts.

Installed where the environment allows it. Everything it starts listens on an abstract socket of
its own name, so several can run at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import debian
from tests.fabric._fat_tree import FatTree, node_id

PACKAGES = ("opensm", "infiniband-diags", "ibsim-utils")
TOOLS = ("ibnetdiscover", "ibqueryerrors", "perfquery", "smpquery")
_WRAPPERS = "/usr/lib/*-linux-gnu*/umad2sim/libumad2sim.so"
_DEADLINE_S = 45.0
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def installed() -> Path:
    """The wrapper library that attaches tools; installs Debian's packages in CI, else skips."""
    return debian.installed(_wrapper, PACKAGES)


def _wrapper() -> Path | None:
    if not all(shutil.which(t, path=_SYSTEM_PATH) for t in (*TOOLS, "ibsim", "opensm")):
        return None
    return next(Path("/").glob(_WRAPPERS[1:]), None)


class Simulator:
    """A fabric that is up.

    Args:
        folder: For its files.
        tree: What it looks like.
    """

    def __init__(self, folder: Path, tree: FatTree) -> None:
        self.tree = tree
        self.folder = folder
        self._wrapper = installed()
        self._name = f"xtune-{os.getpid()}-{secrets.token_hex(4)}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._asked = 0
        net = folder / "net"
        net.write_text(tree.netfile())
        self._log = folder / "ibsim.log"
        self._console = self._start(
            [shutil.which("ibsim", path=_SYSTEM_PATH) or "ibsim", "-s", str(net)],
            {"IBSIM_SOCKNAME": self._name},
            self._log,
        )
        self._wait(lambda: "MaxMcastCap" in self._log.read_text(errors="replace"), "ibsim")
        # The manager is on another host than the tools: their answers would get mixed up.
        last = tree.leaves * tree.hosts - 1
        manager_log = folder / "opensm.log"
        self._start(
            [shutil.which("opensm", path=_SYSTEM_PATH) or "opensm", "-f", str(manager_log)],
            self._attached(tree.host(last)),
            folder / "opensm.out",
        )
        self.path = self._shims()
        self._wait(self._answers, "opensm")

    def _attached(self, host: str) -> dict[str, str]:
        return {
            "IBSIM_SOCKNAME": self._name,
            "SIM_HOST": node_id(host, True),
            "LD_PRELOAD": str(self._wrapper),
            "OSM_TMP_DIR": str(self.folder),
            "OSM_CACHE_DIR": str(self.folder),
        }

    def _answers(self) -> bool:
        """Whether every port of every node can be read."""
        nodes = self.tree.spines + self.tree.leaves * (1 + self.tree.hosts)
        said = self.tool("ibqueryerrors", "--counters")
        return f"Summary: {nodes} nodes checked" in said and "PMA query failures" not in said

    def _shims(self) -> Path:
        """A folder of commands that attach the real tools, for a PATH."""
        shims = self.folder / "bin"
        shims.mkdir()
        exports = " ".join(f"{k}={v!r}" for k, v in self._attached(self.tree.host(0)).items())
        for tool in TOOLS:
            script = shims / tool
            # The wrapper library leaves files where it runs.
            script.write_text(
                f"#!/bin/sh\necho \"{tool} $*\" >> '{self.folder}/commands'\n"
                f"cd '{self.folder}'\nexport {exports}\n"
                f'exec {shutil.which(tool, path=_SYSTEM_PATH)} "$@"\n'
            )
            script.chmod(0o755)
        return shims

    @property
    def commands(self) -> list[str]:
        """The tools that were run, with their arguments."""
        log = self.folder / "commands"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which the tools are those of this fabric."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("XTUNE_")}
        return {**clean, "PATH": f"{self.path}:{os.environ['PATH']}"}

    def tool(self, *command: str) -> str:
        """What a tool writes to its standard output; its own error stream is dropped.

        Under the simulator a tool crashes now and then: it is run again.
        """
        for _ in range(3):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=self.environment,
                timeout=30,
                check=False,
            )
            if done.returncode in (0, 1):
                break
        return done.stdout

    def set(self, node: str, port: int, values: Mapping[str, int], *, is_host: bool) -> None:
        """Set counters, e.g. ``PortCounters.PortXmitWait``."""
        for name, value in values.items():
            self.console(f'PerformanceSet "{node_id(node, is_host)}"[{port}] {name}={value}')
        shown = self._log.read_text(errors="replace")
        assert "cannot be found" not in shown and "bad port" not in shown, shown[-500:]

    def console(self, command: str) -> None:
        """Type a line at the simulator's console and wait until it was taken."""
        self._asked += 1
        stdin = self._console.stdin
        assert stdin is not None
        stdin.write(f"{command}\n".encode())
        stdin.flush()
        # It prompts after each command, and once at the start.
        self._wait(
            lambda: self._log.read_text(errors="replace").count("sim> ") > self._asked, command
        )

    def _start(
        self, command: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **environment},
            )
        self._processes.append(process)
        return process

    def _wait(self, ready: object, what: str) -> None:
        assert callable(ready)
        until = time.monotonic() + _DEADLINE_S
        while not ready():
            if time.monotonic() > until or any(p.poll() is not None for p in self._processes):
                self.stop()
                pytest.fail(f"{what} did not get ready: {self._log.read_text()[-500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End what was started here."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._processes.clear()

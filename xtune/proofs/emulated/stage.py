"""The processes of a demonstration: probes, reflectors, senders and receivers in their hosts."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from xtune.errors import XtuneError
from xtune.policies.spec import Policy, dumps
from xtune.proofs.emulated.fabric import Fabric, host_name, spine_name

PROBE_PORT, DATA_PORT = 4790, 5000
INTERVAL_S = 0.01  # between the probes of a path
TIMEOUT_FULL_QUEUES = 5.0  # a probe is lost after so many times the delay of a full queue
PACKET_BYTES = 8192
_LIMIT_S = 60.0  # for an answer of a process; it takes milliseconds on a quiet machine
_EARLY = -10  # nice value
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PROBE_MODULE = "xtune.policies.probe"
_KEY = bytes(range(32)).hex()  # nobody else is on this fabric


class StageError(XtuneError):
    """A process of the demonstration failed."""


class Process:
    """One process on a host, spoken to by lines of JSON; killed with this one.

    Args:
        command: Its words.
        what: How errors call it.
        probes: Goes before all others on this machine, where that is allowed; else before most.
    """

    def __init__(self, command: Sequence[str], what: str, *, probes: bool = False) -> None:
        self._what = what
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=_first if probes else _early, bufsize=0,
            env=os.environ | {"XTUNE_PROBE_KEY": _KEY},
        )  # fmt: skip

    def say(self, do: str, **values: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of that name; all that came before it is in ``events`` as well.

        Raises:
            StageError: The process ended, or says nothing.
        """
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            for found in self.read(end - time.monotonic()):
                if found["event"] == event:
                    return found
        raise StageError(f"{self._what}: no {event!r} within {_LIMIT_S:.0f} s")

    def read(self, wait_s: float) -> Iterator[dict[str, Any]]:
        """Events that have come, after waiting so long at most for one."""
        assert self._process.stdout is not None and self._process.stderr is not None
        while b"\n" in self._rest or select.select([self._process.stdout], [], [], wait_s)[0]:
            if b"\n" not in self._rest:
                said = os.read(self._process.stdout.fileno(), 65536)
                if not said:
                    why = self._process.stderr.read().decode(errors="replace").strip()
                    raise StageError(f"{self._what} ended: {why.splitlines()[-1] if why else ''}")
                self._rest += said
                continue
            line, _, self._rest = self._rest.partition(b"\n")
            found = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
            found.setdefault("event", "counts")
            self.events.append(found)
            wait_s = 0.0
            yield found

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it by SIGTERM and the end of its input."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Make sure that it has ended."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Stage:
    """Two flows over a fabric, with probes and, where there is a policy, with the engine.

    Flow ``i`` goes from host ``i`` of the first leaf to host ``i`` of the second; all have the
    first spine as their primary. Use it in a ``with`` block.

    Args:
        fabric: Two hosts a leaf at least.
        folder: For configurations, readings and logs.
        policy: Of the engine in each sending host; None: none.
        rate_mbps: Of each flow.
    """

    def __init__(
        self, fabric: Fabric, folder: Path, policy: Policy | None, rate_mbps: float
    ) -> None:
        self.fabric, self.folder = fabric, folder
        self.stale_s = 0.0 if policy is None else policy.routing.stale_ns / 1e9
        self._processes: list[Process] = []
        self.senders: list[Process] = []
        self.receivers: list[Process] = []
        self.agents: list[Process] = []
        try:
            for flow in range(2):
                there = self._other(flow)
                self._serve_probes(there)
                self.agents.append(self.start_agent(flow))
                self.receivers.append(self._start(
                    there, "xtune.proofs.emulated.receiver",
                    json.dumps({"local": [fabric.address(there), DATA_PORT]}),
                ))  # fmt: skip
                self.senders.append(self._start(
                    flow, "xtune.proofs.emulated.sender",
                    json.dumps(self._sender(flow, policy, rate_mbps)),
                ))  # fmt: skip
        except BaseException:
            self.close()
            raise

    def start_agent(self, flow: int) -> Process:
        """Start the probe agent of a flow's sending host."""
        config = {
            "host": host_name(flow), "readings": str(self._file(flow, "readings")),
            "rate_hz": 1 / INTERVAL_S,
            "timeout_s": TIMEOUT_FULL_QUEUES * self.fabric.shape.full_delay_s,
            "log": str(self.probe_log(flow)),
            "paths": [
                {"name": spine_name(spine), "dst": host_name(self._other(flow)), "path": spine,
                 "local": self.fabric.cable_address(flow, spine),
                 "remote": f"{self.fabric.cable_address(self._other(flow), spine)}:{PROBE_PORT}",
                 "full_delay_s": self.fabric.shape.full_delay_s}
                for spine in range(self.fabric.shape.spines)
            ],
        }  # fmt: skip
        return self._probe("agent", flow, config)

    def probe_log(self, flow: int) -> Path:
        """What the agent of a flow's sending host has logged."""
        return self._file(flow, "probes.jsonl")

    def decisions(self, flow: int) -> Path:
        """What the engine of a flow's sending host has logged."""
        return self._file(flow, "decisions.jsonl")

    def events(self, flow: int, name: str) -> list[dict[str, Any]]:
        """What the flow's sender has told under a name so far."""
        list(self.senders[flow].read(0.0))
        return [event for event in self.senders[flow].events if event["event"] == name]

    def close(self) -> None:
        """End all processes."""
        for process in self.agents:  # the others have nothing to write
            process.end()
        for process in self.senders:
            process.end()
        for process in self._processes:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _other(self, flow: int) -> int:
        return self.fabric.shape.hosts + flow

    def _file(self, flow: int, name: str) -> Path:
        return self.folder / f"{host_name(flow)}-{name}"

    def _sender(self, flow: int, policy: Policy | None, rate_mbps: float) -> dict[str, Any]:
        there = self.fabric.address(self._other(flow))
        engine = None if policy is None else {
            "policy": dumps(policy), "readings": str(self._file(flow, "readings")),
            "ends": [host_name(flow), host_name(self._other(flow))],
            "destination": f"{there}/32", "log": str(self.decisions(flow)),
            "paths": [[spine_name(spine), *self.fabric.gateway(flow, spine)]
                      for spine in range(self.fabric.shape.spines)],
        }  # fmt: skip
        return {
            "source": self.fabric.address(flow), "destination": [there, DATA_PORT],
            "rate_mbps": rate_mbps, "packet_bytes": PACKET_BYTES, "engine": engine,
        }  # fmt: skip

    def _serve_probes(self, host: int) -> None:
        listen = [{"local": f"{self.fabric.cable_address(host, spine)}:{PROBE_PORT}"}
                  for spine in range(self.fabric.shape.spines)]  # fmt: skip
        config = {"readings": str(self._file(host, "readings")), "listen": listen}
        self._probe("reflect", host, config)

    def _probe(self, what: str, host: int, config: dict[str, Any]) -> Process:
        file = self._file(host, f"{what}.json")
        file.write_text(json.dumps(config), encoding="utf-8")
        return self._start(host, _PROBE_MODULE, what, "--config", str(file))

    def _start(self, host: int, module: str, *words: str) -> Process:
        command = [*self.fabric.command(host), sys.executable, "-m", module, *words]
        # What waits for a processor measures this machine instead of the fabric.
        process = Process(
            command, f"{module} on {host_name(host)}", probes=module == _PROBE_MODULE
        )
        self._processes.append(process)
        process.wait_for("ready")
        return process


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _early() -> None:
    _die_with_parent()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _EARLY)


def _first() -> None:
    _die_with_parent()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

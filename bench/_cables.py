"""Two ranks that train in turn by several methods, joined by shaped virtual cables or not.

Where it may, each rank gets a network namespace without a name, joined by virtual cables with a
token bucket on each end: all of it goes when the processes end, however they end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

RUNS = 9
STEPS = 3  # in each run
LIMIT_S = 400.0
TIMEOUT_S = 120
GBPS = 1
READY = "ready"
WARM_STEPS = 12  # past the first decision


class Training(Protocol):
    """A model under one method."""

    def steps(self, count: int) -> None:
        """Train for so many steps."""

    def measure(self, count: int) -> None:
        """Train for so many steps, and keep what they took."""


class NoLinkError(Exception):
    """No link can be shaped here."""


def train(module: str, task: Mapping[str, Any], cables: tuple[str, ...]) -> dict[str, Any]:
    """What rank 0 of two measured.

    Args:
        module: What a rank runs; it begins with `joined`.
        task: What both are told beside rank, store, runs and steps.
        cables: Names of the devices that join them; none for this machine's own network.

    Raises:
        NoLinkError: Cables are wanted, and cannot be had.
        RuntimeError: A rank failed; what it said is on standard error.
    """
    tools = ("unshare", "nsenter", "ip", "tc")
    if cables and not all(map(shutil.which, tools)):
        raise NoLinkError(f"{', '.join(tools)} are not all here")
    command = (*(("unshare", "--net") if cables else ()), sys.executable, "-m", module)
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            if cables and not all(map(_ready, ranks)):
                raise NoLinkError("no namespace for a rank")
            for number, cable in enumerate(cables):
                _lay([rank.pid for rank in ranks], cable, f"10.253.{number}")
            common = {"store": str(Path(folder) / "store"), "runs": RUNS, "steps": STEPS}
            for number, rank in enumerate(ranks):
                assert rank.stdin is not None
                rank.stdin.write(json.dumps({"rank": number, **common, **task}) + "\n")
                rank.stdin.flush()
            said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank of the training failed")
    measured: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return measured


@contextmanager
def joined(control: str) -> Iterator[dict[str, Any]]:
    """In a rank: its task, in a process group with the other one until the end of the block.

    Args:
        control: Key of the task whose value is the device that gloo uses.
    """
    print(READY, flush=True)  # in whatever network it was started in
    task = json.loads(sys.stdin.readline())
    import torch  # the parent measures without it
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = task[control]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task['store']}",
        rank=task["rank"],
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    yield task
    dist.barrier()
    dist.destroy_process_group()


def in_turn(trainings: Iterable[Training], task: Mapping[str, Any]) -> None:
    """Warm all of them up, then measure them turn by turn.

    Args:
        trainings: What is compared.
        task: As `joined` gave it.
    """
    every = list(trainings)
    for training in every:
        training.steps(WARM_STEPS)
    for _ in range(task["runs"]):
        for training in every:
            training.measure(task["steps"])


def _ready(rank: subprocess.Popen[str]) -> bool:
    """Wait until a rank runs, in its namespace; False where it may not have one."""
    assert rank.stdout is not None
    return rank.stdout.readline().strip() == READY


def _lay(pids: list[int], name: str, network: str) -> None:
    """Join two namespaces and shape what each end sends.

    Args:
        pids: A process in each.
        name: Of the device on both ends.
        network: First three bytes of the addresses.

    Raises:
        NoLinkError: It cannot be done here.
    """
    first, second = map(str, pids)
    _call(
        "ip", "link", "add", "name", name, "netns", first,
        "type", "veth", "peer", "name", name, "netns", second,
    )  # fmt: skip
    for pid, end in ((first, 1), (second, 2)):
        inside = ("nsenter", "--target", pid, "--net")
        _call(*inside, "ip", "address", "add", f"{network}.{end}/30", "dev", name)
        _call(*inside, "ip", "link", "set", name, "up")
        _call(
            *inside, "tc", "qdisc", "add", "dev", name, "root",
            "tbf", "rate", f"{GBPS}gbit", "burst", "256kb", "latency", "50ms",
        )  # fmt: skip


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLinkError(f"{' '.join(command)}: {done.stderr.strip()}")

"""Two ranks in network namespaces, each with a rail over each spine and a control network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.actuators.namespaces import Fabric, run
from xtune.proofs.emulated.namespaces import inside

ROOT = Path(__file__).parents[2]


class Ranks:
    """Two processes of a worker, ``up1`` and ``up2`` their rails, told what to do line by line.

    Args:
        fabric: Whose leaves they are in.
        worker: Module that is run with rank, store and timeout.
        store: File by which they find each other.
        timeout_s: Of a rail.
    """

    def __init__(self, fabric: Fabric, worker: str, store: Path, timeout_s: float) -> None:
        self.fabric = fabric
        leaves = (fabric.leaf1, fabric.leaf2)
        run(leaves[0], f"link add control type veth peer name control netns {leaves[1]}")
        for number, leaf in enumerate(leaves):
            run(leaf, f"addr add 198.18.9.{number + 1}/30 dev control")
            run(leaf, "link set control up")
            for spine in (1, 2):
                own, other = (spine, spine + 2) if number == 0 else (spine + 2, spine)
                run(leaf, f"route add 198.18.{other}.0/30 via 198.18.{own}.2 dev up{spine}")
        command = [sys.executable, "-m", worker]
        self.processes = [
            inside(leaf, lambda rank=rank: subprocess.Popen(  # type: ignore[misc]
                [*command, str(rank), str(store), str(timeout_s)], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ))
            for rank, leaf in enumerate(leaves)
        ]  # fmt: skip

    def all(self, do: str, **words: object) -> list[dict[str, Any]]:
        """Tell both ranks the same; their answers."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"do": do, **words}) + "\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers

    def sent(self) -> list[int]:
        """The kernel's own counters."""
        told = json.loads(run(self.fabric.leaf1, "-j -s link"))
        by_name = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in told}
        return [by_name["up1"], by_name["up2"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        for process in self.processes:
            assert process.stdin is not None and process.stdout is not None
            if failed:  # it may wait for the other one
                process.kill()
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


def slow(fabric: Fabric, spine: int, rate: str) -> bool:
    """Shape what a spine sends to both leaves; whether that can be done here."""
    words = f"root tbf rate {rate} burst 64kb limit 512kb"
    done = [
        subprocess.run(
            ["tc", "-n", fabric.spines[spine], "qdisc", "replace", "dev", f"down{leaf}",
             *words.split()],
            check=False,
        )
        for leaf in (1, 2)
    ]  # fmt: skip
    return not any(each.returncode for each in done)

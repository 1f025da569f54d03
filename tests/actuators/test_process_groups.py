"""Stripes over process groups: on loopback, and over real interfaces of two namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore

from tests.actuators.namespaces import Fabric, inside, run
from tests.actuators.rails_worker import digest, values
from tests.compress import ranks
from xtune.policies.actuators.process_groups import Rail, StripedGroups

ROOT = Path(__file__).parents[2]
SIZE = 1_000_000  # elements, 4 MB
PLANS = [[1.0, 0.0], [1.0, 1.0], [0.1, 0.9]]


def on_loopback(
    rank: int, world: int, store: str
) -> tuple[list[str], list[list[int]], list[list[float]]]:
    """The same sum by each plan; then ranks that do not want the same."""
    digests, sent = [], []
    rails = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
    groups = StripedGroups(
        FileStore(store, world), rank, world, rails, control=Rail(interface="lo")
    )
    with groups:
        for plan in PLANS:
            groups.apply(plan)
            before = list(groups.meter.sent_bytes)
            buffer = torch.from_numpy(values(rank, 1001))
            groups.all_reduce(buffer)
            digests.append(digest(buffer.numpy()))
            sent.append([a - b for a, b in zip(groups.meter.sent_bytes, before, strict=True)])
        groups.apply([1.0, 0.0] if rank == 1 else [0.5, 0.5])
        agreed = list(groups.shares)
    return digests, sent, [agreed, groups.shares]


def test_sums_have_the_same_bits_by_every_plan(tmp_path: Path) -> None:
    inputs = [values(rank, 1001) for rank in range(3)]
    in_rank_order = inputs[0] + inputs[1] + inputs[2]
    other_order = inputs[2] + inputs[1] + inputs[0]
    assert digest(in_rank_order) != digest(other_order)
    for digests, sent, shares in ranks.run(3, on_loopback, str(tmp_path / "store")):
        assert digests == [digest(in_rank_order)] * len(PLANS)
        # Two phases; a rank sends a third of 1002 elements to each of two others in each.
        assert [sum(each) for each in sent] == [2 * 2 * 334 * 4] * len(PLANS)
        for plan, each in zip(PLANS, sent, strict=True):
            assert abs(each[0] - sum(each) * plan[0] / sum(plan)) <= 2 * 2 * 4  # one element each
        # One rank wants nothing on the second rail, so none has it; equal shares at the end.
        assert shares == [[1.0, 0.0], [0.5, 0.5]]


class Ranks:
    """Two ranks in the leaves' namespaces, each with a rail over each spine."""

    def __init__(self, fabric: Fabric, store: Path, timeout_s: float) -> None:
        self.fabric = fabric
        leaves = (fabric.leaf1, fabric.leaf2)
        run(leaves[0], f"link add control type veth peer name control netns {leaves[1]}")
        for number, leaf in enumerate(leaves):
            run(leaf, f"addr add 198.18.9.{number + 1}/30 dev control")
            run(leaf, "link set control up")
            for spine in (1, 2):
                own, other = (spine, spine + 2) if number == 0 else (spine + 2, spine)
                run(leaf, f"route add 198.18.{other}.0/30 via 198.18.{own}.2 dev up{spine}")
        command = [sys.executable, "-m", "tests.actuators.rails_worker"]
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

    def reduce(self) -> tuple[list[int], list[list[bool]]]:
        """Sum, check the bits; bytes that left leaf1 by each rail, and which rails live."""
        before = self.sent()
        wanted = digest(np.asarray(values(0, SIZE) + values(1, SIZE)))
        answers = self.all("reduce", size=SIZE)
        assert [answer["digest"] for answer in answers] == [wanted] * 2
        sent = [a - b for a, b in zip(self.sent(), before, strict=True)]
        return sent, [answer["alive"] for answer in answers]

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


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    made = Fabric()
    yield made
    made.close()


def test_bytes_follow_the_plan_and_a_slow_rail_loses_its_share(
    fabric: Fabric, tmp_path: Path
) -> None:
    payload = 2 * (SIZE // 2) * 4  # of each rank in two phases
    with Ranks(fabric, tmp_path / "store", 60.0) as pair:
        for plan in ([1.0, 1.0], [1.0, 3.0], [0.0, 1.0]):
            pair.all("apply", shares=plan)
            sent, _ = pair.reduce()
            for rail in (0, 1):
                stripe = payload * plan[rail] / sum(plan)
                # Frames and acknowledgements of TCP beside it, which veth carries in 64 kB pieces.
                assert stripe <= sent[rail] <= 1.06 * stripe + 100_000
        pair.all("apply", shares=[1.0, 1.0])
        for leaf in (1, 2):
            slow = f"qdisc add dev down{leaf} root tbf rate 40mbit burst 64kb limit 512kb"
            done = subprocess.run(["tc", "-n", fabric.spines[0], *slow.split()], check=False)
            if done.returncode:
                pytest.skip("tc with tbf: not here")
        pair.reduce()
        shares = [answer["shares"] for answer in pair.all("period")]
        assert shares[0] == shares[1] and shares[0][0] < 0.25
        sent, alive = pair.reduce()
        assert sent[0] < sent[1] / 2 and alive == [[True, True]] * 2


@pytest.mark.slow
def test_a_dead_rail_is_given_up_by_all_and_costs_no_sum(fabric: Fabric, tmp_path: Path) -> None:
    with Ranks(fabric, tmp_path / "store", 5.0) as pair:
        pair.reduce()
        run(fabric.spines[0], "link set down2 down")
        _, alive = pair.reduce()
        assert alive == [[False, True]] * 2
        sent, _ = pair.reduce()
        assert sent[0] < 100_000 < sent[1]
        run(fabric.spines[1], "link set down1 down")
        _, alive = pair.reduce()
        assert alive == [[False, False]] * 2  # the control group carries all of it
        pair.all("period")
        pair.reduce()

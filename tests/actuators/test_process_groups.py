"""Stripes over process groups: on loopback, and over real interfaces of two namespaces."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore, HashStore

from tests.actuators.namespaces import Fabric, run
from tests.actuators.rails import Ranks, slow
from tests.actuators.rails_worker import digest, values
from tests.compress import ranks
from xtune.policies.actuators.process_groups import StripedGroups
from xtune.policies.actuators.rails import Rail

WORKER = "tests.actuators.rails_worker"
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


def on_what_lives(rank: int, world: int, store: str) -> list[Any]:
    """Sums where the plan's only rail is dead, and where both are."""
    rails = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
    out: list[Any] = []
    groups = StripedGroups(
        FileStore(store, world), rank, world, rails, control=Rail(interface="lo")
    )
    with groups:
        groups.apply([1.0, 0.0])
        for alive in ([False, True], [False, False]):
            # One rank alone finds it out, as where gloo fails on one end.
            groups._agree_on_the_living([up or rank == 0 for up in alive])
            buffer = torch.from_numpy(values(rank, 1001))
            groups.all_reduce(buffer)
            out.append((digest(buffer.numpy()), groups.in_force(), groups.proposal([1.0, 0.0])))
        out.append(groups.meter.sent_bytes)
    return out


def test_what_a_dead_rail_was_to_carry_goes_over_a_living_one(tmp_path: Path) -> None:
    wanted = digest(np.asarray(values(0, 1001) + values(1, 1001)))
    for result in ranks.run(2, on_what_lives, str(tmp_path / "store")):
        # Nobody wants the second rail, but it is the one that there is.
        assert result[0] == (wanted, [0.0, 1.0], [0.0, 1.0])
        assert result[1][:2] == (wanted, [0.0, 0.0])
        assert result[2] == [0, 2 * 501 * 4]


class _Done:
    """A collective that has ended."""

    def wait(self, timeout: Any = None) -> None:
        """Nothing to wait for."""


def test_memory_of_a_transfer_that_was_given_up_is_not_used_again() -> None:
    """Gloo may go on receiving into it after its timeout."""
    rails = [Rail(address="127.0.0.2"), Rail(address="127.0.0.3")]
    given_up: list[torch.Tensor] = []

    def collective(group: Any, into: torch.Tensor, part: torch.Tensor) -> _Done:
        if group is groups._groups[0]:
            given_up.append(into)
            raise RuntimeError("timed out")
        into.copy_(part)
        for late in given_up:
            late.fill_(255)
        return _Done()

    message = torch.arange(100, dtype=torch.uint8).view(1, 100)
    out = torch.zeros_like(message)
    with StripedGroups(HashStore(), 0, 1, rails, control=Rail(interface="lo")) as groups:
        for _ in range(2):
            groups._carry(out, lambda a, b: message[:, a:b], collective)
            assert torch.equal(out, message)
            out.zero_()
    assert len(given_up) == 1


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, -1.0, math.nan, math.inf, 1e10])
def test_times_that_cannot_be_are_refused(wait_s: float) -> None:
    for name in ("timeout_s", "control_timeout_s"):
        times: dict[str, Any] = {name: wait_s}
        with pytest.raises(ValueError, match="a timeout of"):
            StripedGroups(HashStore(), 0, 1, [Rail(interface="lo")], control=Rail(), **times)


def reduce(pair: Ranks, size: int = SIZE) -> tuple[list[int], list[list[bool]]]:
    """Sum, check the bits; bytes that left leaf1 by each rail, and which rails live."""
    before = pair.sent()
    wanted = digest(np.asarray(values(0, size) + values(1, size)))
    answers = pair.all("reduce", size=size)
    assert [answer["digest"] for answer in answers] == [wanted] * 2
    sent = [a - b for a, b in zip(pair.sent(), before, strict=True)]
    return sent, [answer["alive"] for answer in answers]


def test_bytes_follow_the_plan_and_a_slow_rail_loses_its_share(
    fabric: Fabric, tmp_path: Path
) -> None:
    payload = 2 * (SIZE // 2) * 4  # of each rank in two phases
    with Ranks(fabric, WORKER, tmp_path / "store", 60.0) as pair:
        for plan in ([1.0, 1.0], [1.0, 3.0], [0.0, 1.0]):
            pair.all("apply", shares=plan)
            sent, _ = reduce(pair)
            for rail in (0, 1):
                stripe = payload * plan[rail] / sum(plan)
                # Frames and acknowledgements of TCP beside it, which veth carries in 64 kB pieces.
                assert stripe <= sent[rail] <= 1.06 * stripe + 100_000
        pair.all("apply", shares=[1.0, 1.0])
        if not slow(fabric, 0, "40mbit"):
            pytest.skip("tc with tbf: not here")
        reduce(pair)
        shares = [answer["shares"] for answer in pair.all("period")]
        assert shares[0] == shares[1] and shares[0][0] < 0.25
        sent, alive = reduce(pair)
        assert sent[0] < sent[1] / 2 and alive == [[True, True]] * 2


@pytest.mark.slow
@pytest.mark.alone
def test_a_dead_rail_is_given_up_by_all_and_costs_no_sum(fabric: Fabric, tmp_path: Path) -> None:
    with Ranks(fabric, WORKER, tmp_path / "store", 5.0) as pair:
        reduce(pair)
        run(fabric.spines[0], "link set down2 down")
        _, alive = reduce(pair)
        assert alive == [[False, True]] * 2
        sent, _ = reduce(pair)
        assert sent[0] < 100_000 < sent[1]
        run(fabric.spines[1], "link set down1 down")
        _, alive = reduce(pair)
        assert alive == [[False, False]] * 2  # the control group carries all of it
        pair.all("period")
        reduce(pair)


@pytest.mark.slow
@pytest.mark.alone
def test_a_rail_that_fails_for_one_rank_alone_is_given_up_by_both(
    fabric: Fabric, tmp_path: Path
) -> None:
    small = 1001  # which TCP sends without waiting for what cannot come back
    with Ranks(fabric, WORKER, tmp_path / "store", 5.0) as pair:
        reduce(pair, small)
        run(fabric.spines[0], "route add blackhole 198.18.3.1/32")  # from leaf1 to leaf2
        _, alive = reduce(pair, small)
        assert alive == [[False, True]] * 2
        reduce(pair)

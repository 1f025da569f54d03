"""Training over two real interfaces: bytes by the plan, a slow rail, dead ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actuators.namespaces import Fabric, run
from tests.actuators.rails import Ranks, slow
from tests.actuators.rails_training import LAYERS, PERIOD, WIDTH

WORKER = "tests.actuators.rails_training"
DENSE = LAYERS * WIDTH * WIDTH * 4  # bytes of a step of two ranks, from each: half in two phases
RAILS = ["up1", "up2"]
THREE = ["up1", "up1", "up2"]  # of which two end together


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    made = Fabric()
    yield made
    made.close()


def train(pair: Ranks, steps: int) -> tuple[list[int], dict[str, Any]]:
    """Bytes that left leaf1 by each rail, by the kernel's count, and what the ranks agree on."""
    before = pair.sent()
    first, other = pair.all("train", steps=steps)
    for name in ("digest", "rails_alive", "rail_shares", "plan_mode", "rung"):
        assert first.get(name) == other.get(name)
    assert first["failed_steps"] == other["failed_steps"] == 0 and other["said"] == []
    return [a - b for a, b in zip(pair.sent(), before, strict=True)], first


@pytest.mark.slow
@pytest.mark.alone
def test_bytes_follow_the_plan_and_a_slow_rail_loses_its_share_in_a_period(
    fabric: Fabric, tmp_path: Path
) -> None:
    with Ranks(fabric, WORKER, tmp_path / "store", 60.0) as pair:
        if not all(slow(fabric, spine, "200mbit") for spine in (0, 1)):
            pytest.skip("tc with tbf: not here")
        pair.all("attach", rails=RAILS, rung=0)
        first, told = train(pair, PERIOD)
        counted = told["rail_bytes"]
        for rail in (0, 1):
            stripe = PERIOD * DENSE / 2
            assert counted[rail] == pytest.approx(stripe, rel=0.01)
            # Frames and acknowledgements of TCP beside it, which veth carries in 64 kB pieces.
            assert stripe <= first[rail] <= 1.06 * stripe + 200_000
        assert min(told["rail_shares"]) > 0.3
        slow(fabric, 0, "20mbit")
        _, told = train(pair, PERIOD)
        shares = told["rail_shares"]
        assert shares[0] < 0.25 and told["said"] == []
        sent, told = train(pair, PERIOD - 1)
        assert sent[0] == pytest.approx(shares[0] * DENSE, rel=0.2, abs=50_000)
        slow(fabric, 0, "200mbit")
        train(pair, 1)  # the period that began when it was slow
        _, told = train(pair, 2 * PERIOD)
        assert told["rail_shares"][0] > 0.3


@pytest.mark.slow
@pytest.mark.alone
def test_dead_rails_end_no_training_and_change_no_bit(fabric: Fabric, tmp_path: Path) -> None:
    with Ranks(fabric, WORKER, tmp_path / "store", 5.0) as pair:
        pair.all("attach", rails=[], rung=3)
        _, plain = train(pair, 12)
        pair.all("attach", rails=THREE, rung=3)
        _, told = train(pair, 4)
        assert told["rails_alive"] == [True] * 3 and told["plan_mode"] == "quantise"
        run(fabric.spines[0], "link set down2 down")
        _, told = train(pair, 3)
        assert told["rails_alive"] == [False, False, True]
        assert told["rail_shares"] == [0.0, 0.0, 1.0]
        assert told["said"] == ["xtune: rails given up: 0, 1; 1 left"]
        sent, told = train(pair, 1)
        assert sent[0] < 10_000 < sent[1]
        run(fabric.spines[1], "link set down1 down")
        _, told = train(pair, 4)
        said = "xtune: rails given up: 2; the control network carries all"
        assert told["rails_alive"] == [False] * 3 and told["said"] == [said]
        assert told["digest"] == plain["digest"]
        assert told["wire_bytes"] == plain["wire_bytes"]
        # What is attached anew finds one rail up and one down.
        run(fabric.spines[1], "link set down1 up")
        pair.all("attach", rails=RAILS, rung=3)
        _, told = train(pair, 12)
        assert told["rails_alive"] == [False, True] and told["digest"] == plain["digest"]
        assert told["said"] == ["xtune: rails given up: 0; 1 left"]

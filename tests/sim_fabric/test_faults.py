from __future__ import annotations

import numpy as np
import pytest

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Fault, SharedBuffer, flaps, rate_changes
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import build_flows
from xtune.sim.phase import PhaseResult, run_phase

FABRIC = LeafSpine.square(16)
UPLINK = FABRIC.uplink(0, 2)
SIZE = 5_000_000  # 100 steps
ALONE = flow_ns(FABRIC, SIZE)


def one_flow(*faults: Fault, kind: str = "pfc", limit_ns: int = 10**7) -> PhaseResult:
    return run_phase(
        FABRIC, build_flows([0], [15], SIZE).with_paths([2]), faults=faults,
        pfc=Backpressure(kind=kind), limit_ns=limit_ns,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["pfc", "credit", "none"])
def test_a_link_that_is_down_holds_its_bytes(kind: str) -> None:
    result = one_flow(Fault(at_ns=20_000, port=UPLINK, until_ns=50_000), kind=kind)
    # Ten steps late for each ten it is down; credits and pauses add the way to start again.
    assert result.phase_ns == pytest.approx(ALONE + 30_000, abs=3_000)
    assert result.phase_ns >= ALONE + 30_000 - 2
    assert result.dropped_bytes == 0
    assert (result.paused_ns[0] > 0) == (kind == "pfc")


def test_a_link_that_stays_down_ends_no_phase() -> None:
    result = one_flow(Fault(at_ns=20_000, port=UPLINK), limit_ns=300_000)
    assert not result.finished
    # What the uplink passed on in steps 1..19 arrived.
    assert result.delivered_bytes.tolist() == [19 * 50_000]
    assert result.sent_bytes.sum() - result.delivered_bytes.sum() == result.in_fabric_bytes


def test_a_slow_link_slows_what_is_left() -> None:
    result = one_flow(Fault(at_ns=41_000, port=UPLINK, share=0.25))
    # Steps 1..40 at the full rate, the rest at a quarter of it.
    left = 100 - 40
    assert result.phase_ns == pytest.approx(ALONE + 3 * left * 1000, abs=1_000)


def test_flaps_take_their_time_each() -> None:
    faults = flaps(UPLINK, 10_000, down_ns=5_000, up_ns=10_000, times=4)
    assert [(f.at_ns, f.until_ns) for f in faults] == [
        (10_000, 15_000), (25_000, 30_000), (40_000, 45_000), (55_000, 60_000),
    ]  # fmt: skip
    assert one_flow(*faults).phase_ns == pytest.approx(ALONE + 4 * 5_000, abs=2)


def test_the_worst_of_overlapping_faults_counts() -> None:
    faults = [
        Fault(at_ns=1_000, port=1, share=0.5, until_ns=9_000),
        Fault(at_ns=3_000, port=1, until_ns=5_500),
        Fault(at_ns=4_000, port=0, share=0.1),
    ]
    changes = rate_changes(faults, np.array([1000, 400]), 1000)
    assert changes.tolist() == [[1, 1, 200], [3, 1, 0], [4, 0, 100], [6, 1, 200], [9, 1, 400]]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(at_ns=100, port=0, until_ns=200)],
        [Fault(at_ns=900, port=0, until_ns=1_100)],
        flaps(0, 0, down_ns=2_000, up_ns=999, times=2),
    ],
)
def test_what_no_step_would_show_is_refused(faults: list[Fault]) -> None:
    with pytest.raises(UsageError, match="less than a step of 1000 ns"):
        rate_changes(faults, np.array([1000]), 1000)
    assert len(rate_changes(faults, np.array([1000]), 100)) == 2 * len(faults)


def by_two_ways(mode: str) -> PhaseResult:
    """A flow whose first way dies for good; what it carries is lost and sent again."""
    routing = Routing(
        mode=mode, forecast="reading", unit_bytes=50_000, pairs=1, probe_interval_ns=10_000,
        decision_delay_ns=0, strikes=3, hold_ns=0, moves_per_ms=1e6,
    )  # fmt: skip
    return run_phase(
        FABRIC, build_flows([0], [15], SIZE).with_paths([2], [1]), routing=routing,
        pfc=Backpressure(kind="none"), faults=[Fault(at_ns=45_000, port=UPLINK)],
        shared_buffer=SharedBuffer(bytes_per_switch=1 << 30, recovery="selective"),
        limit_ns=1_000_000,
    )  # fmt: skip


def test_three_lost_probes_move_a_flow_to_its_other_way() -> None:
    result = by_two_ways("binary")
    # Probes at 50, 60 and 70 us are lost. From step 70 on the host sends by the other way; the
    # uplink serves in a step what was sent in the one before, so those of 45..70 are lost.
    assert result.moves.tolist() == [1]
    assert result.dropped_bytes == 26 * 50_000
    assert result.phase_ns == pytest.approx(ALONE + 26_000, abs=2)
    # What was lost is not waited for as a part of the first way's bytes.
    assert result.reorder_bytes.tolist() == [0]


def test_ecmp_stays_on_a_dead_way() -> None:
    result = by_two_ways("static")
    assert not result.finished
    assert result.delivered_bytes[0] == 44 * 50_000


def test_a_way_that_answers_again_is_taken_again() -> None:
    routing = Routing(
        mode="binary", forecast="reading", unit_bytes=50_000, pairs=1, probe_interval_ns=10_000,
        decision_delay_ns=0, strikes=3, readmit_answers=5, hold_ns=0, moves_per_ms=1e6,
    )  # fmt: skip
    result = run_phase(
        FABRIC, build_flows([0], [15], 20_000_000).with_paths([2], [1]), routing=routing,
        pfc=Backpressure(kind="none"),
        faults=[Fault(at_ns=45_000, port=UPLINK, until_ns=100_000)],
        shared_buffer=SharedBuffer(bytes_per_switch=1 << 30, recovery="selective"),
    )  # fmt: skip
    assert result.moves.tolist() == [2]
    assert result.dropped_bytes == 26 * 50_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_ns": -1, "port": 0},
        {"at_ns": 5, "port": 0, "until_ns": 5},
        {"at_ns": 0, "port": 0, "share": 1.5},
    ],
)
def test_faults_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Fault(**wrong)


def test_a_fault_of_no_port_is_refused() -> None:
    with pytest.raises(UsageError, match="no port 999"):
        one_flow(Fault(at_ns=0, port=999))

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from xtune.errors import UsageError
from xtune.policies.spec import Routing
from xtune.sim.bounds import flow_ns, in_system_md1
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import build_flows, incast, join_flows, permutation, random_pairs, shift
from xtune.sim.phase import PhaseResult, run_phase

XOFF = 100 * 4096
# Times within a step are rounded up to a 2047th of it, at each of three hops.
TICKS_NS = 3 * 1000 / 2047


def test_single_flow_takes_its_size_over_the_rate_and_its_way() -> None:
    fabric = LeafSpine.square(64)
    result = run_phase(fabric, build_flows([0], [63], 8_000_000))
    # 8 MB at 50 B/ns; four links of 500 ns; a 4096 B packet stored at each of three switches.
    by_hand = 8_000_000 / 50 + 4 * 500 + 3 * 4096 / 50
    assert result.phase_ns == pytest.approx(by_hand, abs=TICKS_NS)
    assert flow_ns(fabric, 8_000_000) == pytest.approx(by_hand)


@pytest.mark.parametrize("dt_ns", [250, 500, 1000])
@pytest.mark.parametrize("size", [1, 4096, 131_072, 3_000_001])
def test_the_step_does_not_show_in_the_time_of_a_lone_flow(dt_ns: int, size: int) -> None:
    fabric = LeafSpine.square(16)
    for dst, links in ((1, 2), (15, 4)):
        result = run_phase(fabric, build_flows([0], [dst], size), dt_ns=dt_ns)
        assert result.phase_ns == pytest.approx(flow_ns(fabric, size, links), abs=TICKS_NS)


def test_a_message_shorter_than_a_packet_is_stored_as_it_is() -> None:
    fabric = LeafSpine.square(16)
    result = run_phase(fabric, build_flows([0], [15], 64), dt_ns=500)
    # Sent once and stored at each of three switches, 64 bytes at 50 B/ns; four links.
    assert result.phase_ns == pytest.approx(4 * 64 / 50 + 4 * 500, abs=TICKS_NS)


def test_header_bytes_slow_a_flow_by_their_share() -> None:
    fabric = LeafSpine(64, 8, 8, header_bytes=64)
    result = run_phase(fabric, build_flows([0], [63], 8_000_000))
    wire = 8_000_000 * (4096 + 64) / 4096
    assert result.phase_ns == pytest.approx(wire / 50 + 2000 + 3 * 4160 / 50, rel=1e-4)


def test_two_flows_on_one_uplink_share_it() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows([0, 1], [4, 8], 4_000_000).with_paths([2, 2])
    result = run_phase(fabric, flows)
    # 8 MB leave by one uplink; the flows end together, up to the fragment that is last.
    np.testing.assert_allclose(result.completion_ns, 8_000_000 / 50, rtol=0.02)
    apart = run_phase(fabric, flows.with_paths([2, 3]))
    np.testing.assert_allclose(apart.completion_ns, flow_ns(fabric, 4_000_000), atol=TICKS_NS)


@pytest.mark.parametrize("dt_ns", [130, 250, 500, 1000])
def test_flows_of_one_host_go_round_by_packets_whatever_the_step(dt_ns: int) -> None:
    # Eight flows to eight receivers, each by a spine of its own: the sender's line is shared.
    fabric = LeafSpine.square(64)
    flows = build_flows([0] * 8, [8 * i + i for i in range(1, 8)] + [15], 1_000_000)
    result = run_phase(fabric, flows.with_paths(range(8)), dt_ns=dt_ns)
    whole = flow_ns(fabric, 8_000_000)
    turn = max(dt_ns * 50 / 8, 4096) / 50
    assert whole - 8 * turn - dt_ns <= result.completion_ns.min()
    assert result.completion_ns.max() == pytest.approx(whole, abs=dt_ns)


def test_a_slow_port_slows_its_flow_alone() -> None:
    port = LeafSpine.square(16).uplink(0, 2)
    fabric = LeafSpine(16, 4, 4, slow_ports=((port, 0.25),))
    flows = build_flows([0, 5], [4, 9], 1_000_000).with_paths([2, 2])
    result = run_phase(fabric, flows)
    assert result.completion_ns[0] == pytest.approx(1_000_000 / 12.5, rel=0.05)
    assert result.completion_ns[1] == pytest.approx(flow_ns(fabric, 1_000_000), abs=TICKS_NS)


def victim(kind: str) -> float:
    """Time of 1 MB beside an 8:1 incast whose senders, without backpressure, are long done."""
    fabric = LeafSpine.square(64)
    senders = [8, 16, 24, 32, 40, 48, 56, 57]
    flows = build_flows(
        [*senders, 9], [0] * 8 + [1], [2_500_000] * 8 + [1_000_000], start_ns=[0] * 8 + [60_000]
    ).with_paths([*range(8), 0])
    result = run_phase(fabric, flows, pfc=Backpressure(kind=kind), dt_ns=500)
    return float(result.completion_ns[-1]) - 60_000


def test_a_victim_of_an_incast_is_slowed_by_backpressure_alone() -> None:
    alone = flow_ns(LeafSpine.square(64), 1_000_000)  # 22.2 us
    assert victim("none") == pytest.approx(alone, abs=1)
    # The victim shares uplink and downlink with one sender, which PFC holds at an eighth of the
    # rate: Xoff waits at each of the two, then victim and sender take turns.
    by_hand = (2 * XOFF + 1_000_000) / (50 / 8)
    assert victim("pfc") == pytest.approx(by_hand, rel=0.05)
    assert victim("credit") == pytest.approx(by_hand, rel=0.10)


@pytest.mark.parametrize("kind", ["pfc", "credit"])
def test_backpressure_bounds_what_is_resident_behind_a_port(kind: str) -> None:
    fabric = LeafSpine.square(64)
    result = run_phase(fabric, incast(fabric, 40, 1 << 20), pfc=Backpressure(kind=kind))
    assert result.finished
    # Eight ports feed the receiver's leaf switch queue: Xoff each, and a step in flight for PFC.
    step = 50_000 if kind == "pfc" else 0
    occupied = np.nanmax(result.occupancy_p99) * fabric.buffer_bytes
    assert occupied <= 8 * (XOFF + step)
    assert (result.pauses.sum() > 0) == (kind == "pfc")
    np.testing.assert_allclose(result.phase_ns, 40 * (1 << 20) / 50, rtol=0.01)


def test_no_backpressure_lets_the_senders_finish_into_the_queue() -> None:
    fabric = LeafSpine.square(16)
    flows = incast(fabric, 8, 1 << 20)
    half = run_phase(fabric, flows, pfc=Backpressure(kind="none"), limit_ns=100_000)
    assert (half.sent_bytes == 1 << 20).all()
    assert half.in_fabric_bytes == 8 * (1 << 20) - half.delivered_bytes.sum()


def test_the_queue_of_fixed_packets_is_that_of_m_d_1() -> None:
    # Poisson arrivals, each the packet of one step from another host to one host: its delivery
    # port serves one a step. Paths are so chosen that nothing else is shared.
    fabric, dt, load, slots = LeafSpine.square(256), 1000, 0.9, 100_000
    rng = np.random.default_rng(11)
    start = np.sort(rng.integers(0, slots, rng.poisson(load * slots)))
    number = np.arange(len(start))
    flows = build_flows(
        (16 + number % 240).astype(np.int32), np.zeros(len(start), np.int32), 50_000,
        start_ns=start * dt,
    )  # fmt: skip
    result = run_phase(
        fabric, flows.with_paths((number % 16).astype(np.int32)), dt_ns=dt,
        pfc=Backpressure(kind="none"),
    )  # fmt: skip
    waits = (result.completion_ns - result.released_ns - flow_ns(fabric, 50_000)) / dt
    ahead = lindley(np.bincount(start, minlength=slots))[start]
    ahead += number - np.searchsorted(start, start)  # those of the same slot that came first
    # Those of one slot are served in some order: compare them sorted.
    by_slot = waits[np.lexsort((waits, start))]
    np.testing.assert_allclose(by_slot, ahead, atol=2e-3)


def lindley(arrivals: NDArray[np.int64]) -> NDArray[np.int64]:
    """Customers found by each slot of a queue that serves one a slot (Lindley's recursion)."""
    drift = np.concatenate([[0], np.cumsum(arrivals - 1)])
    found = drift - np.minimum.accumulate(drift)
    return np.asarray(found[:-1], dtype=np.int64)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_that_recursion_has_the_mean_of_pollaczek_and_khinchine(load: float) -> None:
    arrivals = np.random.default_rng(3).poisson(load, 10_000_000)
    found = lindley(arrivals)
    # Customers of one slot are served one after another: the k-th waits for k more.
    within = (arrivals * (arrivals - 1) / 2).sum()
    wait = ((found * arrivals).sum() + within) / arrivals.sum()
    in_system = load * (1 + wait)  # Little's law
    assert in_system == pytest.approx(in_system_md1(load), rel=0.01)


def test_a_dependent_flow_starts_after_its_predecessors_and_the_delay() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows(
        [0, 1, 2], [4, 5, 6], [1_000_000, 2_000_000, 50_000], after=[(0, 2), (1, 2)],
        release_ns=3_000,
    )  # fmt: skip
    result = run_phase(fabric, flows.with_paths([0, 1, 2]))
    due = result.completion_ns[1] + 3_000
    assert due <= result.released_ns[2] < due + 1_000
    assert result.completion_ns[2] == pytest.approx(
        result.released_ns[2] + flow_ns(fabric, 50_000), abs=TICKS_NS
    )


def test_flows_that_wait_in_a_circle_are_refused() -> None:
    fabric = LeafSpine.square(16)
    flows = build_flows([0, 1], [4, 5], 1000, after=[(0, 1), (1, 0)])
    with pytest.raises(UsageError, match="2 flows wait for each other"):
        run_phase(fabric, flows)


def test_background_slows_and_is_not_waited_for() -> None:
    fabric = LeafSpine.square(16)
    job = build_flows([0], [4], 1_000_000).with_paths([1])
    other = build_flows([1], [5], 1 << 40).with_paths([1]).in_background()
    result = run_phase(fabric, job, background=other)
    assert result.finished
    assert result.background.tolist() == [False, True]
    assert result.phase_ns == pytest.approx(2 * 1_000_000 / 50, rel=0.1)
    assert np.isnan(result.completion_ns[1])
    assert result.sent_bytes[1] - result.delivered_bytes[1] == result.in_fabric_bytes


def test_the_upper_lane_does_not_feel_the_lower_one() -> None:
    fabric = LeafSpine.square(64)
    job = shift(fabric, 1_000_000)
    job = job.with_paths(np.arange(64, dtype=np.int32) % 8)  # without conflicts of its own
    noise = random_pairs(fabric, 24, seed=5)
    one = run_phase(fabric, job, background=noise, routing=Routing(mode="static"))
    two = run_phase(fabric, job, background=noise, routing=Routing(mode="static", lanes=2))
    assert two.phase_ns == pytest.approx(flow_ns(fabric, 1_000_000), rel=0.01)
    assert one.phase_ns > 1.5 * two.phase_ns


def test_the_same_seed_gives_the_same_phase() -> None:
    fabric = LeafSpine.square(64)
    flows = permutation(fabric, 500_000)
    for mode in ("static", "binary", "spray", "power_of_two", "flowlet"):
        routing = Routing(mode=mode, unit_bytes=65_536)
        a, b, c = (run_phase(fabric, flows, routing=routing, seed=s) for s in (4, 4, 5))
        np.testing.assert_array_equal(a.completion_ns, b.completion_ns)
        np.testing.assert_array_equal(a.occupancy_p99, b.occupancy_p99)
        assert not np.array_equal(a.completion_ns, c.completion_ns)


def sizes(result: PhaseResult) -> tuple[int, int, int]:
    return (
        int(result.sent_bytes.sum()),
        int(result.delivered_bytes.sum()),
        result.in_fabric_bytes,
    )


def test_a_phase_stopped_at_its_limit_says_how_far_it_came() -> None:
    fabric = LeafSpine.square(16)
    result = run_phase(fabric, build_flows([0], [15], 8_000_000), limit_ns=50_000)
    assert not result.finished
    assert np.isnan(result.phase_ns)
    # 50 steps were sent, 47 delivered: a fragment makes one hop a step.
    assert sizes(result) == (50 * 50_000, 47 * 50_000, 3 * 50_000)
    assert result.dropped_bytes == 0


def test_joined_flows_keep_their_edges() -> None:
    first = build_flows([0, 1], [4, 5], 10, after=[(0, 1)])
    joined = join_flows(first, first)
    assert joined.after.tolist() == [[0, 1], [2, 3]]
    assert len(joined) == 4


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: build_flows([0], [0], 10), "flow 0: src and dst are the same host"),
        (lambda: build_flows([0, 1], [1, 99], 10), "flow 1: dst outside 0..15"),
        (lambda: build_flows([0], [1], 0), "flow 0: size under 1 byte"),
        (lambda: build_flows([0], [4], 9).with_paths([4]), "flow 0: no such spine"),
        (lambda: build_flows([0], [4], 9, after=[(0, 7)]), "an edge names a flow"),
        (lambda: build_flows([0], [4], 9).in_background(), "never ends"),
    ],
)
def test_flows_that_do_not_fit_are_refused(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=text):
        run_phase(LeafSpine.square(16), make())


@pytest.mark.parametrize(
    ("hosts", "spines", "gbps", "latency_ns"),
    [
        (10, 4, 400.0, 500),
        (16, 0, 400.0, 500),
        (16, 100_000, 400.0, 500),
        (16, 4, -1.0, 500),
        (16, 4, 400.0, -5),
    ],
)
def test_fabrics_that_do_not_fit_are_refused(
    hosts: int, spines: int, gbps: float, latency_ns: int
) -> None:
    with pytest.raises(UsageError):
        LeafSpine(hosts, 4, spines, gbps, latency_ns)

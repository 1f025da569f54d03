"""Laws that hold on every fabric: fat trees with missing links, rails, oversubscription."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.sim_fabric.test_conservation import (
    port_bounds_hold,
    routings,
    run_in_balance,
    traffic,
)
from xtune.policies.spec import Routing
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.bounds import (
    all_to_all_bound_ns,
    flow_ns,
    load_bound_ns,
    ring_bound_ns,
)
from xtune.sim.fabric import Backpressure, Fabric, LeafSpine
from xtune.sim.flows import (
    DRAW,
    all_to_all,
    build_flows,
    join_flows,
    permutation,
    ring,
    shift,
)
from xtune.sim.phase import run_phase
from xtune.sim.topology import FatTree, Rails, TwoTier
from xtune.sim.up_down import UpDown

MODES = ("static", "binary", "spray", "power_of_two", "flowlet")


@st.composite
def trees(draw: st.DrawFn) -> UpDown:
    """Fat trees of any oversubscription, perhaps with slow ports and missing links."""
    one = st.integers(1, 3)
    fabric: UpDown
    if draw(st.booleans()):
        fabric = FatTree(
            pods=draw(st.integers(2, 3)), leaves=draw(one), spines=draw(one), cores=draw(one),
            hosts_per_leaf=draw(one), gbps=draw(st.sampled_from([100.0, 400.0])),
            leaf_gbps=draw(st.sampled_from([None, 50.0, 800.0])),
            core_gbps=draw(st.sampled_from([None, 200.0])),
            link_latency_ns=draw(st.sampled_from([0, 500])),
            slow_ports=((draw(st.integers(0, 7)), draw(st.floats(0.1, 1.0))),),
        )  # fmt: skip
    else:
        fabric = TwoTier(
            leaves=draw(st.integers(2, 4)), spines=draw(one), hosts_per_leaf=draw(one),
            parallel=draw(one), uplink_gbps=draw(st.sampled_from([None, 100.0])),
        )  # fmt: skip
    between = range(fabric.stage_first[1], fabric.first_delivery)
    gone = draw(st.lists(st.sampled_from(between), max_size=3))
    return fabric.without({fabric.port_name(port) for port in gone})


def all_joined(fabric: UpDown) -> bool:
    every = range(fabric.leaves)
    return all(len(fabric.paths(a, b)) for a in every for b in every)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_byte_is_lost_or_made_at_any_step(data: st.DataObject) -> None:
    fabric = data.draw(trees())
    assume(all_joined(fabric))
    flows = data.draw(traffic(fabric))
    kind = data.draw(st.sampled_from(["pfc", "credit", "none"]))
    state = State(
        fabric, flows, routing=data.draw(routings()),
        dt_ns=data.draw(st.sampled_from([300, 1000])), seed=data.draw(st.integers(0, 99)),
        pfc=Backpressure(kind=kind, xoff_bytes=80_000, xon_bytes=60_000), limit_ns=10**9,
    )  # fmt: skip
    run_in_balance(state)
    assert state.cfg[k.LEFT] == 0
    np.testing.assert_array_equal(state.flow_i[:, k.DELIVERED], flows.size)
    assert state.paused.sum() == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bound_is_beaten(data: st.DataObject) -> None:
    fabric = data.draw(trees())
    assume(all_joined(fabric))
    flows = data.draw(traffic(fabric))
    dt = data.draw(st.sampled_from([500, 1000]))
    given_paths = (flows.spine != DRAW).any()
    routing = Routing(mode="static") if given_paths else data.draw(routings())
    result = run_phase(fabric, flows, routing=routing, dt_ns=dt, seed=1)
    assert result.phase_ns >= load_bound_ns(fabric, flows) - dt * k.TICK


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_port_of_three_tiers_beats_its_line(data: st.DataObject) -> None:
    # Few receivers below one leaf: flows of two, four and six links meet on the way down.
    one = st.integers(1, 2)
    fabric = FatTree(
        pods=2, leaves=2, spines=data.draw(one), cores=data.draw(one), hosts_per_leaf=3,
        gbps=data.draw(st.sampled_from([100.0, 400.0])),
        link_latency_ns=data.draw(st.sampled_from([0, 500])),
    )  # fmt: skip
    n = data.draw(st.integers(2, 12))
    ends = st.tuples(st.integers(0, 11), st.integers(0, 2)).filter(lambda e: e[0] != e[1])
    src, dst = zip(*data.draw(st.lists(ends, min_size=n, max_size=n)), strict=True)
    size = data.draw(st.lists(st.integers(1, 400_000), min_size=n, max_size=n))
    start = data.draw(st.lists(st.integers(0, 10_000), min_size=n, max_size=n))
    flows = build_flows(src, dst, size, start_ns=start).with_paths([0] * n)
    dt = data.draw(st.sampled_from([300, 1000, 3000]))
    port_bounds_hold(fabric, flows, run_phase(fabric, flows, dt_ns=dt))


def test_flows_of_four_and_six_links_share_one_line_on_the_way_down() -> None:
    fabric = FatTree(pods=2, leaves=2, spines=1, cores=1, hosts_per_leaf=4, link_latency_ns=0)
    flows = build_flows([4, 5, 8, 9], [0, 1, 2, 3], 1_000_000)
    packet_ns = 4096 / 50
    # The port is in use from the first packet of four links on; three of them store it.
    assert run_phase(fabric, flows).phase_ns == pytest.approx(80_000 + 3 * packet_ns, abs=1)


def test_bounds_of_collectives_are_met_within_3_percent_where_nothing_collides() -> None:
    """A non-blocking fat tree of 54 hosts; each host of a leaf takes a spine of its own."""
    fabric = FatTree.of_switches(6)
    hosts = np.arange(fabric.hosts)
    place, leaf = hosts % 3, hosts // 3
    size = 8 << 20
    # Ring in order: the last host of a leaf alone sends to the next leaf.
    flows = ring(fabric, size)
    result = run_phase(fabric, flows)
    bound = ring_bound_ns(fabric, size, fabric.hosts)
    assert bound <= result.phase_ns <= 1.03 * bound
    # To the same place of the next leaf but one pod: spine by place, core by leaf.
    path = (place * 3 + leaf % 3).astype(np.int32)
    one_pod_on = shift(fabric, size, by=9).with_paths(path)
    bound = load_bound_ns(fabric, one_pod_on)
    assert bound == size / 50
    assert bound <= run_phase(fabric, one_pod_on).phase_ns <= 1.03 * bound
    # All to all at once, spread over the paths packet by packet.
    bound = all_to_all_bound_ns(fabric, 54, 256 << 10)
    exchange = all_to_all(fabric, 54, 256 << 10, chains=53)
    spread = run_phase(fabric, exchange, routing=Routing(mode="spray"), dt_ns=500)
    assert bound <= spread.phase_ns <= 1.03 * bound


@pytest.mark.parametrize("cores", [1, 2])
def test_an_oversubscribed_tier_is_as_slow_as_its_cut(cores: int) -> None:
    fabric = FatTree(pods=4, leaves=2, spines=2, cores=cores, hosts_per_leaf=2)
    size = 2_000_000
    flows = shift(fabric, size, by=4)  # all four hosts of a pod send to the next
    bound = load_bound_ns(fabric, flows)
    assert bound == 4 * size / (2 * cores * 50)
    spread = run_phase(fabric, flows, routing=Routing(mode="spray"))
    # Packets drawn at random leave the four links of a tier uneven by some percent.
    assert bound <= spread.phase_ns <= 1.2 * bound + fabric.latency_ns(6)
    slow = FatTree(pods=4, leaves=2, spines=2, cores=cores, hosts_per_leaf=2, core_gbps=100.0)
    assert load_bound_ns(slow, flows) == 4 * bound
    slower = TwoTier(leaves=2, spines=1, hosts_per_leaf=4, parallel=2, uplink_gbps=100.0)
    assert load_bound_ns(slower, shift(slower, size)) == 4 * size / (2 * 12.5)


def test_parallel_links_share_the_load_and_one_alone_does_not() -> None:
    fabric = TwoTier(leaves=2, spines=1, hosts_per_leaf=2, parallel=2)
    flows = build_flows([0, 1], [2, 3], 2_000_000)
    apart = run_phase(fabric, flows.with_paths([0, 3]))
    # Up by different links, down by the same one: the path number is (up, down).
    down = run_phase(fabric, flows.with_paths([0, 2]))
    assert len(fabric.paths(0, 1)) == 4
    assert apart.phase_ns == pytest.approx(flow_ns(fabric, 2_000_000), abs=5)
    assert down.phase_ns == pytest.approx(4_000_000 / 50 + fabric.latency_ns(4), abs=1_005)
    lost = fabric.without(["leaf 0 -> spine 0 #2"])
    assert len(lost.paths(0, 1)) == 2
    assert len(lost.paths(1, 0)) == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_link_is_never_used(mode: str) -> None:
    whole = FatTree(pods=2, leaves=2, spines=2, cores=2, hosts_per_leaf=4)
    gone = ("spine 0 -> core 0", "core 0 -> spine 0")
    fabric = whole.without(gone)
    assert fabric.ports == whole.ports - 2
    assert not {fabric.port_name(p) for p in range(fabric.ports)} & set(gone)
    # Pod 0 has no way to core 0 left, so pod 1's link from it has no use either.
    unused = {fabric.port_name(p) for p in fabric.unused_ports()}
    assert unused == {"spine 2 -> core 0", "core 0 -> spine 2"}
    flows = permutation(fabric, 300_000)
    routing = Routing(
        mode=mode, unit_bytes=65_536, enter_occupancy=0.05, exit_occupancy=0.02,
        cold_occupancy=0.05,
    )  # fmt: skip
    state = State(
        fabric, flows, routing=routing, dt_ns=1000, seed=1, pfc=Backpressure(), limit_ns=10**9
    )
    used = np.zeros(fabric.ports, dtype=bool)
    while state.cfg[k.LEFT]:
        state.cfg[k.LIMIT_STEP] = state.cfg[k.STEP] + 1
        state.run()
        used |= state.queued.reshape(-1, fabric.ports).sum(axis=0) > 0
    between = range(fabric.stage_first[1], fabric.first_delivery)
    assert {fabric.port_name(p) for p in between if not used[p]} >= unused
    assert used[fabric.port("spine 0 -> core 1")]


@pytest.mark.parametrize("mode", ["binary", "power_of_two", "flowlet", "spray"])
def test_every_choice_of_paths_gains_on_a_hash_in_three_tiers(mode: str) -> None:
    fabric = FatTree.of_switches(6)
    flows = permutation(fabric, 4_000_000)
    routing = Routing(mode=mode, unit_bytes=262_144, flowlet_gap_ns=0)
    static, chosen = (
        np.mean([run_phase(fabric, flows, routing=how, seed=s).phase_ns for s in range(3)])
        for how in (Routing(mode="static"), routing)
    )
    assert load_bound_ns(fabric, flows) < chosen < 0.8 * static


@pytest.mark.parametrize("mode", ["binary", "flowlet"])
@pytest.mark.parametrize("full", [False, True])
def test_a_choice_reads_the_port_beyond_the_core(mode: str, full: bool) -> None:
    fabric = FatTree(pods=4, leaves=2, spines=1, cores=2, hosts_per_leaf=2)
    # Two others from two pods meet at core 0 on their way to one leaf of pod 3, and there alone.
    others = build_flows([4, 8], [12, 13], [4_000_000 if full else 1] * 2).with_paths([0, 0])
    own = build_flows([0], [14], 1_000_000, start_ns=30_000).with_paths([0], [1])
    state = State(
        fabric, join_flows(own, others.in_background()), dt_ns=1000, seed=0, limit_ns=10**9,
        routing=Routing(mode=mode, flowlet_gap_ns=0, unit_bytes=65_536, pairs=1),
        pfc=Backpressure(kind="none"),
    )  # fmt: skip
    state.run()
    assert state.flow_u[0, k.PATH] == int(full)


@pytest.mark.parametrize("seed", range(3))
def test_switches_of_both_tiers_give_each_flow_a_port_of_its_own(seed: int) -> None:
    # To the same place in the next pod: flows apart on the way up are apart on the way down.
    fabric = FatTree.of_switches(6)
    flows = shift(fabric, 2_000_000, by=fabric.hosts_per_pod)
    routing = Routing(mode="switch_adaptive", switch_load="flows", flowlet_gap_ns=10**9)
    result = run_phase(fabric, flows, routing=routing, seed=seed)
    np.testing.assert_allclose(result.completion_ns, flow_ns(fabric, 2_000_000, 6), rtol=1e-3)
    hashed = run_phase(fabric, flows, seed=seed)
    assert hashed.phase_ns > 1.8 * result.phase_ns


@pytest.mark.parametrize(("kind", "off"), [("pfc", 0.02), ("credit", 0.06)])
def test_pauses_spread_through_three_tiers_to_the_victim_and_no_further(
    kind: str, off: float
) -> None:
    fabric = FatTree(pods=5, leaves=1, spines=1, cores=1, hosts_per_leaf=2)
    # Four pods send to host 0; beside one of them a flow to another pod; one the other way.
    flows = build_flows(
        [2, 4, 6, 8, 3, 1], [0] * 4 + [5, 7], [2_500_000] * 4 + [1_000_000] * 2,
        start_ns=[0] * 4 + [60_000] * 2,
    )  # fmt: skip
    free, held = (
        run_phase(fabric, flows, pfc=Backpressure(kind=how), dt_ns=500) for how in ("none", kind)
    )
    alone = flow_ns(fabric, 1_000_000, 6)
    assert free.completion_ns[4:] - 60_000 == pytest.approx([alone, alone], abs=5)
    # Ahead of the victim lies Xoff at the leaf and at the spine, which drain at a quarter of the
    # rate. It puts Xoff of its own behind them at once, and takes turns for the rest.
    xoff = Backpressure().xoff_bytes
    by_hand = (2 * xoff + 1_000_000 - xoff) / (50 / 4) + xoff / 50 + fabric.latency_ns(6)
    victim, bystander = held.completion_ns[4:] - 60_000
    assert victim == pytest.approx(by_hand, rel=off)
    assert bystander == pytest.approx(alone, abs=5)
    paused = {fabric.port_name(int(p)) for p in np.flatnonzero(held.pauses)}
    if kind == "pfc":
        assert {"leaf 1 -> spine 1", "spine 1 -> core 0", "host 3 -> leaf 1"} <= paused
        assert not {f"spine 0 -> {a}" for a in ("core 0", "leaf 0")} & paused
        assert not {p for p in paused if p.startswith(("core", "host 1", "leaf 0"))}


@pytest.mark.parametrize(
    "fabric",
    [
        LeafSpine(32, 8, 2),
        TwoTier(leaves=8, spines=2, hosts_per_leaf=4),
        FatTree(pods=2, leaves=4, spines=2, cores=1, hosts_per_leaf=4),
    ],
)
def test_rail_traffic_stays_below_its_leaf(fabric: Fabric) -> None:
    rails = Rails.by_leaf(fabric, 4)
    assert rails.number.shape == (8, 4)
    # Nodes 0..3 are one group; rail r of all of them hangs on leaf r.
    for node in range(8):
        for rail in range(4):
            host = rails.host(node, rail)
            assert fabric.leaf_of(host) == node // 4 * 4 + rail
            assert rails.of_host(host) == (node, rail)
    assert sorted(rails.number.ravel()) == list(range(32))
    members = rails.number[:4]
    pairs = [(members[a, r], members[b, r]) for r in range(4) for a in range(4) for b in range(4)]
    src, dst = np.array([p for p in pairs if p[0] != p[1]], dtype=np.int32).T
    flows = build_flows(src, dst, 1_000_000)
    result = run_phase(fabric, flows)
    assert (result.occupancy_p99 < 1 / 64).all()
    assert (fabric.routes(src, dst).links == 2).all()
    assert result.phase_ns == pytest.approx(3 * 1_000_000 / 50 + fabric.latency_ns(2), rel=0.02)

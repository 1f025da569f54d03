from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim_fabric.test_conservation import fabrics, routings, traffic
from xtune.sim.bounds import flow_ns
from xtune.sim.congestion import Dcqcn, Fault, SharedBuffer
from xtune.sim.fabric import Backpressure, Fabric, LeafSpine
from xtune.sim.flows import build_flows, permutation
from xtune.sim.phase import PhaseResult, run_phase
from xtune.sim.topology import FatTree, TwoTier
from xtune.sim.up_down import UpDown


def small() -> FatTree:
    return FatTree(pods=3, leaves=2, spines=2, cores=2, hosts_per_leaf=2)


def as_links(fabric: LeafSpine) -> TwoTier:
    """The same fabric, written as links."""
    return TwoTier(
        leaves=fabric.leaves, spines=fabric.spines, hosts_per_leaf=fabric.hosts_per_leaf,
        gbps=fabric.gbps, uplink_gbps=fabric.uplink_gbps, link_latency_ns=fabric.link_latency_ns,
        header_bytes=fabric.header_bytes, buffer_bytes=fabric.buffer_bytes,
        slow_ports=fabric.slow_ports,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_leaf_spine_written_as_links_is_the_same_to_the_last_bit(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    flows = data.draw(traffic(fabric))
    routing = data.draw(routings())
    kind = data.draw(st.sampled_from(["pfc", "credit", "none"]))
    pfc = Backpressure(kind=kind, xoff_bytes=80_000, xon_bytes=60_000)
    dt, seed = data.draw(st.sampled_from([300, 1000])), data.draw(st.integers(0, 99))
    one, other = (
        run_phase(f, flows, routing=routing, dt_ns=dt, seed=seed, pfc=pfc)
        for f in (fabric, as_links(fabric))
    )
    for field in fields(PhaseResult):
        np.testing.assert_array_equal(
            getattr(one, field.name), getattr(other, field.name), err_msg=field.name
        )


def test_ports_of_both_have_the_same_names_and_switches() -> None:
    fabric = LeafSpine(6, 3, 2)
    twin = as_links(fabric)
    for port in range(fabric.ports):
        assert twin.port_name(port) == fabric.port_name(port)
        assert twin.port(fabric.port_name(port)) == port
    np.testing.assert_array_equal(twin.port_ends(), fabric.port_ends())
    np.testing.assert_array_equal(twin.port_gbps(), fabric.port_gbps())
    assert fabric.port_name(fabric.uplink(1, 0)) == "leaf 1 -> spine 0"
    assert fabric.port_name(fabric.downlink(1, 2)) == "spine 1 -> leaf 2"
    assert fabric.port_switch()[fabric.downlink(1, 2)] == fabric.leaves + 1


@pytest.mark.parametrize(("dst", "switches"), [(1, 1), (2, 3), (4, 5)])
def test_a_lone_flow_takes_the_time_of_its_links(dst: int, switches: int) -> None:
    """Below one leaf, in one pod, between pods."""
    fabric = small()
    result = run_phase(fabric, build_flows([0], [dst], 3_000_000))
    # 50 B/ns; 500 ns a link; a packet of 4096 B is stored at each switch.
    by_hand = 3_000_000 / 50 + (switches + 1) * 500 + switches * 4096 / 50
    assert result.phase_ns == pytest.approx(by_hand, abs=5 * 1000 / 2047)
    assert flow_ns(fabric, 3_000_000, switches + 1) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("fabric", "dst", "rates"),
    [
        (LeafSpine(4, 2, 1, uplink_gbps=100.0), 2, [400, 100, 100, 400]),
        (LeafSpine(4, 2, 1, uplink_gbps=800.0), 2, [400, 800, 800, 400]),
        (LeafSpine(4, 2, 1, uplink_gbps=100.0), 1, [400, 400]),
        (
            FatTree(
                pods=2, leaves=2, spines=1, cores=1, hosts_per_leaf=1, leaf_gbps=200.0,
                core_gbps=100.0,
            ), 2, [400, 200, 100, 100, 200, 400],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [4096, 1_000_000])
def test_a_packet_is_stored_at_the_rate_of_each_link(
    fabric: Fabric, dst: int, rates: list[int], size: int
) -> None:
    result = run_phase(fabric, build_flows([0], [dst], size), dt_ns=500)
    packets = [4096 * 8 / rate for rate in rates]
    by_hand = size * 8 / min(rates) + len(rates) * 500 + sum(packets) - max(packets)
    assert result.phase_ns == pytest.approx(by_hand, abs=len(rates) * 500 / 2047, rel=1e-4)


def names(fabric: UpDown, src: int, dst: int) -> list[list[str]]:
    count = len(fabric.paths(fabric.leaf_of(src), fabric.leaf_of(dst)))
    return [[fabric.port_name(p) for p in fabric.path(src, dst, n)] for n in range(count)]


def test_paths_are_those_of_shortest_path_search() -> None:
    fabric = small()
    assert names(fabric, 0, 2) == [
        ["host 0 -> leaf 0", f"leaf 0 -> spine {s}", f"spine {s} -> leaf 1", "leaf 1 -> host 2"]
        for s in (0, 1)
    ]
    between = [
        ["host 0 -> leaf 0", f"leaf 0 -> spine {s}", f"spine {s} -> core {c}",
         f"core {c} -> spine {s + 4}", f"spine {s + 4} -> leaf 5", "leaf 5 -> host 11"]
        for s, c in ((0, 0), (0, 1), (1, 2), (1, 3))
    ]  # fmt: skip
    assert names(fabric, 0, 11) == between
    assert names(fabric, 0, 1) == [["host 0 -> leaf 0", "leaf 0 -> host 1"]]


def test_a_fat_tree_of_k_port_switches_has_its_known_size() -> None:
    # k^3/4 hosts, (k/2)^2 paths between pods (Al-Fares et al. 2008).
    fabric = FatTree.of_switches(6)
    assert fabric.hosts == 6**3 // 4
    assert len(fabric.switch_names) == 6 * 6 + 3 * 3
    assert len(fabric.paths(0, fabric.leaves - 1)) == 9
    assert fabric.ports == 6 * fabric.hosts
    assert fabric.unused_ports() == []


def test_two_pods_that_share_a_core_link_get_half_each() -> None:
    fabric = FatTree(pods=3, leaves=1, spines=1, cores=1, hosts_per_leaf=1)
    result = run_phase(fabric, build_flows([0, 1], [2, 2], 4_000_000))
    apart = FatTree(pods=3, leaves=2, spines=1, cores=1, hosts_per_leaf=1)
    # Below pod 2 the receivers have room; the link from the core to it has not.
    shared = run_phase(apart, build_flows([0, 2], [4, 5], 4_000_000))
    by_hand = 8_000_000 / 50 + 6 * 500 + 5 * 4096 / 50
    for found in (result, shared):
        assert found.phase_ns == pytest.approx(by_hand, abs=5)
        np.testing.assert_allclose(found.completion_ns, by_hand, atol=1_005)  # a step apart
    port = apart.port("core 0 -> spine 2")
    assert shared.occupancy_p99[port - apart.hosts] > 0.5
    assert apart.port_name(int(np.nanargmax(shared.occupancy_p99)) + apart.hosts) == (
        "core 0 -> spine 2"
    )


@pytest.mark.parametrize("kind", ["pfc", "none"])
def test_buffers_marks_and_faults_are_the_same_on_both(kind: str) -> None:
    fabric = LeafSpine.square(16)
    flows = permutation(fabric, 1_000_000)
    room = 1_000_000 if kind == "none" else 8_000_000
    one, other = (
        run_phase(
            each, flows, pfc=Backpressure(kind=kind), rate_control=Dcqcn(),
            shared_buffer=SharedBuffer(bytes_per_switch=room),
            faults=[Fault(at_ns=20_000, port=fabric.uplink(0, 0), share=0.0, until_ns=60_000)],
        )
        for each in (fabric, as_links(fabric))
    )  # fmt: skip
    for field in fields(PhaseResult):
        np.testing.assert_array_equal(
            getattr(one, field.name), getattr(other, field.name), err_msg=field.name
        )
    assert (one.dropped_bytes > 0) == (kind == "none")
    assert one.marked_bytes.sum() > 0

"""Fabrics from rows of ``topology_links``: made by hand, of the sample cluster, and real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.collectors_ib.helpers import run
from tests.samples import samples
from xtune.errors import UsageError
from xtune.policies.paths import PathFinder
from xtune.policies.topology import fabric_of
from xtune.sim.bounds import flow_ns, load_bound_ns
from xtune.sim.flows import build_flows, permutation
from xtune.sim.phase import run_phase
from xtune.sim.topology import Rails
from xtune.sim.topology_links import from_links
from xtune.sim.up_down import UpDown

Rows = list[dict[str, Any]]
CLUSTER = Path("data_samples/cluster/fabric/topology.ibnetdiscover")


def cable(a: str, a_port: int, b: str, b_port: int, tier: int | None, **more: Any) -> Rows:
    """Both directions of a cable. A name with "=" is GUID=description."""
    ends = [(*a.partition("=")[::2], a_port), (*b.partition("=")[::2], b_port)]
    return [
        {"src_guid": sg, "src_name": sn or None, "src_port": sp, "dst_guid": dg,
         "dst_name": dn or None, "dst_port": dp, "rate_gbps": 400.0, "tier": tier, "ts": 1, **more}
        for (sg, sn, sp), (dg, dn, dp) in (ends, ends[::-1])
    ]  # fmt: skip


def two_leaves() -> Rows:
    """Hosts 0xa, 0xb on leaf 0xe; 0xc, 0xd on leaf 0xf; two spines."""
    rows = [
        *cable("0xa=node1 mlx5_0", 1, "0xe=leaf1", 1, 0),
        *cable("0xb=node2 mlx5_0", 1, "0xe=leaf1", 2, 0),
        *cable("0xc=node3 mlx5_0", 1, "0xf=leaf2", 1, 0),
        *cable("0xd=node10 mlx5_0", 1, "0xf=leaf2", 2, 0),
    ]
    for spine, guid in ((1, "0x1"), (2, "0x2")):
        rows += cable("0xe=leaf1", 2 + spine, guid, 1, 1)
        rows += cable("0xf=leaf2", 2 + spine, guid, 2, 1)
    return rows


def path_names(fabric: UpDown, src: int, dst: int) -> list[list[str]]:
    count = len(fabric.paths(fabric.leaf_of(src), fabric.leaf_of(dst)))
    return [[fabric.port_name(p) for p in fabric.path(src, dst, n)] for n in range(count)]


def test_rows_of_a_lake_make_the_fabric_that_they_tell_of() -> None:
    fabric = from_links(two_leaves())
    # Leaf by leaf, numbers within names by value.
    assert fabric.host_names == (
        "node1 mlx5_0", "node2 mlx5_0", "node3 mlx5_0", "node10 mlx5_0",
    )  # fmt: skip
    assert fabric.switch_names == ("leaf1", "leaf2", "0x1", "0x2")
    assert fabric.gbps == 400.0
    assert path_names(fabric, 0, 3) == [
        ["0xa/1", "0xe/3", "0x1/2", "0xf/2"], ["0xa/1", "0xe/4", "0x2/2", "0xf/2"],
    ]  # fmt: skip
    result = run_phase(fabric, build_flows([0], [3], 1_000_000))
    assert result.phase_ns == pytest.approx(flow_ns(fabric, 1_000_000), abs=2)


def test_one_end_of_a_cable_tells_of_both() -> None:
    whole = from_links(two_leaves())
    half = from_links([row for row in two_leaves() if row["src_guid"] < row["dst_guid"]])
    assert half.stage_first == whole.stage_first
    assert {half.port_name(p) for p in range(half.ports)} == {
        whole.port_name(p) for p in range(whole.ports)
    }


def test_the_latest_row_of_a_port_counts() -> None:
    # Leaf 1's cable to spine 2 was moved to spine 1 later: two links in parallel.
    moved = cable("0xe=leaf1", 4, "0x1", 3, 1, ts=2, rate_gbps=200.0)
    older = [r for r in two_leaves() if (r["src_guid"], r["src_port"]) != ("0x2", 1)]
    # Spine 2's own row of the cable, from before, is refuted by that of leaf 1.
    for rows in ([*older, *moved], [*moved, *older], [*two_leaves(), *moved]):
        fabric = from_links(rows)
        assert path_names(fabric, 0, 2) == [
            ["0xa/1", "0xe/3", "0x1/2", "0xf/1"], ["0xa/1", "0xe/4", "0x1/2", "0xf/1"],
        ]  # fmt: skip
        assert fabric.port_gbps()[fabric.port("0xe/4")] == 200.0
        assert "0x2/2" not in {fabric.port_name(p) for p in range(fabric.ports)}


def test_each_port_of_an_adapter_is_a_host() -> None:
    rows = [r for r in two_leaves() if "0xb" not in (r["src_guid"], r["dst_guid"])]
    rows += cable("0xa=node1 mlx5_0", 2, "0xf=leaf2", 9, 0)
    fabric = from_links(rows)
    assert fabric.host_names[0] == "node1 mlx5_0/1"
    assert fabric.host_names[1] == "node1 mlx5_0/2"
    assert fabric.leaf_of(0) != fabric.leaf_of(1)


def test_what_reduces_inside_the_network_and_spare_switches_are_no_hosts() -> None:
    rows = two_leaves()
    rows += cable("0x7=Mellanox Technologies Aggregation Node", 1, "0xe=leaf1", 41, None)
    rows += cable("0x8=spare switch", 1, "0x1", 9, 2)
    fabric = from_links(rows)
    assert fabric.host_names == from_links(two_leaves()).host_names
    assert fabric.ports == from_links(two_leaves()).ports


def test_a_management_node_on_a_spine_does_not_turn_the_fabric_over() -> None:
    fabric = from_links([*two_leaves(), *cable("0x9=manager", 1, "0x1", 9, 0)])
    assert fabric.leaves == 3
    near, far, manager = (
        fabric.host_names.index(name) for name in ("node1 mlx5_0", "node3 mlx5_0", "manager")
    )
    assert len(path_names(fabric, near, far)) == 2
    assert path_names(fabric, near, manager) == [["0xa/1", "0xe/3", "0x1/9"]]
    assert fabric.unused_ports() == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "no link in it"),
        (cable("0x1", 1, "0x2", 1, 1), "no host on a switch"),
        ([{**two_leaves()[0], "rate_gbps": "fast"}], "row 1"),
        ([{**row, "rate_gbps": None} for row in two_leaves()], "no rate of link 0xa/1"),
        ([{**two_leaves()[0], "dst_guid": None}], "no link in it"),
    ],
)
def test_rows_that_make_no_fabric_are_refused_in_one_line(rows: Rows, text: str) -> None:
    with pytest.raises(UsageError, match=text) as error:
        from_links(rows)
    assert "\n" not in str(error.value)


def test_what_one_source_leaves_out_another_tells() -> None:
    rows = two_leaves()
    bare: Rows = [
        {**row, "rate_gbps": None, "tier": None, "src_name": None, "ts": ts}
        for row in rows
        for ts in (1, 2)
    ]
    whole = from_links(rows)
    for both in ([*rows, *bare], [*bare, *rows]):
        fabric = from_links(both)
        assert fabric.host_names == whole.host_names
        np.testing.assert_array_equal(fabric.port_gbps(), whole.port_gbps())


def test_unknown_rates_may_be_given() -> None:
    rows = [{**row, "rate_gbps": None} if row["tier"] else row for row in two_leaves()]
    fabric = from_links(rows, gbps=100.0)
    assert Counter(fabric.port_gbps().tolist()) == {400.0: 8, 100.0: 8}


def matches_the_engines_search(rows: Rows, fabric: UpDown, pairs: list[tuple[int, int]]) -> None:
    """Equal-cost paths are all the shortest ones that the engine's path finder finds."""
    links = fabric_of([row for row in rows if row["tier"] is not None]).links
    finder = PathFinder(links)
    by_name = {link.name: link for link in links}
    ends = frozenset(by_name[fabric.port_name(host)].src for host in range(fabric.hosts))
    for src, dst in pairs:
        nodes = [by_name[fabric.port_name(fabric.nic(h))].src for h in (src, dst)]
        wanted = finder.path_set(nodes[0], nodes[1], cap=5_000, detours=0, ends=ends)
        assert sorted(path_names(fabric, src, dst)) == sorted(wanted)


def test_the_sample_clusters_fabric_is_as_its_generator_laid_it() -> None:
    rows = run("ibnetdiscover", CLUSTER).rows("topology_links")
    fabric = from_links(rows)
    assert (fabric.hosts, fabric.leaves, fabric.hosts_per_leaf) == (24, 4, 6)
    assert len(fabric.switch_names) == 6
    assert fabric.unused_ports() == []
    matches_the_engines_search(rows, fabric, [(0, 1), (0, 23), (7, 13)])


@pytest.mark.parametrize(
    ("folder", "file", "hosts", "leaves", "height"),
    [
        ("ib_ibdiagnet", "gmh_ibdiagnet2.ibnetdiscover", 256, 8, 1),
        ("ib_ibnetdiscover", "topograph_example.out", 542, 31, 1),
        ("ib_ibnetdiscover", "cyberang3l_k4n3.topo", 128, 32, 2),
    ],
)
def test_public_fabrics_carry_traffic_as_they_are_cabled(
    folder: str, file: str, hosts: int, leaves: int, height: int
) -> None:
    rows = run("ibnetdiscover", samples(folder, file)).rows("topology_links")
    fabric = from_links(rows)
    assert (fabric.hosts, fabric.leaves, max(fabric.heights)) == (hosts, leaves, height)
    assert fabric.unused_ports() == []
    rng = np.random.default_rng(1)
    pairs = [(int(a), int(b)) for a, b in rng.permutation(hosts)[:24].reshape(12, 2)]
    matches_the_engines_search(rows, fabric, pairs)
    flows = permutation(fabric, 500_000, seed=2)
    result = run_phase(fabric, flows)
    assert result.finished
    np.testing.assert_array_equal(result.delivered_bytes, flows.size)
    assert result.phase_ns >= load_bound_ns(fabric, flows)


def test_rails_of_a_discovered_fabric_are_its_adapters_by_name() -> None:
    rows = run("ibnetdiscover", samples("ib_ibdiagnet", "gmh_ibdiagnet2.ibnetdiscover"))
    fabric = from_links(rows.rows("topology_links"))
    rails = Rails.by_name(fabric)
    assert rails.number.shape == (32, 8)
    assert sorted(rails.number.ravel()) == list(range(256))
    # Each rail is one leaf, so that an exchange within rails needs no spine.
    for rail in range(8):
        assert len(np.unique(fabric.leaves_of(rails.number[:, rail]))) == 1
    assert {fabric.host_names[h].rpartition(" ")[0] for h in rails.number[3]} == {
        fabric.host_names[rails.host(3, 0)].rpartition(" ")[0]
    }
    small = Rails.by_name(from_links(two_leaves()))
    assert small.number.tolist() == [[0], [1], [2], [3]]
    with pytest.raises(UsageError, match="names no adapter"):
        Rails.by_name(
            from_links([{**row, "src_name": None, "dst_name": None} for row in two_leaves()])
        )


def test_rails_that_share_one_uplink_are_as_slow_as_it_is() -> None:
    """A real rail fabric: 8 leaves of 32 NICs, each with a single link to the one spine."""
    rows = run("ibnetdiscover", samples("ib_ibdiagnet", "gmh_ibdiagnet2.ibnetdiscover"))
    fabric = from_links(rows.rows("topology_links"))
    size = 200_000
    hosts = np.arange(256, dtype=np.int32)
    near = run_phase(fabric, build_flows(hosts, hosts ^ 1, size))
    far = run_phase(fabric, build_flows(hosts, (hosts + 32) % 256, size))
    assert near.phase_ns == pytest.approx(flow_ns(fabric, size, 2), abs=5)
    uplink = 32 * size / 50
    assert load_bound_ns(fabric, build_flows(hosts, (hosts + 32) % 256, size)) == uplink
    assert uplink <= far.phase_ns < uplink * 1.05 + fabric.latency_ns(4)

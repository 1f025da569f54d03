"""One name for each port and host, whatever was collected first."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.lakes import A, B, counters, derived, new_lake, put
from xtune.pipelines import rebuild
from xtune.pipelines._identity import DEFAULT_TICK, identify, short_names, split_link

GUID = A[:18]


def port(**values: Any) -> dict[str, Any]:
    names = (
        "host", "device", "port", "node_guid", "link", "node_description", "rate_gbps", "width",
        "link_layer", "device_family", "port_guid", "seen",
    )  # fmt: skip
    return {name: values.get(name) for name in names}


def test_domains_go_where_the_first_label_is_one_hosts() -> None:
    assert short_names(["a.x", "b.x", "b.y", "c", "a", "10.0.0.1", "10.0.0.2", "d.x.y"]) == {
        "a.x": "a",
        "a": "a",
        "b.x": "b.x",
        "b.y": "b.y",
        "c": "c",
        "10.0.0.1": "10.0.0.1",
        "10.0.0.2": "10.0.0.2",
        "d.x.y": "d",
    }


@pytest.mark.parametrize(
    ("link", "parts"),
    [
        ("n1/mlx5_0/1", ("n1", "mlx5_0", 1)),
        ("n1.cluster/mlx5_bond_0/1", ("n1.cluster", "mlx5_bond_0", 1)),
        (A, None),
        ("unknown-0123456789ab/mlx5_0/1", None),
        ("strange", None),
    ],
)
def test_split_link(link: str, parts: tuple[str, str, int] | None) -> None:
    assert split_link(link) == parts


def test_host_and_device_meet_their_guid() -> None:
    rows = [port(host="n1.x", device="mlx5_0", port=1, node_guid=GUID, link=A)]
    identity = identify(rows, [], [], ["n1/mlx5_0/1", "n2.x/mlx5_0/1"])
    assert identity.link("n1/mlx5_0/1") == A
    assert identity.link("n1.x/mlx5_0/1") == A
    assert identity.link("n2.x/mlx5_0/1") == "n2/mlx5_0/1"
    assert identity.link(A) == A
    assert identity.host_of_link(A) == "n1"
    assert identity.host_of_link("n2/mlx5_0/1") == "n2"
    assert identity.host_of_link(B) is None


def test_a_node_description_with_exactly_one_known_host_tells() -> None:
    described = [port(port=1, node_guid=GUID, link=A, node_description="n1 mlx5_0")]
    identity = identify(described, [], [], ["n1.cluster/mlx5_0/1"])
    assert identity.link("n1.cluster/mlx5_0/1") == A
    # Two known hosts in one description: not told apart, so not guessed.
    both = [port(port=1, node_guid=GUID, link=A, node_description="n1 n2 mlx5_0")]
    identity = identify(both, [], [], ["n1/mlx5_0/1", "n2/mlx5_0/1"])
    assert identity.link("n1/mlx5_0/1") == "n1/mlx5_0/1"
    assert identity.host_of_guid == {}
    # A host that nothing else names is not known.
    assert identify(described, [], [], []).host_of_guid == {}


def test_the_topology_tells_too() -> None:
    rows = [
        {
            "src_guid": GUID, "src_name": "n1 mlx5_3", "src_port": 1, "dst_guid": B[:18],
            "dst_name": "leaf", "dst_port": 2, "rate_gbps": 200.0, "tier": 0,
        }
    ]  # fmt: skip
    identity = identify([], rows, ["n1"], [])
    assert identity.guids == {("n1", "mlx5_3", 1): GUID}
    assert identity.port("n1/mlx5_3/1").rate_gbps == 200.0


def test_two_adapters_of_one_name_stay_apart() -> None:
    """Two pods call themselves n1."""
    rows = [
        port(host="n1", device="mlx5_0", port=1, node_guid=guid, link=f"{guid}/1")
        for guid in (A[:18], B[:18])
    ]
    identity = identify(rows, [], [], ["n1/mlx5_0/1"])
    assert identity.link("n1/mlx5_0/1") == "n1/mlx5_0/1"
    assert identity.notes == ["n1/mlx5_0/1 is 2 different adapters: kept apart"]


def test_facts_come_from_the_newest_row_that_has_them() -> None:
    rows = [
        port(link=A, rate_gbps=100.0, link_layer="InfiniBand", device_family="Switch-IB", seen=1),
        port(link=A, rate_gbps=200.0, width="2X", seen=2),
        port(link=A, seen=3),
    ]
    facts = identify(rows, [], [], []).port(A)
    assert (facts.rate_gbps, facts.ethernet, facts.tick) == (200.0, False, 32.0 * 4)
    assert identify([], [], [], []).port(B).tick == DEFAULT_TICK


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_collection_does_not_matter(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Telegraf names the port by host, the fabric by GUID; a third source knows both."""
    by_host = counters([0, 2], "n1.x/mlx5_0/1", port_xmit_data=[0, 10**9])
    by_guid = counters([1, 3], A, port_xmit_data=[5 * 10**8, 15 * 10**8])
    parts: list[tuple[str, list[dict[str, Any]]]] = [
        ("link_counters", by_host),
        ("link_counters", by_guid),
        ("ports", [port(host="n1", device="mlx5_0", port=1, node_guid=GUID, link=A)]),
    ]
    lake = new_lake(tmp_path / "lake")
    for place in order:
        put(lake, *parts[place], source=f"{place:012d}")
        rebuild(lake)
    assert [(row["ts"], row["link"], row["tx_gbps"]) for row in derived(lake, "link_rates")] == [
        (1.0, A, 16.0),
        (2.0, A, 16.0),
        (3.0, A, 16.0),
    ]


PORT_GUID = "0x00000000000000a1"


def test_a_port_guid_is_its_nodes() -> None:
    """ibqueryerrors names an adapter's port by the port's GUID, sysfs knows both."""
    rows = [port(host="n1", device="mlx5_0", port=2, node_guid=GUID, port_guid=PORT_GUID)]
    identity = identify(rows, [], [], [f"{PORT_GUID}/2", "n1/mlx5_0/2"])
    assert identity.link(f"{PORT_GUID}/2") == f"{GUID}/2"
    assert identity.link("n1/mlx5_0/2") == f"{GUID}/2"
    assert identity.host_of_link(f"{PORT_GUID}/2") is None  # asked by its one name only
    assert identity.host_of_link(identity.link(f"{PORT_GUID}/2")) == "n1"
    cable = {"src_guid": PORT_GUID, "src_port": 2, "dst_guid": B[:18], "dst_port": 1}
    assert identity.cable(cable)["src_guid"] == GUID


def test_a_guid_that_is_a_nodes_too_is_no_ports() -> None:
    """A switch's port 0, and adapters whose first port has the node's own GUID."""
    rows = [
        port(port=0, node_guid=GUID, port_guid=GUID, link=f"{GUID}/0"),
        port(port=1, node_guid=B[:18], port_guid=GUID, link=B),
    ]
    assert identify(rows, [], [], []).nodes == {}
    twice = [port(port=1, node_guid=g, port_guid=PORT_GUID) for g in (GUID, B[:18])]
    identity = identify(twice, [], [], [])
    assert identity.nodes == {}
    assert identity.notes == [f"port GUID {PORT_GUID} is of 2 nodes: kept apart"]


def test_a_description_that_two_adapters_share_tells_of_neither() -> None:
    """One of them was moved and still calls itself by its old host."""
    rows = [port(port=1, node_guid=guid, node_description="n1 mlx5_0") for guid in (GUID, B[:18])]
    identity = identify(rows, [], ["n1"], ["n1/mlx5_0/1"])
    assert identity.link("n1/mlx5_0/1") == "n1/mlx5_0/1"
    assert identity.host_of_guid == {}
    # What the host itself says counts.
    sure = [*rows, port(host="n1.x", device="mlx5_0", port=1, node_guid=GUID)]
    identity = identify(sure, [], ["n1"], ["n1/mlx5_0/1"])
    assert identity.link("n1/mlx5_0/1") == A
    assert identity.host_of_guid == {GUID: "n1"}


def test_an_adapter_on_two_hosts_is_on_none() -> None:
    rows = [port(host=host, device="mlx5_0", port=1, node_guid=GUID, link=A) for host in "ab"]
    identity = identify(rows, [], [], [])
    assert identity.host_of_guid == {}
    assert identity.host_of == {}
    assert identity.notes == [f"adapter {GUID} is on 2 hosts: on none for certain"]


def test_a_renamed_device_is_the_same_adapter() -> None:
    """After a link went down the driver calls mlx5_0 rocep1s0f0; and the name may come again."""
    rows = [
        port(host="n1", device=device, port=1, node_guid=GUID, link=A, seen=seen)
        for seen, device in ((1, "mlx5_0"), (2, "rocep1s0f0"))
    ]
    identity = identify(rows, [], [], ["n1/mlx5_0/1", "n1/rocep1s0f0/1"])
    assert identity.link("n1/mlx5_0/1") == identity.link("n1/rocep1s0f0/1") == A
    again = [*rows, port(host="n1", device="mlx5_0", port=1, node_guid=B[:18], seen=3)]
    identity = identify(again, [], [], ["n1/mlx5_0/1", "n1/rocep1s0f0/1"])
    assert identity.link("n1/rocep1s0f0/1") == A
    assert identity.link("n1/mlx5_0/1") == "n1/mlx5_0/1"


def test_hosts_of_jobs_are_hosts_of_the_fabric() -> None:
    """NCCL says n1.cluster, the fabric n1; n2 is in two clusters, so n2 alone is none of them."""
    described = [
        port(port=1, node_guid=guid, node_description=f"{host} mlx5_0", link=f"{guid}/1")
        for guid, host in ((GUID, "n1"), (B[:18], "n2"))
    ]
    identity = identify(described, [], ["n1.cluster", "n2.east", "n2.west"], [])
    assert identity.host("n1.cluster") == identity.host_of_link(A) == "n1"
    assert {identity.host(name) for name in ("n2.east", "n2.west")} == {"n2.east", "n2.west"}
    assert identity.host_of_link(B) is None


_guids = st.sampled_from([GUID, B[:18], PORT_GUID, "0x00000000000000cc"])
_port_rows = st.fixed_dictionaries(
    {
        "host": st.sampled_from([None, "n1", "n1.x", "n2", "n2.y", "n2.z"]),
        "device": st.sampled_from([None, "mlx5_0", "mlx5_1"]),
        "port": st.sampled_from([None, 1, 2]),
        "node_guid": st.none() | _guids,
        "port_guid": st.none() | _guids,
        "link": st.sampled_from([None, A, B, f"{PORT_GUID}/1", "n1/mlx5_0/1", "n2.y/mlx5_1/2"]),
        "node_description": st.sampled_from([None, "n1 mlx5_0", "n2 mlx5_1", "n1 n2 mlx5_0"]),
        "rate_gbps": st.sampled_from([None, 100.0, 200.0]),
        "width": st.sampled_from([None, "2X", "4X"]),
        "link_layer": st.sampled_from([None, "InfiniBand", "Ethernet"]),
        "device_family": st.sampled_from([None, "Switch-IB", "Quantum-2"]),
        "seen": st.none() | st.integers(1, 3),
    }
)


@given(
    rows=st.lists(_port_rows, max_size=6).flatmap(
        lambda rows: st.tuples(st.just(rows), st.permutations(rows))
    )
)
@settings(max_examples=200, deadline=None)
def test_any_order_of_rows_gives_the_same_identity(
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    links = ["n1/mlx5_0/1", "n2/mlx5_1/2", A]
    assert identify(rows[0], [], ["n1"], links) == identify(rows[1], [], ["n1"], links)

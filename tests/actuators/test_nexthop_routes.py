"""Nexthop groups beside routes that others made or changed, in a real kernel."""

from __future__ import annotations

import json

import pytest

from tests.actuators.namespaces import DEVICES, GATEWAYS, Fabric, run, until
from xtune.policies.actuators.base import Refused
from xtune.policies.actuators.nexthop import LOOK_S, Gateway, NexthopGroup
from xtune.proofs.emulated.namespaces import inside

PATHS = [Gateway(address=a, device=d) for a, d in zip(GATEWAYS, DEVICES, strict=True)]
SIX = [Gateway(address=f"2001:db8:{n}::2", device=f"up{n}") for n in (1, 2)]
NET, NET_SIX = "198.19.0.0/16", "2001:db8:9::/48"
LONG_S = 120.0  # a lease that no test here outlives


def addressed(fabric: Fabric) -> None:
    """Give the uplinks their IPv6 addresses."""
    for number in (1, 2):
        run(fabric.leaf1, f"addr add 2001:db8:{number}::1/64 dev up{number} nodad")


def shown(fabric: Fabric, destination: str) -> str:
    """The routes to a destination, as iproute2 tells them."""
    return run(fabric.leaf1, f"{'-6' if ':' in destination else '-4'} route show {destination}")


def device(fabric: Fabric, address: str) -> str:
    """The interface that a packet to an address leaves by."""
    (route,) = json.loads(run(fabric.leaf1, f"-j route get {address}"))
    return str(route["dev"])


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("change", ["replace", "del"])
@pytest.mark.parametrize("destination", [NET, NET_SIX])
def test_a_route_that_others_took_is_seen_and_taken_again(
    fabric: Fabric, destination: str, change: str, before: bool
) -> None:
    now_s = [0.0]
    addressed(fabric)
    paths = PATHS if destination == NET else SIX
    old, new = (f"{destination} via {path.address}" for path in paths)
    address = destination.split("/")[0] + ("5" if paths is SIX else "")
    if before:
        run(fabric.leaf1, f"route add {old}")
    was = shown(fabric, destination)

    def work() -> str:
        with NexthopGroup(destination, paths, lease_s=LONG_S, clock=lambda: now_s[0]) as actuator:
            actuator.apply([1, 1])
            run(fabric.leaf1, f"route {change} {new if change == 'replace' else destination}")
            theirs = shown(fabric, destination)
            now_s[0] += LOOK_S
            assert not actuator.renew()
            for shares, taken in ([1, 0], "up1"), ([0, 1], "up2"):
                actuator.apply(shares)
                assert device(fabric, address) == taken and actuator.renew()
        return theirs

    theirs = inside(fabric.leaf1, work)
    assert shown(fabric, destination) == (theirs if change == "replace" else was)
    assert json.loads(run(fabric.leaf1, "-j nexthop")) == []


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("destination", [NET, NET_SIX])
def test_undoing_leaves_what_others_changed(
    fabric: Fabric, destination: str, before: bool, killed: bool
) -> None:
    addressed(fabric)
    paths = PATHS if destination == NET else SIX
    if before:
        run(fabric.leaf1, f"route add {destination} via {paths[0].address}")

    def work() -> None:
        actuator = NexthopGroup(destination, paths, lease_s=0.3 if killed else LONG_S)
        actuator.apply([1, 1])
        run(fabric.leaf1, f"route replace {destination} via {paths[1].address} mtu 1400")
        theirs = shown(fabric, destination)
        if killed:  # by the lease: the watcher undoes
            until(lambda: actuator._lease is not None and not actuator._lease.alive)
        actuator.undo()
        assert shown(fabric, destination) == theirs and "mtu 1400" in theirs

    inside(fabric.leaf1, work)
    assert json.loads(run(fabric.leaf1, "-j nexthop")) == []


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit", "throw"])
@pytest.mark.parametrize("destination", [NET, NET_SIX])
def test_a_route_that_drops_packets_is_refused(
    fabric: Fabric, destination: str, kind: str
) -> None:
    addressed(fabric)
    paths = PATHS if destination == NET else SIX
    run(fabric.leaf1, f"route add {kind} {destination}")
    was = fabric.state()

    def work() -> None:
        with NexthopGroup(destination, paths, lease_s=LONG_S) as actuator:
            with pytest.raises(Refused, match=f"{destination} has a {kind} route"):
                actuator.apply([1, 1])
            assert fabric.state() == was

    inside(fabric.leaf1, work)
    assert fabric.state() == was


def test_a_blackhole_behind_the_route_stays(fabric: Fabric) -> None:
    run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]}")
    run(fabric.leaf1, f"route add blackhole {NET} metric 900")
    was = fabric.state()

    def work() -> None:
        with NexthopGroup(NET, PATHS, lease_s=LONG_S) as actuator:
            actuator.apply([0, 1])
            assert device(fabric, "198.19.0.5") == "up2"
            assert "blackhole" in shown(fabric, NET)

    inside(fabric.leaf1, work)
    assert fabric.state() == was


@pytest.mark.parametrize("plain", [True, False])
def test_a_route_for_a_type_of_service_is_left_alone(fabric: Fabric, plain: bool) -> None:
    run(fabric.leaf1, f"route add {NET} tos 0x10 via {GATEWAYS[0]}")
    if plain:
        run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]}")
    was = fabric.state()

    def work() -> None:
        with NexthopGroup(NET, PATHS, lease_s=LONG_S) as actuator:
            actuator.apply([0, 1])
            assert device(fabric, "198.19.0.5") == "up2"
            assert device(fabric, "198.19.0.5 tos 0x10") == "up1"

    inside(fabric.leaf1, work)
    assert fabric.state() == was


def test_two_routes_of_one_metric_are_refused(fabric: Fabric) -> None:
    """The first could not be put back before the second."""
    for gateway in GATEWAYS:
        run(fabric.leaf1, f"route append {NET} via {gateway}")
    was = fabric.state()

    def work() -> None:
        with NexthopGroup(NET, PATHS, lease_s=LONG_S) as actuator, \
                pytest.raises(Refused, match="two routes of one metric"):  # fmt: skip
            actuator.apply([1, 1])

    inside(fabric.leaf1, work)
    assert fabric.state() == was


def test_a_route_whose_interface_is_down_is_named_at_the_end(fabric: Fabric) -> None:
    """The kernel drops it with its interface; the rest is undone all the same."""
    run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]}")

    def work() -> None:
        actuator = NexthopGroup(NET, PATHS, lease_s=LONG_S)
        actuator.apply([1, 1])
        run(fabric.leaf1, "link set up1 down")
        with pytest.raises(
            Refused, match=f"not undone: the route to {NET}: Network is unreachable$"
        ):
            actuator.undo()
        assert json.loads(run(fabric.leaf1, "-j nexthop")) == [] and not shown(fabric, NET)

    inside(fabric.leaf1, work)

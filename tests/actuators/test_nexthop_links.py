"""Nexthop groups whose links go down, and several of them beside each other, in a real kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.actuators.namespaces import DEVICES, GATEWAYS, HOST, OWN, Fabric, run, until
from xtune.policies.actuators.base import Refused
from xtune.policies.actuators.nexthop import LOOK_S, Gateway, NexthopGroup
from xtune.proofs.emulated.namespaces import inside

PATHS = [Gateway(address=a, device=d) for a, d in zip(GATEWAYS, DEVICES, strict=True)]
LONG_S = 120.0  # a lease that no test here outlives
ELSEWHERE = "198.19.0.0/16"
HASH_POLICY = Path("/proc/sys/net/ipv4/fib_multipath_hash_policy")
PORTS = list(range(50000, 50040))


def state(fabric: Fabric) -> str:
    """Its state without the addresses that the kernel gives links that come up."""
    return "\n".join(line for line in fabric.state().split("\n") if "fe80::" not in line)


def nexthops(fabric: Fabric) -> int:
    """Nexthops and groups in the kernel."""
    return len(json.loads(run(fabric.leaf1, "-j nexthop")))


def links(fabric: Fabric, fault: str, paths: Sequence[int], state: str) -> None:
    """Set the links of some paths up or down, at this end or the far one."""
    for path in paths:
        if fault == "carrier":
            run(fabric.spines[path], f"link set down1 {state}")
        else:
            run(fabric.leaf1, f"link set {DEVICES[path]} {state}")


def taken(actuator: NexthopGroup, shares: Sequence[float]) -> bool:
    """Whether it takes the shares."""
    try:
        actuator.apply(shares)
    except Refused:
        return False
    return True


def sent(fabric: Fabric) -> list[int]:
    """Packets that each spine forwards of those for `HOST`."""
    was = fabric.forwarded()
    fabric.send(PORTS)
    return [a - b for a, b in zip(fabric.forwarded(), was, strict=True)]


@pytest.mark.parametrize("fault", ["carrier", "interface"])
def test_a_path_whose_link_was_down_is_used_again(fabric: Fabric, fault: str) -> None:
    now_s = [0.0]
    before = state(fabric)

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S, clock=lambda: now_s[0]) as actuator:
            actuator.apply([1, 1])
            links(fabric, fault, [1], "down")
            until(lambda: nexthops(fabric) == 2)  # the other one, and the group
            now_s[0] = LOOK_S - 0.01
            assert actuator.renew()  # the kernel is asked once a second only
            now_s[0] = LOOK_S
            assert not actuator.renew() and not actuator.renew()
            with pytest.raises(Refused, match="the kernel refuses"):
                actuator.apply([1, 1])
            assert not actuator.renew()
            actuator.apply([1, 0])  # which needs nothing of the dead link
            now_s[0] += LOOK_S
            assert actuator.renew()
            assert sent(fabric) == [len(PORTS), 0]
            links(fabric, fault, [1], "up")
            until(lambda: taken(actuator, [0, 1]))
            assert sent(fabric) == [0, len(PORTS)]
            now_s[0] += LOOK_S
            assert actuator.renew() and actuator.expired == 0

    inside(fabric.leaf1, work)
    assert state(fabric) == before


@pytest.mark.parametrize("fault", ["carrier", "interface"])
def test_what_went_with_all_links_is_made_again(fabric: Fabric, fault: str) -> None:
    now_s = [0.0]
    before = state(fabric)

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S, clock=lambda: now_s[0]) as actuator:
            actuator.apply([0, 1])
            links(fabric, fault, [0, 1], "down")
            until(lambda: nexthops(fabric) == 0)
            assert HOST not in state(fabric)
            now_s[0] += LOOK_S
            assert not actuator.renew()
            links(fabric, fault, [0, 1], "up")
            until(lambda: taken(actuator, [0, 1]))
            assert actuator.renew() and sent(fabric) == [0, len(PORTS)]

    inside(fabric.leaf1, work)
    assert state(fabric) == before


def test_a_route_that_could_not_be_made_again_is_tried_again(fabric: Fabric) -> None:
    """The group comes back, the route's own source address a little later."""
    before = state(fabric)

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S) as actuator:
            actuator.apply([0, 1])
            run(fabric.leaf1, f"addr del {OWN}/32 dev lo")
            links(fabric, "interface", [1], "down")
            until(lambda: nexthops(fabric) <= 1)
            links(fabric, "interface", [1], "up")
            until(lambda: not taken(actuator, [0, 1]) and nexthops(fabric) >= 2)
            assert HOST not in state(fabric) and not actuator.renew()
            run(fabric.leaf1, f"addr add {OWN}/32 dev lo")
            actuator.apply([0, 1])
            assert HOST in state(fabric) and actuator.renew()

    inside(fabric.leaf1, work)
    assert state(fabric) == before


def test_a_group_starts_while_a_path_without_a_share_is_down(fabric: Fabric) -> None:
    def work() -> None:
        links(fabric, "interface", [1], "down")
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S) as actuator:
            assert not taken(actuator, [1, 1])
            actuator.apply([1, 0])
            assert nexthops(fabric) == 2

    inside(fabric.leaf1, work)


def test_the_hash_stays_by_ports_until_the_last_group_ends(fabric: Fabric) -> None:
    now_s = [0.0]
    before = state(fabric)

    def work() -> None:
        first = NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S)
        # Long enough for what comes before its end, on a busy machine too.
        second = NexthopGroup(ELSEWHERE, PATHS, lease_s=3.0, clock=lambda: now_s[0])
        first.apply([1, 1])
        second.apply([1, 1])
        first.undo()
        now_s[0] = LOOK_S
        assert not second.renew()
        second.apply([1, 1])
        assert state(fabric).endswith("\n1\n") and second.renew()
        HASH_POLICY.write_text("0\n")
        second.apply([1, 1])  # looks by itself
        assert state(fabric).endswith("\n1\n")
        until(lambda: state(fabric) == before)  # the second's leases expire
        second.apply([1, 1])
        assert second.expired == 1 and state(fabric).endswith("\n1\n")
        second.undo()

    inside(fabric.leaf1, work)
    assert state(fabric) == before


def test_a_destination_has_one_group(fabric: Fabric) -> None:
    before = state(fabric)

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S) as first:
            first.apply([1, 1])
            during = state(fabric)
            with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S) as second:
                with pytest.raises(Refused, match=f"another one has {HOST}/32"):
                    second.apply([1, 0])
                assert state(fabric) == during
                first.undo()
                second.apply([1, 0])
            assert state(fabric) == before
            first.apply([1, 1])

    inside(fabric.leaf1, work)
    assert state(fabric) == before


def test_a_group_that_lost_its_links_does_not_undo_another(fabric: Fabric) -> None:
    """Its numbers are free meanwhile, but nobody takes them."""

    def work() -> None:
        first = NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S)
        first.apply([1, 1])
        links(fabric, "interface", [0, 1], "down")
        until(lambda: nexthops(fabric) == 0)
        links(fabric, "interface", [0, 1], "up")
        second = NexthopGroup(ELSEWHERE, PATHS, lease_s=LONG_S)
        until(lambda: taken(second, [1, 1]))
        first.undo()
        assert nexthops(fabric) == 3
        second.undo()
        assert nexthops(fabric) == 0

    inside(fabric.leaf1, work)

"""What a destination's route goes through when a nexthop group ends, in a real kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actuators.namespaces import DEVICES, GATEWAYS, OWN, Fabric, run, until
from xtune.policies import Policy, Router
from xtune.policies.actuators import netlink
from xtune.policies.actuators.base import Refused
from xtune.policies.actuators.nexthop import LOOK_S, Gateway, NexthopGroup
from xtune.policies.actuators.watcher import carry_out
from xtune.policies.executor import RETRY_NS, Executor
from xtune.policies.spec import Routing
from xtune.proofs.emulated.namespaces import inside

ROOT = Path(__file__).parents[2]
PATHS = [Gateway(address=a, device=d) for a, d in zip(GATEWAYS, DEVICES, strict=True)]
SIX = [Gateway(address=f"2001:db8:{n}::2", device=f"up{n}") for n in (1, 2)]
NET, NET_SIX = "198.19.0.0/16", "2001:db8:9::/48"
LONG_S = 120.0  # a lease that no test here outlives


def addressed(fabric: Fabric) -> None:
    """Give the uplinks their IPv6 addresses."""
    for number in (1, 2):
        run(fabric.leaf1, f"addr add 2001:db8:{number}::1/64 dev up{number} nodad")


def shown(fabric: Fabric, destination: str = NET) -> str:
    """The routes to a destination, as iproute2 tells them."""
    return run(fabric.leaf1, f"{'-6' if ':' in destination else '-4'} route show {destination}")


def nexthops(fabric: Fabric) -> int:
    """Nexthops and groups in the kernel."""
    return len(json.loads(run(fabric.leaf1, "-j nexthop")))


OWNER = f"""
import time
from xtune.policies.actuators.nexthop import Gateway, NexthopGroup
paths = [Gateway(address=a, device=d) for a, d in zip({GATEWAYS!r}, {DEVICES!r})]
actuator = NexthopGroup("{NET}", paths, lease_s={LONG_S})
actuator.apply([1, 1])
print(actuator._lease.pid, flush=True)
time.sleep(600)
"""


def test_who_comes_after_a_killed_owner_waits_until_the_route_is_back(fabric: Fabric) -> None:
    run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]}")
    was = shown(fabric)
    owner = inside(
        fabric.leaf1,
        lambda: subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=ROOT),
    )
    assert owner.stdout is not None
    watcher = int(owner.stdout.readline())
    os.kill(watcher, signal.SIGSTOP)  # a machine on which it has not had its turn yet
    owner.kill()
    owner.wait()
    owner.stdout.close()

    def work() -> None:
        actuator = NexthopGroup(NET, PATHS, lease_s=LONG_S)
        with pytest.raises(Refused, match="is being undone"):
            actuator.apply([1, 1])
        assert nexthops(fabric) == 3  # the other's
        os.kill(watcher, signal.SIGCONT)

        def taken() -> bool:
            try:
                actuator.apply([1, 1])
            except Refused:
                return False
            return True

        until(taken)
        assert nexthops(fabric) == 3 and actuator.renew()
        actuator.undo()

    inside(fabric.leaf1, work)
    assert shown(fabric) == was and nexthops(fabric) == 0


@pytest.mark.parametrize("destination", [NET, NET_SIX])
@pytest.mark.parametrize("how", ["plain", "multipath", "nhid"])
def test_packets_have_a_route_after_each_step_of_the_undoing(
    fabric: Fabric, how: str, destination: str
) -> None:
    addressed(fabric)
    paths = PATHS if destination == NET else SIX
    old = {"plain": f"via {paths[0].address} metric 20", "nhid": "nhid 7 metric 20",
           "multipath": " ".join(f"nexthop via {path.address}" for path in paths)}  # fmt: skip
    run(fabric.leaf1, f"nexthop add id 7 via {paths[0].address} dev up1")
    run(fabric.leaf1, f"route add {destination} {old[how]}")
    was = fabric.state()
    address = destination.split("/")[0] + ("5" if paths is SIX else "")

    def work() -> None:
        actuator = NexthopGroup(destination, paths, lease_s=LONG_S)
        actuator.apply([0, 1])
        for step in actuator._undoing(existed=True):
            assert carry_out([step]) == []
            (route,) = json.loads(run(fabric.leaf1, f"-j route get {address}"))
            assert route["dev"] in ("up1", "up2") and ("nhid 7" in shown(fabric, destination)) == (
                how == "nhid"
            )
        actuator.undo()  # says nothing of what is done already

    inside(fabric.leaf1, work)
    assert fabric.state() == was


class Readings:
    """A feed that brings nothing: the test tells the router."""

    alive = True

    def poll(self) -> int:
        return 0


@pytest.mark.parametrize("fault", ["blackhole", "address"])
def test_an_executor_knows_of_shares_that_could_not_be_set_up_again(
    fabric: Fabric, fault: str
) -> None:
    """Somebody takes the route within the time in which the kernel is not asked."""
    ends, flow, now_s = ("a", "b"), ("a", "b", 0), [0.0]
    routing = Routing(forecast="reading", pairs=2, hold_ns=0, moves_per_ms=1e6)
    router = Router({ends: [["one"], ["two"]]}, Policy(routing=routing), clock=lambda: 0)

    def work() -> None:
        actuator = NexthopGroup(NET, PATHS, lease_s=LONG_S, clock=lambda: now_s[0])
        with Executor(router, [Readings()], {flow: actuator}) as executor:

            def turn(second: float, one: float) -> list[float] | None:
                now_s[0], at_ns = second, int(second * RETRY_NS)
                router.observe("one", occupancy=one, at_ns=at_ns)
                router.observe("two", occupancy=0.0, at_ns=at_ns)
                executor.turn(at_ns)
                return executor.shares(flow)

            assert turn(0.0, 0.0) == [0.5, 0.5]
            if fault == "blackhole":
                run(fabric.leaf1, f"route replace blackhole {NET}")
            else:  # it could be taken back, but a gateway is out of reach
                run(fabric.leaf1, f"route replace {NET} via {GATEWAYS[0]}")
                run(fabric.leaf1, "addr del 198.18.2.1/30 dev up2")
            turn(LOOK_S / 2, 1.0)
            assert executor.refused == 1
            for second in (2.0, 3.0):
                assert turn(second, 0.0) is None
            if fault == "address":
                run(fabric.leaf1, "addr add 198.18.2.1/30 dev up2")
            run(fabric.leaf1, f"route replace {NET} via {GATEWAYS[1]}")
            assert turn(5.0, 0.0) == [0.5, 0.5] and "nhid" in shown(fabric)
            assert actuator.renew()

    inside(fabric.leaf1, work)
    assert "via 198.18.2.2" in shown(fabric) and nexthops(fabric) == 0


@pytest.mark.parametrize("applied", [0, 1, 2])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("destination", [NET, NET_SIX])
def test_a_route_that_came_later_and_was_withdrawn_is_not_put_back(
    fabric: Fabric, destination: str, own: bool, applied: int
) -> None:
    addressed(fabric)
    paths, now_s = PATHS if destination == NET else SIX, [0.0]
    if own:
        run(fabric.leaf1, f"route add {destination} via {paths[0].address} metric 100")
    was = shown(fabric, destination)

    def work() -> None:
        metric = "metric 10" if own or paths is SIX else ""
        with NexthopGroup(destination, paths, lease_s=LONG_S, clock=lambda: now_s[0]) as actuator:
            actuator.apply([1, 1])
            for _ in range(max(1, applied)):  # what was there at first still is the second time
                run(fabric.leaf1, f"route replace {destination} via {paths[1].address} {metric}")
                actuator.apply([1, 1])
                assert actuator.renew()
                run(fabric.leaf1, f"route del {destination} {metric}")
                now_s[0] += LOOK_S
                assert not actuator.renew()
                if applied:
                    actuator.apply([1, 0])
                    routes = shown(fabric, destination)
                    assert "nhid" in routes and "metric 10 " not in routes and actuator.renew()

    inside(fabric.leaf1, work)
    assert shown(fabric, destination) == was and nexthops(fabric) == 0


def test_a_route_that_came_later_is_put_back_where_the_links_took_it(fabric: Fabric) -> None:
    """Also where it cannot be made again at once, since its own source address is away."""
    run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]} metric 100")

    def work() -> None:
        with NexthopGroup(NET, PATHS, lease_s=LONG_S) as actuator:
            actuator.apply([1, 1])
            run(fabric.leaf1, f"route add {NET} via {GATEWAYS[1]} src {OWN} metric 10")
            actuator.apply([1, 1])
            run(fabric.leaf1, f"addr del {OWN}/32 dev lo")
            for state in ("down", "up"):
                for device in DEVICES:
                    run(fabric.leaf1, f"link set {device} {state}")
            until(lambda: "state UP" in run(fabric.leaf1, "link show up2"))
            with pytest.raises(Refused):
                actuator.apply([0, 1])
            assert nexthops(fabric) == 2 and not shown(fabric)
            run(fabric.leaf1, f"addr add {OWN}/32 dev lo")
            actuator.apply([0, 1])

    inside(fabric.leaf1, work)
    assert f"via {GATEWAYS[1]} dev up2 src {OWN} metric 10" in shown(fabric)


def test_what_is_there_at_the_first_apply_after_an_undo_is_put_back(fabric: Fabric) -> None:
    def work() -> None:
        actuator = NexthopGroup(NET, PATHS, lease_s=LONG_S)
        actuator.apply([1, 1])
        actuator.undo()
        run(fabric.leaf1, f"route add {NET} via {GATEWAYS[1]}")
        actuator.apply([1, 1])
        run(fabric.leaf1, f"route del {NET}")
        actuator.undo()

    inside(fabric.leaf1, work)
    assert f"via {GATEWAYS[1]} dev up2" in shown(fabric)


@pytest.mark.parametrize("told", [True, False])
def test_what_is_made_as_the_lease_ends_does_not_stay_without_a_watcher(
    fabric: Fabric, told: bool
) -> None:
    """The watcher undoes between the look at it and the change."""
    run(fabric.leaf1, f"route add {NET} via {GATEWAYS[0]}")
    was = fabric.state()

    def work() -> None:
        with NexthopGroup(NET, PATHS, lease_s=0.3) as actuator:
            actuator.apply([1, 1])
            lease, give_way = actuator._lease, actuator._give_way
            assert lease is not None
            actuator.lease_s = LONG_S

            def late(kernel: netlink.Netlink) -> None:
                give_way(kernel)
                until(lambda: not lease.alive)

            actuator._give_way = late  # type: ignore[method-assign]
            if told:
                actuator.apply([1, 3])
                assert actuator.expired == 1 and nexthops(fabric) == 3
                assert actuator._lease is not None and actuator._lease.alive
                assert actuator.renew()
            else:  # and before the next look
                until(lambda: not lease.alive)
                kernel = netlink.Netlink()
                actuator._change(kernel, [1, 3])
                kernel.close()
                assert nexthops(fabric) == 3

    inside(fabric.leaf1, work)
    assert fabric.state() == was

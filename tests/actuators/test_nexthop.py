"""Nexthop groups in a real kernel: what iproute2 and packets see of them, and the undoing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actuators.namespaces import DEVICES, GATEWAYS, HOST, OWN, Fabric, run, until
from xtune.policies.actuators.base import Refused, Unavailable
from xtune.policies.actuators.nexthop import Gateway, NexthopGroup, weights_of
from xtune.policies.actuators.source_ports import spread
from xtune.proofs.emulated.namespaces import inside

ROOT = Path(__file__).parents[2]
PATHS = [Gateway(address=a, device=d) for a, d in zip(GATEWAYS, DEVICES, strict=True)]
LONG_S = 120.0  # a lease that no test here outlives
PORTS = list(range(50000, 50400))


def test_packets_follow_the_weights_and_the_route_comes_back(fabric: Fabric) -> None:
    before = fabric.state()
    actuator = NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S)

    def work() -> None:
        with actuator:
            for shares, low, high in [([1, 3], 0.15, 0.35), ([1, 0], 1, 1), ([0, 2], 0, 0)]:
                actuator.apply(shares)
                foreseen = [actuator.path_of(port) for port in PORTS]
                was = fabric.forwarded()
                assert fabric.send(PORTS) == PORTS
                sent = [a - b for a, b in zip(fabric.forwarded(), was, strict=True)]
                assert sent == [foreseen.count(0), foreseen.count(1)]
                # 4.5 standard deviations of a binomial count either side of a quarter
                assert low <= sent[0] / len(PORTS) <= high
            (group,) = (n for n in json.loads(run(fabric.leaf1, "-j nexthop")) if "group" in n)
            assert len(group["group"]) == 1  # a path without a share is out of it
            (route,) = json.loads(run(fabric.leaf1, f"-j route show {HOST}"))
            assert (route["nhid"], route["metric"], route["prefsrc"]) == (group["id"], 7, OWN)

    inside(fabric.leaf1, work)
    assert fabric.state() == before


def test_source_ports_are_chosen_so_that_queue_pairs_share_the_paths(fabric: Fabric) -> None:
    def work() -> None:
        actuator = NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S)
        with actuator:
            actuator.apply([1, 1])
            ports = spread([3, 1], 16, lambda port: actuator.path_of(port, source=OWN))
            was = fabric.forwarded()
            fabric.send(ports, OWN)
            sent = [a - b for a, b in zip(fabric.forwarded(), was, strict=True)]
            assert sent == [12, 4]

    inside(fabric.leaf1, work)


@pytest.mark.parametrize(("before", "buckets"), [
    ("", None), ("198.19.0.0/16 via 198.18.1.2 mtu 1400", None),
    ("198.19.0.0/16 nexthop via 198.18.1.2 weight 2 nexthop via 198.18.2.2 weight 5", None),
    ("198.19.0.0/16 nhid 7 metric 3", 32), ("2001:db8:9::/48 via 2001:db8:1::2 metric 9", 32),
    ("2001:db8:9::/48 nexthop via 2001:db8:1::2 nexthop via 2001:db8:2::2", None),
])  # fmt: skip
def test_any_route_is_put_back_as_it_was(fabric: Fabric, before: str, buckets: int | None) -> None:
    run(fabric.leaf1, f"nexthop add id 7 via {GATEWAYS[1]} dev up2")
    six = "-6" if before.startswith("2001") else ""
    for number in (1, 2):
        run(fabric.leaf1, f"addr add 2001:db8:{number}::1/64 dev up{number} nodad")
    if before:
        run(fabric.leaf1, f"route add {before}")
    was = fabric.state()

    def work() -> None:
        paths = [Gateway(address=f"2001:db8:{n}::2", device=f"up{n}") for n in (1, 2)]
        destination = "2001:db8:9::/48" if six else "198.19.0.0/16"
        with NexthopGroup(destination, paths if six else PATHS, buckets=buckets, lease_s=LONG_S) \
                as actuator:  # fmt: skip
            actuator.apply([1, 2])
            (group,) = (n for n in json.loads(run(fabric.leaf1, "-j nexthop")) if "group" in n)
            assert [member["weight"] for member in group["group"]] == [128, 256]
            assert group.get("type") == (None if buckets is None else "resilient")
            (route,) = json.loads(run(fabric.leaf1, f"-j {six} route show {destination}"))
            assert route["nhid"] == group["id"]

    inside(fabric.leaf1, work)
    assert fabric.state() == was


OWNER = f"""
import os, sys, time
from xtune.policies.actuators.nexthop import Gateway, NexthopGroup
paths = [Gateway(address=a, device=d) for a, d in zip({GATEWAYS!r}, {DEVICES!r})]
actuator = NexthopGroup("{HOST}/32", paths, lease_s=float(sys.argv[1]))
actuator.apply([1, 1])
child = os.fork() if sys.argv[2] == "child" else None
if child != 0:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("lease_s", "child"), [(LONG_S, "alone"), (1.0, "child")])
def test_a_killed_owner_leaves_nothing_behind(fabric: Fabric, lease_s: float, child: str) -> None:
    """At once by the end of its pipe; by the lease where a child still holds that."""
    before = fabric.state()
    command = [sys.executable, "-c", OWNER, str(lease_s), child]
    owner = inside(
        fabric.leaf1,
        lambda: subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True),
    )
    assert owner.stdout is not None
    line = owner.stdout.readline().strip()
    if child == "alone":
        assert "nhid" in fabric.state()
    owner.kill()
    owner.wait()
    until(lambda: fabric.state() == before)
    if child == "child":
        os.kill(int(line), signal.SIGKILL)
    owner.stdout.close()


def test_an_owner_that_does_not_renew_loses_it_and_may_begin_again(fabric: Fabric) -> None:
    before = fabric.state()

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=0.3) as actuator:
            actuator.apply([1, 1])
            until(lambda: fabric.state() == before)
            until(lambda: actuator._lease is not None and not actuator._lease.alive)
            actuator.renew()  # says nothing: the next choice sets it up again
            actuator.apply([1, 1])
            assert actuator.expired == 1

    inside(fabric.leaf1, work)
    assert fabric.state() == before


def test_what_others_changed_after_the_lease_is_left_alone(fabric: Fabric) -> None:
    def work() -> str:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=0.3) as actuator:
            actuator.apply([1, 1])
            until(lambda: actuator._lease is not None and not actuator._lease.alive)
            run(fabric.leaf1, f"route replace {HOST}/32 via {GATEWAYS[1]} metric 7")
            return fabric.state()

    changed = inside(fabric.leaf1, work)
    assert fabric.state() == changed


def test_a_killed_watcher_does_not_keep_the_owner_from_undoing(fabric: Fabric) -> None:
    before = fabric.state()

    def work() -> None:
        with NexthopGroup(f"{HOST}/32", PATHS, lease_s=LONG_S) as actuator:
            actuator.apply([1, 1])
            assert actuator._lease is not None
            os.kill(actuator._lease.pid, signal.SIGKILL)
            until(lambda: actuator._lease is not None and not actuator._lease.alive)

    inside(fabric.leaf1, work)
    assert fabric.state() == before


def test_what_the_kernel_refuses_is_said_and_nothing_is_changed(fabric: Fabric) -> None:
    before = fabric.state()

    def work() -> None:
        unreachable = [PATHS[0], Gateway(address="192.0.2.1", device="up2")]
        with NexthopGroup(f"{HOST}/32", unreachable) as actuator:
            with pytest.raises(Refused, match=r"the kernel refuses: .*gateway"):
                actuator.apply([1, 1])
            assert fabric.state() == before

    inside(fabric.leaf1, work)
    assert fabric.state() == before


def test_what_is_missing_is_named(fabric: Fabric) -> None:
    nowhere = NexthopGroup(f"{HOST}/32", [Gateway(address=GATEWAYS[0], device="up9")])
    with pytest.raises(Unavailable, match="nexthop group: no interface up9"), nowhere:
        pytest.fail("must not begin")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # as somebody without rights
        os.setuid(65534)
        os.write(write, str(nowhere.check()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"CAP_NET_ADMIN" in os.read(read, 500)
    os.close(read)
    os.close(write)


def test_weights_by_hand() -> None:
    assert weights_of([0.25, 0.75]) == [85, 256]
    assert weights_of([0.5, 0.0, 0.5]) == [256, 0, 256]
    assert weights_of([0.999, 0.001]) == [256, 1]
    with pytest.raises(ValueError, match="address family"):
        NexthopGroup("198.19.0.0/16", [Gateway(address="2001:db8::1", device="up1")])


@pytest.mark.parametrize(("name", "values"), [
    ("lease_s", [0.0, -1.0, math.nan, math.inf, 1e300]), ("buckets", [0, 65536]),
    ("idle_s", [-0.1, math.nan, 4.3e7]),
])  # fmt: skip
def test_numbers_that_cannot_be_are_refused(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{name}: "):
            NexthopGroup(f"{HOST}/32", PATHS, **{name: value})  # type: ignore[arg-type]

"""The fabric of namespaces: packets take the spine they should, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xtune.proofs.emulated.fabric import Fabric, Shape, host_name, spine_name
from xtune.proofs.emulated.namespaces import NamespaceError, Namespaces, leftovers

FOLDER = Path("/run/netns")
PORT = 5001


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    try:
        made = Fabric(Shape(spines=3))
    except NamespaceError as error:
        pytest.skip(str(error))
    with made:
        yield made


def forwarded(fabric: Fabric) -> list[int]:
    """IP packets that each spine has forwarded so far."""

    def count() -> int:
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Ip:"))
        return int(values[names.index("ForwDatagrams")])

    spines = range(fabric.shape.spines)
    return [fabric.namespaces.inside(spine_name(spine), count) for spine in spines]


def pass_one(fabric: Fabric, source: tuple[int, str], target: tuple[int, str]) -> bool:
    """Whether a packet from one host's address comes to another's."""

    def made(address: str) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((address, PORT))
        return opened

    near = fabric.namespaces.inside(host_name(source[0]), lambda: made(source[1]))
    far = fabric.namespaces.inside(host_name(target[0]), lambda: made(target[1]))
    with near, far:
        far.settimeout(0.3)
        near.sendto(b"x", (target[1], PORT))
        try:
            came: tuple[str, int] = far.recvfrom(16)[1]
        except TimeoutError:
            return False
        return came == (source[1], PORT)


def test_each_cable_is_bound_to_its_spine_and_the_route_chooses_for_data(fabric: Fabric) -> None:
    for spine in range(3):
        for near, far in ((0, 2), (0, 3), (1, 2), (3, 1)):
            before = forwarded(fabric)
            ends = [(host, fabric.cable_address(host, spine)) for host in (near, far)]
            assert pass_one(fabric, ends[0], ends[1])
            after = forwarded(fabric)
            assert [b - a for a, b in zip(before, after, strict=True)] == [
                int(other == spine) for other in range(3)
            ]
    for spine in (0, 2, 1):
        gateway, device = fabric.gateway(0, spine)
        route = f"route replace {fabric.address(2)}/32 via {gateway} dev {device}"
        fabric.namespaces.ip(host_name(0), [route])
        before = forwarded(fabric)
        assert pass_one(fabric, (0, fabric.address(0)), (2, fabric.address(2)))
        after = forwarded(fabric)
        assert [b - a for a, b in zip(before, after, strict=True)] == [
            int(other == spine) for other in range(3)
        ]


def test_neighbours_do_not_cross_a_spine_and_a_cut_link_carries_nothing(fabric: Fabric) -> None:
    before = forwarded(fabric)
    assert pass_one(fabric, (0, fabric.address(0)), (1, fabric.address(1)))
    assert forwarded(fabric) == before
    ends = [(host, fabric.cable_address(host, 1)) for host in (0, 3)]
    for leaf in (0, 1):
        fabric.cut(1, leaf)
        assert not pass_one(fabric, ends[0], ends[1])
        assert not pass_one(fabric, ends[1], ends[0])
        fabric.mend(1, leaf)
        # The kernel looks at carriers and asks for addresses once a second.
        assert any(pass_one(fabric, ends[0], ends[1]) for _ in range(100))


def test_nothing_is_left_after_the_end_nor_after_a_failure(fabric: Fabric) -> None:
    names = list(fabric.namespaces.names.values())
    assert all((FOLDER / name).exists() for name in names)
    fabric.close()
    assert not any((FOLDER / name).exists() for name in names)
    fabric.close()
    of_this_process = f"*{os.getpid()}-*"  # other tests make theirs meanwhile
    before = set(FOLDER.glob(of_this_process))
    with pytest.raises(NamespaceError, match="ip: "):
        Fabric(Shape(mtu=10**7))
    assert set(FOLDER.glob(of_this_process)) <= before


def test_what_a_killed_owner_left_is_removed_by_the_next(fabric: Fabric) -> None:
    code = (
        "import time; from xtune.proofs.emulated.namespaces import Namespaces; "
        "print(*Namespaces(['a', 'b']).names.values(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        names = owner.stdout.readline().split()
        assert len(names) == 2 and not set(names) & set(leftovers())
        owner.send_signal(signal.SIGKILL)
    assert set(names) <= set(leftovers())
    Namespaces(["c"]).close()
    assert not any((FOLDER / name).exists() for name in names)
    assert all((FOLDER / name).exists() for name in fabric.namespaces.names.values())


def test_sizes_out_of_range_are_refused() -> None:
    for wrong in (dict(spines=0), dict(spines=41), dict(hosts=0), dict(hosts=32)):
        with pytest.raises(ValueError, match="not within"):
            Shape(**wrong)
    assert Shape(queue_bytes=500_000, rate_mbps=100.0).full_delay_s == pytest.approx(0.04)

"""Two leaves and two spines as network namespaces of this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from xtune.proofs.emulated.namespaces import inside

HOST = "198.18.100.1"  # behind the second leaf
OWN = "198.18.101.1"  # the first leaf's
GATEWAYS = ("198.18.1.2", "198.18.2.2")  # the spines, as the first leaf sees them
DEVICES = ("up1", "up2")


class Fabric:
    """leaf1 reaches leaf2's host address over spine1; spine2 is there as well.

    Attributes:
        leaf1, leaf2, spines: Names of the namespaces.
    """

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            pytest.skip("ip (iproute2): not here")
        tag = f"xtune{os.getpid()}{secrets.token_hex(2)}"
        self.leaf1, self.leaf2 = f"{tag}-leaf1", f"{tag}-leaf2"
        self.spines = (f"{tag}-spine1", f"{tag}-spine2")
        self._made: list[str] = []
        try:
            for name in (self.leaf1, self.leaf2, *self.spines):
                self._make(name)
            self._connect()
        except BaseException:
            self.close()
            raise

    def _make(self, name: str) -> None:
        done = subprocess.run(
            ["ip", "netns", "add", name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no right to make network namespaces: {done.stderr.strip()}")
        self._made.append(name)

    def _connect(self) -> None:
        for spine, name in enumerate(self.spines, start=1):
            for leaf, far in ((1, self.leaf1), (2, self.leaf2)):
                net = f"198.18.{spine + 2 * leaf - 2}"
                run(name, f"link add down{leaf} type veth peer name up{spine} netns {far}")
                run(name, f"addr add {net}.2/30 dev down{leaf}")
                run(far, f"addr add {net}.1/30 dev up{spine}")
                run(name, f"link set down{leaf} up")
                run(far, f"link set up{spine} up")
            run(name, f"route add {HOST}/32 via 198.18.{spine + 2}.1")
            inside(name, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n"))
        for name, address in ((self.leaf1, OWN), (self.leaf2, HOST)):
            run(name, "link set lo up")
            run(name, f"addr add {address}/32 dev lo")
        run(self.leaf1, f"route add {HOST}/32 via {GATEWAYS[0]} src {OWN} metric 7")
        run(self.leaf2, f"route add {OWN}/32 via 198.18.3.2")

    def forwarded(self) -> tuple[int, ...]:
        """IP packets that each spine has forwarded so far."""
        return tuple(inside(name, _forwarded) for name in self.spines)

    def send(self, ports: list[int], source: str = "") -> list[int]:
        """Send one UDP packet from each source port of leaf1; which came out behind leaf2."""
        with inside(self.leaf2, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as far:
            far.bind((HOST, 4791))
            far.settimeout(20.0)
            came = []
            for port in ports:
                with inside(self.leaf1, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) \
                        as near:  # fmt: skip
                    near.bind((source, port))
                    near.sendto(b"x", (HOST, 4791))
                came.append(far.recvfrom(16)[1][1])
        return came

    def state(self) -> str:
        """Routes, nexthops and the hash policy of leaf1, as iproute2 tells them."""
        policy = Path("/proc/sys/net/ipv4/fib_multipath_hash_policy")
        told = [run(self.leaf1, words) for words in ("-4 route", "-6 route", "nexthop")]
        return "\n".join([*told, inside(self.leaf1, policy.read_text)])

    def close(self) -> None:
        """Remove the namespaces, and with them all that was in them."""
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def until(true: Callable[[], bool]) -> None:
    """Wait for what must come to pass."""
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def run(namespace: str, words: str) -> str:
    """Run ``ip`` in a namespace; its output."""
    command = ["ip", "-n", namespace, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def _forwarded() -> int:
    lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Ip:"))
    return int(values[names.index("ForwDatagrams")])

"""Traces of the kernel's own queues: token buckets on virtual links, overloaded on and off.

    python -m xtune.proofs.forecast_tc SECONDS SEED     # the readings as JSON; needs CAP_NET_ADMIN

It runs in a network namespace of its own, which ends with the process, however that ends. Four
links of 20 Mb/s with queues of 64 KB are loaded by bursts of UDP packets, and the backlog of each
is asked of the kernel every millisecond, as a probe agent does. Nobody receives: what leaves a
queue is dropped behind it.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from xtune.errors import UsageError
from xtune.policies.probe.queue import Queue
from xtune.proofs.forecast_traces import Trace

HORIZON_NS = 20_000_000  # of the same share of a fill as 200 us are of a switch's
STEP_NS = 1_000_000
LINK_BYTES_S = 20e6 / 8
LIMIT_BYTES = 65_536
PACKET_BYTES = 1_400  # of payload: 1,442 as the queue counts them
# Load over the link's rate while on, mean time on and off in s, and whether at a period.
REGIMES = {
    "collisions": (2.0, 0.020, 0.060, False),
    "mild": (1.2, 0.100, 0.150, False),
    "periodic": (2.0, 0.025, 0.075, True),
    "calm": (0.8, 0.050, 0.050, False),
}
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h


def measure(seconds: float, seed: int) -> list[Trace]:
    """One trace for each regime, from a process of its own.

    Args:
        seconds: How long.
        seed: Of the bursts.

    Raises:
        UsageError: This user may not make a network namespace, or iproute2 is not here.
    """
    done = subprocess.run(
        [sys.executable, "-m", "xtune.proofs.forecast_tc", str(seconds), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"no queues of the kernel: {why}", "run as root, with iproute2")
    found = json.loads(done.stdout)
    at_ns = np.array(found["at_ns"], np.int64)
    occupancy = np.array(found["occupancy"], np.float64)
    calm = list(REGIMES).index("calm")
    return [
        Trace(
            name=f"tc, {name}",
            at_ns=at_ns,
            occupancy=occupancy[:, [i, calm]],
            bursts=np.array(found["bursts"][i], np.int64).reshape(-1, 2),
            flows=(((0,), (1,)),),
            horizon_ns=HORIZON_NS,
            packets=0,
        )
        for i, name in enumerate(REGIMES)
        if i != calm
    ]


def plan(seconds: float, seed: int) -> list[list[tuple[float, float]]]:
    """When each link is loaded: (begin, end) in s from the start, in the order of `REGIMES`."""
    found = []
    for number, (_, on_s, off_s, regular) in enumerate(REGIMES.values()):
        rng = np.random.default_rng([seed, number])
        bursts, at = [], 0.1
        while at < seconds:
            length = on_s if regular else float(rng.uniform(0.3, 1.7)) * on_s
            bursts.append((at, at + length))
            at += on_s + off_s if regular else length + float(rng.exponential(off_s))
        found.append(bursts)
    return found


def collect(seconds: float, seed: int) -> dict[str, object]:
    """Load the links and read their queues, in a new network namespace."""
    _enter()
    bursts = plan(seconds, seed)
    start_ns = time.monotonic_ns() + 500_000_000  # the sender is there by then
    sender = multiprocessing.get_context("fork").Process(target=_send, args=(bursts, start_ns))
    sender.start()
    try:
        at_ns, occupancy = _read(seconds, start_ns)
    finally:
        sender.kill()
        sender.join()
    told = [
        [(int(begin * 1e9), int(end * 1e9)) for begin, end in link if end < seconds]
        for link in bursts
    ]
    return {"at_ns": at_ns, "occupancy": occupancy, "bursts": told}


def _read(seconds: float, start_ns: int) -> tuple[list[int], list[list[float | None]]]:
    queues = [Queue(f"a{i}") for i in range(len(REGIMES))]
    at_ns, occupancy, step = [], [], 0
    while step * STEP_NS < seconds * 1e9:
        wait_ns = start_ns + step * STEP_NS - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        now_ns = time.monotonic_ns() - start_ns
        occupancy.append([queue.read() for queue in queues])
        at_ns.append(now_ns)
        step = now_ns // STEP_NS + 1  # a late reading is one reading, not several
    return at_ns, occupancy


def _send(bursts: Sequence[Sequence[tuple[float, float]]], start_ns: int) -> None:
    """Send each link's bursts at their rates, in steps of a millisecond."""
    channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    channel.setblocking(False)
    payload = bytes(PACKET_BYTES)
    rates = [load * LINK_BYTES_S / (PACKET_BYTES + 42) for load, *_ in REGIMES.values()]
    places = [0] * len(rates)
    sent = [0] * len(rates)  # packets of the burst under way
    while True:
        now = (time.monotonic_ns() - start_ns) / 1e9
        for link, rate in enumerate(rates):
            if places[link] >= len(bursts[link]) or now < bursts[link][places[link]][0]:
                continue
            begin, end = bursts[link][places[link]]
            due = int((min(now, end) - begin) * rate)
            while sent[link] < due:
                sent[link] += 1
                try:
                    channel.sendto(payload, (f"198.18.{link}.2", 9))
                except OSError:  # the queue is full: that packet is dropped
                    continue
            if now >= end:
                places[link], sent[link] = places[link] + 1, 0
        time.sleep(0.001)


def _enter() -> None:
    """A network namespace with one shaped link for each regime."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise UsageError(f"{tool} (iproute2) is not here", "install it")
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        reason = os.strerror(ctypes.get_errno())
        raise UsageError(f"no network namespace: {reason}", "it needs CAP_NET_ADMIN")
    for link in range(len(REGIMES)):
        for words in (
            f"ip link add a{link} type veth peer name b{link}",
            f"ip addr add 198.18.{link}.1/30 dev a{link}",
            f"ip link set a{link} up",
            f"ip link set b{link} up",
            f"ip neigh add 198.18.{link}.2 lladdr 02:00:00:00:00:01 dev a{link}",
            f"tc qdisc add dev a{link} root tbf rate 20mbit burst 5kb limit {LIMIT_BYTES}",
        ):
            subprocess.run(words.split(), check=True)


if __name__ == "__main__":
    try:
        json.dump(collect(float(sys.argv[1]), int(sys.argv[2])), sys.stdout)
    except UsageError as error:
        sys.exit(str(error))

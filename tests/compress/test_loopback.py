"""The codec's byte count against the kernel's: what really crossed the loopback device.

The ranks run in a network namespace of their own, so that no other traffic is counted.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.compress import test_fsdp_exchange as sharded
from tests.compress.ranks import join, run
from tests.compress.test_exchange import SIZES, Rank, gradient

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
ROUNDS = 40
WORLD = 2
MODES = ("quantise", "dense", "drop", "shared")
SHARDED = ("sharded dense",)  # quantised, its messages are small beside TCP's headers


def enter_empty_network() -> None:
    """Leave for a new network namespace and bring its loopback device up.

    Raises:
        OSError: this process may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(probe, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def sent_over_loopback() -> int:
    """Bytes the loopback device has sent since it exists, from the kernel."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    raise OSError("no loopback device in /proc/net/dev")


def _measure(rank: int, pipe: int, store: str) -> None:
    join(rank, WORLD, store)
    replicas, shards = Rank(WORLD), sharded.Rank(WORLD)

    def reduce(mode: str) -> int:
        if mode in SHARDED:
            values = sharded.gradient(rank, WORLD, 0)
            return shards.scatter(values, mode.removeprefix("sharded "))[1].wire_bytes
        bits = (4, 4, 8, 4, 16) if mode == "quantise" else (16,) * 5
        return replicas.reduce(gradient(rank), mode, bits, keep_share=0.35)[1].wire_bytes

    for mode in MODES + SHARDED:
        reduce(mode)  # connections, first buffers
        dist.barrier()
        before = sent_over_loopback()
        dist.barrier()
        counted = 0
        for _ in range(ROUNDS):
            counted += reduce(mode)
        dist.barrier()
        both = torch.tensor([counted])
        dist.all_reduce(both)
        if rank == 0:
            os.write(pipe, f"{mode},{sent_over_loopback() - before},{int(both[0])}\n".encode())
        dist.barrier()


def _isolated(rank: int, world: int, store: str) -> Any:
    """One process of the fork server, which leaves the network and forks the ranks."""
    try:
        enter_empty_network()
    except OSError as error:
        return f"no network namespace of its own: {error}"
    reader, writer = os.pipe()
    children = []
    for child in range(WORLD):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _measure(child, writer, store)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    os.close(writer)
    with os.fdopen(reader) as lines:
        measured = [line.strip().split(",") for line in lines]
    states = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return states, measured


def test_the_kernel_counts_what_the_formula_says(tmp_path: Path) -> None:
    (result,) = run(0, _isolated, str(tmp_path / "store"))
    if isinstance(result, str):
        pytest.skip(result)
    states, measured = result
    assert states == [0] * WORLD
    assert [mode for mode, _, _ in measured] == [*MODES, *SHARDED]
    for mode, seen, counted in measured:
        # Barriers, TCP and IP headers, acknowledgements: at most 5 % and 4 kB a rank and round.
        assert int(counted) <= int(seen), mode
        assert int(seen) <= 1.05 * int(counted) + 4096 * WORLD * 2, mode
    dense = 2 * (WORLD - 1) * 4 * sum(SIZES) // WORLD
    assert int(measured[1][2]) >= ROUNDS * WORLD * dense

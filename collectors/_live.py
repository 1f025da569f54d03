"""Which sampler reads this host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from xtune.collectors._ib_sysfs_tree import device_folders
from xtune.collectors._live_net import NetSampler, Runner, run_command
from xtune.collectors._live_sysfs import SysfsSampler
from xtune.errors import InputError

Clock = Callable[[], int]


def open_sampler(
    root: Path,
    procfs: Path | None,
    host: str,
    *,
    runner: Runner | None = None,
    now_ns: Clock = time.time_ns,
    monotonic_ns: Clock = time.monotonic_ns,
) -> SysfsSampler | NetSampler:
    """The sampler for the ports below a root: RDMA devices, or Ethernet where there is none.

    Args:
        root: Root of the sysfs tree.
        procfs: Root of the proc tree, None without one.
        host: This host's name.
        runner: Runs ``ethtool``; by default a real one where ``root`` is ``/sys``, else none.
        now_ns: Nanoseconds since the epoch.
        monotonic_ns: Nanoseconds that never step.

    Raises:
        InputError: There is no port at all.
    """
    host = host.lower()
    if device_folders(root):
        return SysfsSampler(root, host, now_ns, monotonic_ns)
    if runner is None and root == Path("/sys"):
        runner = run_command
    sampler = NetSampler(root, procfs, host, runner, now_ns, monotonic_ns)
    if not sampler.ports:
        raise InputError(
            f"there is no InfiniBand device below {root}/class/infiniband, "
            "and no network interface either",
            "name files to read, or --sysfs DIR",
        )
    return sampler

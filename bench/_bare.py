"""The bare movement of rung A's kernel in C, compiled where there is a compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from xtune.policies.spec import Routing
from xtune.sim import _layout as k
from xtune.sim._state import State
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import Flows

SOURCE = Path(__file__).parent / "_bare_loop.c"


class Shape(ctypes.Structure):
    """``Shape`` of the C file."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "hosts", "leaves", "spines", "xoff", "xon", "flow_width", "size", "to_send",
            "delivered",
        )
    ]  # fmt: skip


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc")


def fresh_state(fabric: LeafSpine, flows: Flows, seed: int) -> State:
    """A phase that has not begun, on paths of its own."""
    return State(
        fabric, flows, routing=Routing(mode="static"), dt_ns=1000, seed=seed, pfc=Backpressure(),
        limit_ns=10**9,
    )  # fmt: skip


class BareLoop:
    """The compiled loop.

    Args:
        cc: The compiler.

    Raises:
        subprocess.CalledProcessError: it does not compile.
    """

    def __init__(self, cc: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "bare_loop.so"
            flags = ["-O3", "-march=native", "-shared", "-fPIC"]
            subprocess.run([cc, *flags, "-o", str(library), str(SOURCE)], check=True)
            self._run = ctypes.CDLL(str(library)).bare_loop
        self._run.restype = ctypes.c_int64

    def time_s(self, fabric: LeafSpine, state: State) -> tuple[float, int]:
        """CPU time and steps of a phase with one flow a host, in the arrays of ``state``."""
        pfc = Backpressure()
        shape = Shape(
            fabric.hosts, fabric.leaves, fabric.spines, pfc.xoff_bytes, pfc.xon_bytes,
            state.flow_i.shape[1], k.SIZE, k.TO_SEND, k.DELIVERED,
        )  # fmt: skip
        path = np.ascontiguousarray(state.flow_u[:, k.PATH])
        arrays = (
            state.rate, state.head, state.tail, state.queued, state.resident, state.paused,
            state.nodes, state.ends, path, state.flow_i,
        )  # fmt: skip
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
        start = time.process_time()
        steps = self._run(ctypes.byref(shape), *pointers)
        return time.process_time() - start, int(steps)

"""The CPU kernels against a copy of the same fp32 gradient, on one thread, pair by pair.

In bytes, encoding 4 bits with a residual moves 1.56 times what a copy does, and decoding 0.56
times, or 1.06 where it adds to what is there. The message is one of four ranks, laid out as an
exchange lays it out.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import torch

from xtune.policies.compress import kernels
from xtune.policies.compress.codec import NumbaCodec
from xtune.policies.compress.kernel_tools import pointer
from xtune.policies.compress.layout import LayerTable, Place

RUNS = 9
CALLS = 3  # in each, at the least
WORLD = 4
BLOCK = 256
MIB = 1 << 20
SIZES_MB = (1, 16, 64)  # within a large cache, beyond it
GOALS = {
    ("encode", 1): 6.0, ("encode", 16): 4.0, ("encode", 64): 4.0,
    ("decode", 1): 1.2, ("decode", 16): 1.2, ("decode", 64): 1.2,
}  # fmt: skip
WHAT = {
    "encode": "residual added and kept",
    "decode": "and accumulate, as the owner of a block does with each rank's",
    "write": "decode into the gradient, as after the gather",
    "reduce": "decode four ranks' quarters, accumulate, encode with a residual",
}
NAMES = tuple(
    f"policies.{kernel}_int{bits}_{size}mb_vs_copy"
    for kernel, bits, size in itertools.product(WHAT, (4, 8), SIZES_MB)
)


@numba.njit(nogil=True, error_model="numpy")
def _accumulate(
    message: Any, stride: int, world: int, base: int, bits: int, code_offset: int,
    scale_offset: int, starts: Any, out: Any,
) -> None:  # fmt: skip
    """A whole message added to ``out``, by the routine that sums a block in the cache."""
    for j in range(out.shape[0] // BLOCK):
        owner = (base + j) % world
        slot = starts[owner] + j // world
        share = owner * stride
        scale = kernels._read_scale(pointer(message, share + scale_offset + slot * 2))
        codes = pointer(message, share + code_offset + slot * (BLOCK * bits // 8))
        to = pointer(out, j * BLOCK)
        kernels._unpack(codes, BLOCK, bits, scale, True, to, to)


def _accumulator(place: Place, message: torch.Tensor, stride: int, out: torch.Tensor) -> Any:
    return lambda: _accumulate(
        message.numpy(), stride, WORLD, place.base, place.bits, place.code_offset,
        place.scale_offset, place.starts, out.numpy(),
    )  # fmt: skip


def _work(bits: int, size_mb: int) -> dict[str, Callable[[], object]]:
    elements = size_mb * MIB // 4
    table = LayerTable(
        names=("layer",), elements=(elements,), world=WORLD, block=BLOCK, dense_below=1
    )
    layout = table.layout((0,), (bits,))
    (place,) = layout.places
    stride = layout.payload
    codec = NumbaCodec(world=WORLD, rank=0, block=BLOCK)
    gradient = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    residual, fresh, out = torch.zeros(elements), torch.zeros(elements), torch.zeros(elements)
    owned = int(place.owned[0]) * BLOCK
    owner, owner_fresh = torch.zeros(owned), torch.zeros(owned)
    message = torch.zeros(WORLD * stride, dtype=torch.uint8)
    share = torch.zeros(stride, dtype=torch.uint8)
    return {
        "copy": lambda: out.copy_(gradient),
        "encode": lambda: codec.encode(place, gradient, residual, 0.5, fresh, message, stride),
        "decode": _accumulator(place, message, stride, out),
        "write": lambda: codec.decode(place, message, stride, 0, out),
        # A quarter of the elements from each of four ranks: as many values as one gradient has.
        "reduce": lambda: codec.reduce(place, message, stride, owner, 0.5, owner_fresh, share, 0),
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _pair(
    copy: Callable[[], object], own: Callable[[], object], calls: int
) -> tuple[float, float]:
    """One run: medians over single calls in turn, so that a stall of the machine is one call's."""
    taken = [(_seconds(copy), _seconds(own)) for _ in range(calls)]
    copied, owned = zip(*taken, strict=True)
    return statistics.median(copied), statistics.median(owned)


def _rows(bits: int, size_mb: int) -> list[dict[str, object]]:
    work = _work(bits, size_mb)
    copy = work.pop("copy")
    calls = max(CALLS, 64 // size_mb)
    rows: list[dict[str, object]] = []
    for warm in (copy, *work.values()):
        warm()
    for kernel, own in work.items():
        pairs = [_pair(copy, own, calls) for _ in range(RUNS)]
        copied, taken = (statistics.median(side) for side in zip(*pairs, strict=True))
        rows.append(
            {
                "name": f"policies.{kernel}_int{bits}_{size_mb}mb_vs_copy",
                "ratio": taken / copied,
                "goal": GOALS.get((kernel, size_mb)),
                "better": "lower",
                "value": taken / size_mb * 1e6,
                "unit": "us/MiB of fp32",
                "against": f"copy of the same fp32 gradient, one thread; {WHAT[kernel]}",
                "runs": RUNS,
            }
        )
    return rows


def run() -> list[dict[str, object]]:
    """Medians of several runs, each of single calls of copy and kernel in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for size in SIZES_MB for bits in (4, 8) for row in _rows(bits, size)]
    finally:
        torch.set_num_threads(threads)

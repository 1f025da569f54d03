"""The compression kernels against a copy of the same fp32 bytes, on one thread, in turn.

Goals are those measured with a prototype in C++: quantise, pack and residual touch 1.56 times the
bytes of a copy; dequantise and add touch as many.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from xtune.policies.compress.codec import NumbaCodec
from xtune.policies.compress.layout import LayerTable

RUNS = 9
WORLD = 4
BLOCK = 256
MIB = 1 << 20
SIZES_MB = (4, 64)  # within a large cache, beyond it
QUANTISE_GOALS = {(4, 4): 2.5, (4, 64): 1.7, (8, 4): 2.5, (8, 64): 2.0}
DEQUANTISE_GOAL = 1.0
THROUGHPUT_GOAL = 5.0  # 1e9 bytes of fp32 a second through all three kernels

KERNELS = ("quantise", "dequantise_add", "dequantise")
NAMES = (
    *(f"{name}_{bits}bit_{size}mb_vs_memcpy" for name in KERNELS for bits in (4, 8)
      for size in SIZES_MB),
    "codec_throughput_4bit",
    "codec_throughput_8bit",
)  # fmt: skip


def _seconds(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def _kernels(bits: int, size_mb: int) -> dict[str, Callable[[], object]]:
    elements = size_mb * MIB // 4
    table = LayerTable(
        names=("layer",), elements=(elements,), world=WORLD, block=BLOCK, dense_below=1
    )
    layout = table.layout((0,), (bits,))
    (place,) = layout.places
    stride = layout.payload
    codec = NumbaCodec(world=WORLD, rank=0, block=BLOCK)
    gradient = torch.from_numpy(
        np.random.default_rng(0).standard_normal(elements, dtype=np.float32)
    )
    residual, fresh = torch.zeros(elements), torch.zeros(elements)
    owned = int(place.owned[0]) * BLOCK
    owner, owner_fresh = torch.zeros(owned), torch.zeros(owned)
    message = torch.zeros(WORLD * stride, dtype=torch.uint8)
    share = torch.zeros(stride, dtype=torch.uint8)
    out = torch.zeros(elements)
    return {
        "copy": lambda: out.copy_(gradient),
        "quantise": lambda: codec.encode(place, gradient, residual, 0.5, fresh, message, stride),
        # A quarter of the elements from each of four ranks: as many values as one gradient has.
        "dequantise_add": lambda: codec.reduce(
            place, message, stride, owner, 0.5, owner_fresh, share, 0
        ),
        "dequantise": lambda: codec.decode(place, message, stride, 0, out),
    }


def run() -> list[dict]:
    """Medians of several runs, kernel and copy in turn."""
    torch.set_num_threads(1)
    rows = []
    for bits in (4, 8):
        for size_mb in SIZES_MB:
            kernels = _kernels(bits, size_mb)
            times = max(1, 32 // size_mb)
            taken: dict[str, list[float]] = {name: [] for name in kernels}
            for work in kernels.values():
                work()
            for _ in range(RUNS):
                for name, work in kernels.items():
                    taken[name].append(_seconds(work, times))
            median = {name: statistics.median(values) for name, values in taken.items()}
            for name in KERNELS:
                goal = QUANTISE_GOALS[bits, size_mb] if name == "quantise" else DEQUANTISE_GOAL
                rows.append(
                    {
                        "name": f"{name}_{bits}bit_{size_mb}mb_vs_memcpy",
                        "ratio": median[name] / median["copy"],
                        "goal": goal,
                        "better": "lower",
                        "value": median[name] / size_mb * 1e6,
                        "unit": "us/MiB of fp32",
                        "against": "copy of the same fp32 bytes, one thread, same run",
                        "runs": RUNS,
                    }
                )
            if size_mb == SIZES_MB[-1]:
                total = sum(median[name] for name in median if name != "copy")
                rows.append(
                    {
                        "name": f"codec_throughput_{bits}bit",
                        "ratio": None,
                        "goal": THROUGHPUT_GOAL,
                        "better": "higher",
                        "value": size_mb * MIB / total / 1e9,
                        "unit": "gigabytes_s of fp32",
                        "against": "goal of a C++ prototype; quantise, sum and dequantise, "
                        "4 ranks, one thread",
                        "runs": RUNS,
                    }
                )
    return rows

"""The GPU kernels against a copy of the same bytes on the device; no rows where there is no GPU.

``make bench ONLY=policies.gpu``, on a machine with a CUDA device and triton, holds every kernel
against the reference on the CPU, bit for bit, and then measures all of them in one go: medians of
CUDA events, a kernel and the copy in turn. The copy moves as many bytes as the kernel, read and
written together. Dequantise and add moves 8.51 bytes an element with an fp32 accumulator and 4
bits (one read, one written, half a byte of codes, and the scale), 4.51 with bf16. The caches are
overwritten before each measurement, as a backward pass would. Times are those on the device; what
a start costs the host is in ``policies.gpu_dequant_add_host_us``.

The 15 us rows give the largest layer, in MiB of what it is added to, whose kernel ends in 15 us.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from xtune.policies.compress.codec import TorchCodec
from xtune.policies.compress.layout import LayerTable, Place

RUNS = 51
WARM_UPS = 5
WORLD = 4
BLOCK = 256
BITS = 4
MIB = 1 << 20
SIZES_MIB = (1, 4, 25)  # of the dense tensor in its own type
LIMIT_US = 15.0
GOAL = 1.25  # times the copy: the kernels move the same bytes, so what is above 1 is overhead
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FLUSH_BYTES = 512 * MIB  # beyond any cache; and long enough for the host to get ahead

NAMES = (
    *(f"policies.gpu_{work}_{size}mib_vs_copy"
      for size in SIZES_MIB for work in ("dequant_add", "dequant_add_bf16", "encode", "reduce")),
    "policies.gpu_dequant_add_15us_mib",
    "policies.gpu_dequant_add_bf16_15us_mib",
    "policies.gpu_dequant_add_host_us",
)  # fmt: skip


class Case:
    """One layer with its messages, by the Triton kernels on the device or by the reference."""

    def __init__(
        self, made: Callable[..., Any], elements: int, dtype: torch.dtype, on: str
    ) -> None:
        table = LayerTable(
            names=("layer",), elements=(elements,), world=WORLD, block=BLOCK, dense_below=1
        )
        layout = table.layout((0,), (BITS,))
        self.place: Place = layout.places[0]
        self.stride = layout.payload
        self.codec = made(world=WORLD, rank=0, block=BLOCK)
        values = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
        owned = int(self.place.owned[0]) * BLOCK
        self.gradient = values.to(on, dtype)
        self.total = values.flip(0).to(on, dtype)
        self.residual = torch.zeros(self.place.blocks * BLOCK)
        self.residual[:elements] = values * 0.1
        self.residual = self.residual.to(on)
        self.fresh = torch.zeros_like(self.residual)
        self.owner, self.owner_fresh = self.residual[:owned].clone(), self.fresh[:owned].clone()
        # A quarter from each of four ranks: as many values are summed as one gradient has.
        self.message = torch.zeros(WORLD * self.stride, dtype=torch.uint8, device=on)
        self.share = torch.zeros(self.stride, dtype=torch.uint8, device=on)

    def found(self) -> list[int | None]:
        """Encode, reduce and add; the largest magnitudes."""
        encoded = self.codec.encode(*self.encoding())
        reduced = self.codec.reduce(*self.reducing())
        if isinstance(self.codec, TorchCodec):
            values = torch.empty(self.place.elements)
            self.codec.decode(self.place, self.message, self.stride, 0, values)
            self.total.copy_(self.total.float() + values)
        else:
            self.add()
        return [encoded, reduced]

    def encoding(self) -> tuple[Any, ...]:
        """What an encoder is called with."""
        return (
            self.place, self.gradient, self.residual, 0.5, self.fresh, self.message, self.stride
        )  # fmt: skip

    def reducing(self) -> tuple[Any, ...]:
        """What a reduction is called with."""
        return (
            self.place, self.message, self.stride, self.owner, 0.5, self.owner_fresh, self.share, 0
        )  # fmt: skip

    def add(self) -> None:
        """Dequantise and add, in one kernel."""
        self.codec.decode_add(self.place, self.message, self.stride, 0, self.total)

    def kernels(self) -> dict[str, Callable[[], object]]:
        """The kernels alone: a wait for their results would be timed too."""
        return {
            "encode": lambda: self.codec.start_encode(*self.encoding()),
            "reduce": lambda: self.codec.start_reduce(*self.reducing()),
            "dequant_add": self.add,
        }

    def bytes_moved(self) -> dict[str, int]:
        """Read and written by each kernel."""
        wide = self.residual.nbytes
        return {
            "encode": self.gradient.nbytes + 2 * wide + self.message.nbytes,
            "reduce": self.message.nbytes + 2 * self.owner.nbytes + self.share.nbytes,
            "dequant_add": 2 * self.total.nbytes + self.message.nbytes,
        }


def verify(made: Callable[..., Any], dtype: torch.dtype, on: str) -> None:
    """Raise unless every kernel gives the bits of the reference."""
    for elements in (1, BLOCK, 3 * BLOCK + 5, 100_003):
        ours = Case(made, elements, dtype, on)
        reference = Case(TorchCodec, elements, dtype, "cpu")
        if ours.found() != reference.found():
            raise AssertionError(f"{elements} elements, {dtype}: other largest magnitudes")
        for name in ("message", "fresh", "share", "owner_fresh", "total"):
            mine, theirs = getattr(ours, name).cpu(), getattr(reference, name)
            if not torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)):
                raise AssertionError(f"{elements} elements, {dtype}: other bits in {name}")


def medians(works: dict[str, Callable[[], object]], flush: torch.Tensor) -> dict[str, float]:
    """Microseconds on the device, each in turn, with cold caches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(WARM_UPS + RUNS):
        for name, work in works.items():
            flush.zero_()
            begin.record()
            work()
            end.record()
            end.synchronize()
            if turn >= WARM_UPS:
                taken[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def copy_of(moved: int) -> Callable[[], object]:
    """A copy on the device that reads and writes ``moved`` bytes together."""
    source = torch.zeros(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def ratios(made: Callable[..., Any], flush: torch.Tensor) -> list[dict]:
    """Each kernel against its copy, at all sizes."""
    rows = []
    for size in SIZES_MIB:
        for short, dtype in TYPES.items():
            case = Case(made, size * MIB // dtype.itemsize, dtype, "cuda")
            works = case.kernels()
            works["encode"]()  # the others read its message
            for name, moved in case.bytes_moved().items():
                if name != "dequant_add" and short != "fp32":
                    continue
                median = medians({"work": works[name], "copy": copy_of(moved)}, flush)
                label = name if short == "fp32" else f"{name}_{short}"
                rows.append(
                    {
                        "name": f"policies.gpu_{label}_{size}mib_vs_copy",
                        "ratio": median["work"] / median["copy"],
                        "goal": GOAL,
                        "better": "lower",
                        "value": median["work"],
                        "unit": "us",
                        "against": f"copy of as many bytes on {device()}, same run",
                        "runs": RUNS,
                    }
                )
    return rows


def within_limit(made: Callable[..., Any], short: str, flush: torch.Tensor) -> dict:
    """Bisect for the largest layer whose dequantise and add ends within the limit."""
    dtype = TYPES[short]
    low, high = 0, 64 * MIB // BLOCK  # blocks
    while high - low > 256:
        middle = (low + high) // 2
        case = Case(made, middle * BLOCK, dtype, "cuda")
        case.kernels()["encode"]()
        taken = medians({"work": case.add}, flush)["work"]
        low, high = (middle, high) if taken <= LIMIT_US else (low, middle)
    label = "" if short == "fp32" else f"_{short}"
    return {
        "name": f"policies.gpu_dequant_add{label}_15us_mib",
        "ratio": None,
        "goal": None,
        "better": "higher",
        "value": low * BLOCK * dtype.itemsize / MIB,
        "unit": f"MiB of {short}",
        "against": f"{LIMIT_US:g} us on {device()}: {low * BLOCK} elements",
        "runs": RUNS,
    }


def host_cost(made: Callable[..., Any]) -> dict:
    """What one start costs the host."""
    case = Case(made, MIB, torch.float32, "cuda")
    case.add()
    taken = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        case.add()
        taken.append(time.perf_counter() - begin)
    return {
        "name": "policies.gpu_dequant_add_host_us",
        "ratio": None,
        "goal": None,
        "better": "lower",
        "value": statistics.median(taken) * 1e6,
        "unit": "us",
        "against": "time on the host to start one kernel",
        "runs": RUNS,
    }


def device() -> str:
    """The GPU's name."""
    return torch.cuda.get_device_name()


def run() -> list[dict]:
    """Verify, then measure; [] with a line on stderr where that is not possible."""
    if not torch.cuda.is_available():
        print("policies.gpu: no CUDA device here, nothing is measured", file=sys.stderr)
        return []
    from xtune.policies.compress.triton_codec import TritonCodec

    try:
        TritonCodec(world=1, rank=0, block=BLOCK)
    except ImportError:
        print("policies.gpu: triton is not installed, nothing is measured", file=sys.stderr)
        return []
    for dtype in (*TYPES.values(), torch.float16):
        verify(TritonCodec, dtype, "cuda")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    rows = ratios(TritonCodec, flush)
    rows += [within_limit(TritonCodec, short, flush) for short in TYPES]
    return [*rows, host_cost(TritonCodec)]

"""Where gradients are reduced: on the accelerator that has them, or in host memory.

On the accelerator messages are encoded, summed and decoded by fused kernels and travel over a
process group of its own backend; headers, which every rank must be able to answer, and words stay
on gloo. In host memory all of it is gloo's. Both give the same bits and send as many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

COMPRESSIBLE = (torch.float32, torch.bfloat16, torch.float16)
# Why a rank reduces in host memory, by the number that the ranks compare: the largest holds.
ON_DEVICE, ON_CPU, SCATTERED, BACKEND, MODE, KERNELS = range(6)
REASONS = {
    SCATTERED: "the model is on several devices",
    BACKEND: "the model's process group is of another backend than its device's",
    MODE: "the policy drops or selects elements, which runs there",
    KERNELS: "triton is missing or cannot compile for the device",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """What is known of a model's gradients before the first bucket.

    Attributes:
        on: device on which they are reduced; None: in host memory.
        backend: of the process groups for payload there.
        dtypes: that they have.
        bits: that the policy may ask for.
    """

    on: torch.device | None = None
    backend: str | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    bits: tuple[int, ...] = (4,)

    @property
    def memory(self) -> torch.device:
        """Where messages and residuals lie."""
        return torch.device("cpu") if self.on is None else self.on


def obstacle(
    devices: Sequence[torch.device],
    group: dist.ProcessGroup,
    backend: str | None,
    *,
    block: int,
    selects: bool,
) -> int:
    """Why gradients cannot be reduced where they are; `ON_DEVICE` if they can.

    Args:
        devices: of the trained parameters.
        group: the model's.
        backend: whose collectives work there; None for host memory.
        block: elements that share a scale.
        selects: whether the policy sends single elements.
    """
    if backend is None:
        return ON_CPU
    if len(set(devices)) > 1:
        return SCATTERED
    if not _is_of(group, f"{devices[0].type}:{backend}"):
        return BACKEND
    if selects:
        return MODE
    return ON_DEVICE if _compiles(devices[0], block) else KERNELS


def _is_of(group: dist.ProcessGroup, backend: str) -> bool:
    """Whether a group's backend for a type of device is ``type:backend``."""
    try:
        return backend in dist.get_backend_config(group).split(",")
    except (RuntimeError, ValueError):  # torch does not know the group
        return False


def _compiles(device: torch.device, block: int) -> bool:
    """Whether the kernels run: triton may lack a compiler, or not know the device."""
    from .layout import LayerTable

    table = LayerTable(names=("",), elements=(block,), world=1, block=block, dense_below=0)
    layout = table.layout((0,), (4,))
    try:
        from .triton_codec import TritonCodec

        codec = TritonCodec(world=1, rank=0, block=block)
        message = torch.zeros(layout.payload, dtype=torch.uint8, device=device)
        values = torch.ones(block, device=device)
        codec.encode(layout.places[0], values, None, 1.0, None, message, layout.payload)
    except Exception:  # whatever it was, the kernels for the CPU remain
        return False
    return True


def settle(tensor: Tensor) -> None:
    """Wait for what was started on the current stream of the tensor's device; none on the CPU."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()

"""Gradient norms by layer, logged by a training job.

``norms = LayerNorms(model, "norms-%h-%r.jsonl")``, then ``norms.step()`` after the backward pass
(after clipping and unscaling, where the norms that the optimizer sees are wanted). Every ``every``
steps one fused pass takes the L2 norm and the share of non-zero elements of each parameter's
gradient; the device is waited for once. It never raises into the training job: it stops, says why
once, and counts what it dropped.

What a norm is of: under DistributedDataParallel, compiled or not, the gradient after the
all-reduce, equal on all ranks of its group, so the first of them alone logs. Under FSDP, or with
any other DTensor, each rank logs its own shard (``"scope": "shard"``): squares of shards add up to
the square of the whole. A plain model logs on every rank, since its ranks need not be equal.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ._files import at_once
from .decisions import SIZE_CAP_BYTES, log_path

_LOG = logging.getLogger("xtune")
FORMAT_VERSION = 1
#: Parameters in one line: a reader must be able to hold a line.
LINE_PARAMETERS = 512
#: What wrappers put into names.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class LayerNorms:
    """Logs the gradient norm of each parameter as JSON lines that ``xtune collect`` reads.

    A line is ``{"xtune_layer_gradients": 1, "ts_ns", "job", "run", "rank", "step", "scope",
    "layer": [...], "depth": [...], "elements": [...], "norm": [...], "density": [...]}``; a step
    of more than 512 parameters has several. Norms that are not finite are text. A parameter
    without a gradient is left out.

    Args:
        model: The model, wrapped or not.
        path: File or pattern: ``%h`` is the host, ``%r`` the rank; without ``%r`` the rank is
            added to the name.
        every: Steps between two that are logged.
        job: Job name, None if unknown.
        run: Run of the job, None if unknown.
        rank: Global rank; by default that of ``torch.distributed`` or the launcher's ``RANK``.
        size_cap_bytes: The file never grows past it; what was there before counts.
        clock: Wall-clock time, ns.

    Attributes:
        written: Steps logged.
        dropped: Steps that could not be logged.
        error: Why nothing is written any more, None while it is.
    """

    def __init__(
        self,
        model: nn.Module,
        path: str | Path,
        *,
        every: int = 1,
        job: str | None = None,
        run: str | None = None,
        rank: int | None = None,
        size_cap_bytes: int = SIZE_CAP_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.written = 0
        self.dropped = 0
        self.error: str | None = None
        self.path: Path | None = None
        self._model = model
        self._every = 1
        self._about = {"job": job, "run": run}
        self._cap = size_cap_bytes
        self._clock = clock
        self._steps = 0
        self._size = 0
        self._file: IO[bytes] | None = None
        self._rank: int | None = None
        self._depths: dict[str, float] = {}
        self._quiet = False
        try:
            self._every = max(1, int(every))
            self._rank = _rank() if rank is None else rank
            self._quiet = _is_replica(model)
            self._depths = depths([name for name, _ in _parameters(model)])
            if not self._quiet:
                self.path = log_path(str(path), rank=self._rank)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "ab", buffering=0, opener=at_once)  # noqa: SIM115
                self._size = os.fstat(self._file.fileno()).st_size
        except Exception as error:  # never the training job's loss
            self._fail(error)

    def step(self, step: int | None = None) -> None:
        """Call once an iteration, while the gradients are there.

        Args:
            step: The iteration, any whole number; by default that of calls before this one.
        """
        count, self._steps = self._steps, self._steps + 1
        if self._quiet:
            return
        try:
            number = count if step is None else int(step)
            if number % self._every:
                return
            if self._file is None:
                self.dropped += 1
                return
            with torch.no_grad():
                data = b"".join(self._lines(number))
            if self._size + len(data) > self._cap:
                self.dropped += 1
                return
            if data and self._file.write(data) != len(data):
                raise OSError("a line was written in part: the disk is full")
        except Exception as error:  # an odd gradient, a full disk: never the training job's loss
            self.dropped += 1
            self._fail(error)
            return
        self._size += len(data)
        self.written += bool(data)

    def close(self) -> None:
        """Close the file; later steps are counted as dropped."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._fail(error)

    def _lines(self, step: int) -> Iterator[bytes]:
        found = measure(self._model)
        sharded = any(layer["scope"] == "shard" for layer in found)
        same = {
            "xtune_layer_gradients": FORMAT_VERSION,
            "ts_ns": self._clock(),
            **self._about,
            "rank": self._rank,
            "step": step,
            "scope": "shard" if sharded else "full",
        }
        for start in range(0, len(found), LINE_PARAMETERS):
            part = found[start : start + LINE_PARAMETERS]
            columns = {
                "layer": [layer["layer"] for layer in part],
                "depth": [self._depths.get(layer["layer"]) for layer in part],
                "elements": [layer["elements"] for layer in part],
                "norm": [_plain(layer["norm"]) for layer in part],
                "density": [_plain(layer["density"]) for layer in part],
            }
            line = json.dumps({**same, **columns}, separators=(",", ":"), allow_nan=False)
            yield line.encode("ascii") + b"\n"

    def _fail(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"
        _LOG.warning("xtune: layer norms are not logged any more: %s", self.error)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # the first reason is the one to keep


def measure(model: nn.Module) -> list[dict[str, Any]]:
    """Norm and density of each parameter's gradient; waits for each device once.

    Returns:
        For each parameter with a gradient: ``layer``, ``elements``, ``norm`` (L2), ``density``
        (share of elements that are not zero, None of an empty shard) and ``scope`` (``full``, or
        ``shard`` where the gradient is this rank's part of it). Of a sparse gradient, the elements
        that it does not hold are zero.
    """
    scope_of_plain = "shard" if _is_flattened(model) else "full"
    found: list[dict[str, Any]] = []
    by_device: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
    for name, parameter in _parameters(model):
        gradient = parameter.grad
        if gradient is None:
            continue
        scope = scope_of_plain
        if isinstance(gradient, DTensor):
            gradient = gradient.to_local()
            scope = "shard"
        elements = gradient.numel()
        found.append(
            {"layer": name, "elements": elements, "norm": 0.0, "density": None, "scope": scope}
        )
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        if gradient.numel() == 0:
            found[-1]["density"] = 0.0 if elements else None
            continue
        places, tensors = by_device.setdefault(gradient.device, ([], []))
        places.append(len(found) - 1)
        tensors.append(gradient.detach())
    for places, tensors in by_device.values():
        for place, norm, count in zip(places, *_norms_and_counts(tensors), strict=True):
            found[place]["norm"] = norm
            found[place]["density"] = count / found[place]["elements"]
    return found


def _norms_and_counts(tensors: list[Tensor]) -> tuple[list[float], list[float]]:
    """L2 norms and numbers of non-zero elements of tensors of one device.

    One kernel for all norms, whatever the number of tensors; the norm of half-precision gradients
    is summed in float32, where it does not overflow, and that of 64-bit ones in float64.
    """
    # Numbers of 8 bits have no arithmetic of their own.
    tensors = [t.float() if t.dtype.itemsize == 1 else t for t in tensors]
    real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    is_wide = any(t.dtype == torch.float64 for t in real)
    norms = torch._foreach_norm(real, 2, dtype=torch.float64 if is_wide else torch.float32)
    counts = [torch.count_nonzero(tensor) for tensor in tensors]
    # Counts as float64: float32 cannot tell those of over 16 million elements apart.
    both = torch.cat([torch.stack(list(norms)).double(), torch.stack(counts).double()])
    values: list[float] = both.tolist()
    return values[: len(tensors)], values[len(tensors) :]


def depths(names: list[str]) -> dict[str, float]:
    """Depth of each parameter, 0 at the input to 1 at the head, from the model's own order.

    The parameters of one module (``blocks.3.attn.weight`` and ``.bias``) have one depth; a model
    of a single module has depth 0.
    """
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    last = max(len(modules) - 1, 1)
    at = {module: index / last for index, module in enumerate(modules)}
    return {name: at[name.rpartition(".")[0]] for name in names}


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        for wrapper in _WRAPPERS:
            name = name.replace("." + wrapper, ".").removeprefix(wrapper)
        yield name, parameter


def _is_replica(model: nn.Module) -> bool:
    """Whether another rank has equal gradients and logs them: one of a DDP group is enough."""
    plain = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    return isinstance(plain, DistributedDataParallel) and dist.get_rank(plain.process_group) > 0


def _is_flattened(model: nn.Module) -> bool:
    """Whether gradients are shards without being DTensors, as FSDP1 has them."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def _rank() -> int | None:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    told = os.environ.get("RANK", "")
    return int(told) if told.isdigit() else None


def _plain(value: float | None) -> float | str | None:
    """A number in seven digits; one that JSON does not have as text."""
    if value is None:
        return None
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)

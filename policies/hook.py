"""The DDP communication hook: hands each bucket to the exchange and books what it cost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .compress.bucket import Bucket, LayerPower, Reduced
from .compress.exchange import DENSE, Exchange
from .compress.lanes import Lanes
from .compress.ordered import OrderedQueue
from .plan import Plan
from .steering import Steering

# DDP reduces its first iteration in one layout of buckets, often the whole model in one, and
# rebuilds them for the second; the gradients of these iterations are the least like any other.
# They are reduced uncompressed, in place.
FIRST_STEPS = 2
_MANY_BACKWARDS = 1000  # without handle.step(): it was forgotten, and nothing is regulated
_LOG = logging.getLogger("xtune")


class Iteration:
    """What the reductions of one iteration cost this rank, and what was agreed in it.

    Lanes add to it from threads of their own; nothing depends on which comes first.
    """

    def __init__(self) -> None:
        self.buckets = 0
        self.wire_bytes = 0
        self.dense_bytes_bf16 = 0
        self.dense_bytes_fp32 = 0
        self.wait_s = 0.0
        self.finite = True
        self.failed = False
        self.mean_loss: float | None = None  # of the iteration before
        self.powers: dict[int, LayerPower] = {}  # by layer, where measured
        self._squares: list[float] = []  # of the norms of the reduced buckets
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def add(self, reduced: Reduced) -> None:
        """Count one bucket."""
        with self._lock:
            if reduced.mean_loss is not None:
                self.mean_loss = reduced.mean_loss
            self.buckets += 1
            self.wire_bytes += reduced.wire_bytes
            self.dense_bytes_bf16 += reduced.dense_bytes_bf16
            self.dense_bytes_fp32 += reduced.dense_bytes_fp32
            self.wait_s += reduced.wait_s
            self.finite = self.finite and reduced.finite
            self.failed = self.failed or bool(reduced.failed)
            self.powers.update(reduced.powers)
            self._squares.append(reduced.norm**2)
            self._spans += reduced.spans

    @property
    def norm(self) -> float | None:
        """Norm of the reduced gradients, None where there is none."""
        return math.sqrt(math.fsum(self._squares)) if self.buckets and self.finite else None

    @property
    def transfer_s(self) -> float:
        """Time in which payload was on the wire, on whichever lane."""
        return covered_s(self._spans)


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of some spans of time, in their unit."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


class LossMail:
    """The newest loss, fetched from its device without making anyone wait.

    On an accelerator the copy is asynchronous and is read in the next iteration, when it has long
    been done; if it has not, the loss of that iteration is unknown.
    """

    def __init__(self) -> None:
        self._value: float | None = None
        self._copy: Tensor | None = None
        self._done: Any = None

    def put(self, loss: Tensor | float | None) -> None:
        """Take the loss of the iteration that just ended; what is no number is unknown."""
        self._copy = self._value = None
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
            self._take(loss)

    def _take(self, loss: Tensor | float | None) -> None:
        if isinstance(loss, Tensor):
            scalar = loss.detach()
            scalar = scalar.mean() if scalar.numel() != 1 else scalar.reshape(())
            if scalar.is_cuda:
                self._copy = torch.empty((), dtype=scalar.dtype, pin_memory=True)
                self._copy.copy_(scalar, non_blocking=True)
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._done.record()
            else:
                self._value = float(scalar)
        elif loss is not None:
            self._value = float(loss)

    def read(self) -> float | None:
        """The loss, None where it is unknown or not there yet."""
        if self._copy is not None and self._done.query():
            self._value = float(self._copy)
            self._copy = None
        return self._value


class Lane:
    """One exchange with its thread and, where gradients are on an accelerator, its stream.

    Args:
        exchange: reduces the buckets of this lane.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.queue = OrderedQueue()
        self._staging: Tensor | None = None
        self._stream: Any = None

    def stream(self, device: torch.device) -> Any:
        """What runs beside the backward pass: copies, or kernels and collectives."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._stream

    def host(self, buffer: Tensor) -> Tensor:
        """Pinned memory for a bucket on an accelerator; gloo and the kernels work on the CPU."""
        size = buffer.nbytes
        if self._staging is None or self._staging.numel() < size:
            self._staging = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._staging[:size].view(buffer.dtype)


class GradientHook:
    """State of the hook of one model on one rank.

    Args:
        exchange: reduces the buckets.
        layers: index in the layer table by ``id`` of the parameter.
        group: the model's own process group, for when the engine is detached.
        plan: the first plan.
        shadow: reduce as without us, whatever the plan says.
        loss_scale: current factor of the gradients, from a gradient scaler.
        uneven: whether the model is in DDP's ``join()``, where ranks have different numbers of
            iterations.
        in_place: the exchange reduces buckets on the accelerator that has them; else they are
            copied to the host and back.

    Attributes:
        steering: told of each message, where this rank has a router.
    """

    def __init__(
        self,
        exchange: Exchange | Lanes,
        layers: Mapping[int, int],
        group: dist.ProcessGroup,
        plan: Plan,
        *,
        shadow: bool,
        loss_scale: Callable[[], float] | None = None,
        uneven: Callable[[], bool] = bool,
        in_place: bool = False,
    ) -> None:
        self.exchange = exchange
        self.plan = plan
        self.step = 0
        self.measure = False  # each layer's power in this iteration
        self.loss = LossMail()
        self.iteration = Iteration()
        self.detached = False
        self.steering: Steering | None = None
        self.successor: GradientHook | None = None  # once detached: DDP takes one hook for good
        self._backwards = 0  # since the last iteration ended
        exchanges = exchange.exchanges if isinstance(exchange, Lanes) else (exchange,)
        self._lanes = [Lane(each) for each in exchanges]
        self._opened = False
        self._loss_now: float | None = None
        self._lock = threading.Lock()
        self._layers = layers
        self._group = group
        self._shadow = shadow
        self._loss_scale = loss_scale
        self._uneven = uneven
        self._in_place = in_place

    def close(self) -> None:
        """End the threads once they have done what they were given."""
        for lane in self._lanes:
            lane.queue.close()

    def take(self) -> Iteration:
        """What was reduced since the last call; called between iterations."""
        done, self.iteration = self.iteration, Iteration()
        if self.steering is not None:
            self.steering.end()
        self._backwards = 0
        self._opened = False
        self.exchange.store.end(finite=done.finite)
        if isinstance(self.exchange, Lanes):
            self.exchange.settle()
        return done

    def mode(self) -> str:
        """How this iteration's buckets are reduced."""
        return DENSE if self._shadow or self.step < FIRST_STEPS else self.plan.mode

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Queue one bucket; called by DDP in the order of the buckets, in the backward pass."""
        if self.detached and self.successor is not None:
            return self.successor.reduce(bucket)
        if self.detached:
            return allreduce_hook(self._group, bucket)
        if self._uneven():  # a rank that has run out of inputs takes part in no regulation
            self.exchange.disable("ranks have uneven inputs: DDP's join() is in use")
        buffer: Tensor = bucket.buffer()
        try:
            layers = tuple(self._layers[id(parameter)] for parameter in bucket.parameters())
        except KeyError:
            layers = ()
            self.exchange.broken = "DDP reduces a parameter that the model did not have at attach"
        index: int = bucket.index()
        lane = self._lanes[index % len(self._lanes)]
        step, mode, bits = self.step, self.mode(), self.plan.bits
        if self.steering is not None:
            self.steering.send(buffer.nbytes)

        def reduce(values: Tensor) -> None:
            self._run(lane, Bucket(index=index, layers=layers, buffer=values), step, mode, bits)

        if buffer.is_cuda:
            return self._beside(lane, buffer, reduce)

        def job() -> Tensor:
            reduce(buffer)
            return buffer

        return lane.queue.submit(job)

    def _beside(
        self, lane: Lane, buffer: Tensor, reduce: Callable[[Tensor], None]
    ) -> torch.futures.Future[Tensor]:
        """Queue a bucket that is on an accelerator, on a stream beside the backward pass."""
        device, ready = buffer.device, torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(device))

        def job() -> Tensor:
            stream = lane.stream(device)
            stream.wait_event(ready)
            buffer.record_stream(stream)
            if self._in_place:
                reduce(buffer)
                return buffer
            host = lane.host(buffer)
            host.copy_(buffer, non_blocking=True)
            stream.synchronize()
            reduce(host)
            buffer.copy_(host, non_blocking=True)
            return buffer

        def beside() -> AbstractContextManager[Any]:
            return torch.cuda.stream(lane.stream(device))

        return lane.queue.submit(job, [device], beside)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, or the model from a file, is not attached."""
        return (Unattached, ())

    def _open(self) -> float | None:
        """Before an iteration's first bucket, whichever lane has it: its scale, and the loss."""
        with self._lock:
            if not self._opened:
                if self._loss_scale is not None:
                    self.exchange.store.set_loss_scale(self._loss_scale())
                self._loss_now = self.loss.read()
                self._opened = True
            return self._loss_now

    def _run(
        self, lane: Lane, bucket: Bucket, step: int, mode: str, bits: tuple[int, ...]
    ) -> None:
        loss = None
        try:
            loss = self._open()
        except Exception as error:  # the other ranks hear of it in the header
            lane.exchange.broken = f"the loss scale is unknown: {type(error).__name__}: {error}"
        reduced = lane.exchange.reduce(
            bucket,
            step=step,
            mode=mode,
            bits=bits,
            loss=loss,
            keep_share=self.plan.keep_share,
            measure=self.measure,
        )
        self.iteration.add(reduced)
        if self.steering is not None:
            self.steering.carried()
        self._backwards += bucket.index == 0
        if self._backwards == _MANY_BACKWARDS and self.exchange.channel.rank == 0:
            self._backwards += 1  # said once
            _LOG.warning("xtune: handle.step() is not called, so nothing is compressed")


class Unattached:
    """What a copied or pickled model has in place of the hook: the hook without an engine."""

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Reduce as DDP does."""
        return allreduce_hook(dist.distributed_c10d._get_default_group(), bucket)


def reduce_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """What DDP registers: a plain function with a parameter called ``bucket``, unannotated.

    DDP refuses callable objects, and compares annotations with classes, which annotations kept as
    text are not.
    """
    return state.reduce(bucket)

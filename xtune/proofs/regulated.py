"""The whole engine under a scripted congestion: handle, hook and controller, as a job has them.

Instead of the gradient hook's process group and DDP's buckets there are the local channel and our
own buckets; congestion comes from routing's half of the bus alone, by iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn

from xtune.policies.bus import Bus
from xtune.policies.controller import Controller
from xtune.policies.decisions import DecisionLog
from xtune.policies.handle import Engine, Handle
from xtune.policies.hook import GradientHook
from xtune.policies.plan import Layer
from xtune.policies.spec import Compression, Period, Policy
from xtune.proofs.methods import Buckets
from xtune.proofs.ranks import LocalChannel, build_exchange, layer_table

SCRIPT = (0, 1, 2, 3, 3, 2, 1, 0, 3, 1)  # congestion level in each tenth of the branch
PERIOD = 25  # iterations
_SLOW_LINK_GBPS = 1e-9  # no time measured in this process may look like congestion


def scripted_policy() -> Policy:
    """The default policy, in force from the start of the branch.

    Whether compression pays is not asked: times of this process say nothing of a network.
    """
    compression = Compression(warmup_iterations=0, least_gain=0.0)
    return Policy(name="proof", compression=compression, period=Period(iterations=PERIOD))


def level_at(step: int, steps: int) -> int:
    """Congestion level at an iteration of a branch."""
    return SCRIPT[min(len(SCRIPT) - 1, step * len(SCRIPT) // steps)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _DdpBucket:
    """What the hook reads of torch's ``GradBucket``."""

    place: int
    flat: Tensor
    of: tuple[nn.Parameter, ...]

    def index(self) -> int:
        return self.place

    def buffer(self) -> Tensor:
        return self.flat

    def parameters(self) -> list[nn.Parameter]:
        return list(self.of)


class RegulatedSide:
    """One rank's engine with its regulation.

    Args:
        channel: collectives.
        layers: the model's.
        buckets: layer indices of each bucket.
        parameters: the model's, in the order of ``layers``.
        steps: of the branch, over which the script is stretched.
    """

    def __init__(
        self,
        channel: LocalChannel,
        layers: Sequence[Layer],
        buckets: Buckets,
        parameters: Sequence[nn.Parameter],
        steps: int,
    ) -> None:
        policy = scripted_policy()
        self._bus = Bus()
        self._buckets = buckets
        self._parameters = parameters
        self._steps = steps
        log = DecisionLog()

        def controller() -> Controller:
            return Controller(policy, layers, channel.world, log, bus=self._bus)

        running = controller()
        exchange = build_exchange(channel, layers, policy.compression)
        self._hook = GradientHook(
            exchange,
            {id(parameter): place for place, parameter in enumerate(parameters)},
            cast(dist.ProcessGroup, None),  # for a detached hook alone
            running.begin(0),
            shadow=False,
        )
        engine = Engine(
            hook=self._hook,
            exchange=exchange,
            table=layer_table(layers, policy.compression, channel.world),
            controller=running,
            fresh_controller=controller,
            log=log,
            mode="on",
            link_gbps=_SLOW_LINK_GBPS,
        )
        self.handle = Handle(self._bus, engine, clock=lambda: 0.0)
        self._rungs: dict[str, int] = {}  # iterations under each

    def reduce(self, step: int, buffers: Sequence[Tensor], loss: float | None) -> int:
        """See `Side.reduce`; the handle's step ends the iteration before with its loss."""
        before = self.handle.metrics()["wire_bytes"]
        self._bus.push_routing(level=level_at(step, self._steps))
        rung = str(self.handle.metrics()["rung"])
        self._rungs[rung] = self._rungs.get(rung, 0) + 1
        for index, (layers, buffer) in enumerate(zip(self._buckets, buffers, strict=True)):
            of = tuple(self._parameters[i] for i in layers)
            self._hook.reduce(_DdpBucket(place=index, flat=buffer, of=of)).wait()
        self.handle.step(loss)
        now = self.handle.metrics()
        if now["failed_steps"] or now["off_reason"]:
            raise RuntimeError(f"step {step} was not reduced as planned: {now['off_reason']}")
        return int(now["wire_bytes"] - before)

    def state_dict(self) -> dict[str, Any]:
        """See `Side.state_dict`."""
        return {"handle": self.handle.state_dict(), "rungs": dict(self._rungs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Side.load_state_dict`."""
        self.handle.load_state_dict(state["handle"])
        self._rungs = dict(state["rungs"])

    def about(self) -> dict[str, Any]:
        """See `Side.about`."""
        metrics = self.handle.metrics()
        return {
            "iterations_by_rung": dict(self._rungs),
            "retreats": metrics["retreats"],
            "changes": metrics["changes"],
        }

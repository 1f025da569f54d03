"""What `attach` asks of a model, replicated or sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from .compress.channel import Channel
from .compress.exchange import Exchange
from .compress.hierarchy import Node
from .compress.layout import LayerTable
from .compress.residual import ResidualStore
from .ddp import ReplicatedModel
from .hook import GradientHook
from .plan import Plan
from .spec import Compression
from .traffic import Traffic


class Model(Protocol):
    """What differs between models that are replicated and models that are sharded."""

    ranks: list[int]
    kin: list[int]  # those that the model itself names, whatever the mesh
    group: dist.ProcessGroup
    lanes: int  # exchanges that run side by side

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...] | None:
        """Ranks of each node by their place in ``ranks``; None where there is one level only."""

    @property
    def alone(self) -> bool:
        """Whether there is nothing to reduce."""

    def layers(self) -> list[tuple[str, int]]:
        """Names of the trained parameters and the elements of each, in model order."""

    def uncompressed(self) -> int:
        """Parameters of a type that is never compressed."""

    def peers(self, channel: Channel, node: Node | None) -> int:
        """Ranks between which values are quantised."""

    def traffic(self, node: Node | None, table: LayerTable) -> Traffic | None:
        """What ranks exchange; None for whole layers in DDP's buckets."""

    def exchange(
        self,
        channel: Channel,
        node: Node | None,
        table: LayerTable,
        store: ResidualStore,
        compression: Compression,
    ) -> Exchange:
        """The exchange of the model's gradients."""

    def hook(
        self,
        exchange: Any,
        plan: Plan,
        *,
        shadow: bool,
        loss_scale: Callable[[], float] | None,
    ) -> GradientHook:
        """The hook of this rank, not yet in place."""

    def install(self, hook: Any, node: Node | None) -> None:
        """Put the hook in place."""

    def leave(self, node: Node | None) -> None:
        """The policy is off; do what the model needs all the same."""

    def lasting(self, node: Node | None) -> Channel | None:
        """The channel that is used with the policy off too, None if there is none."""


def fit(model: object, mesh: DeviceMesh | None) -> tuple[Model, ValueError | None]:
    """The model with its mesh; where that is not its, without one, and what is wrong.

    Raises:
        TypeError: it is neither replicated nor sharded.
        ValueError: it is not supported, whatever the mesh.
    """
    try:
        if mesh is not None and not isinstance(mesh, DeviceMesh):
            raise ValueError(f"mesh: {type(mesh).__name__} is no DeviceMesh")
        return _model(model, mesh), None
    except ValueError as error:
        return _model(model, None), error


def _model(model: object, mesh: DeviceMesh | None) -> Model:
    if isinstance(model, DistributedDataParallel):
        return ReplicatedModel(model, mesh)
    if "FSDP" in type(model).__name__:  # what fully_shard makes of a class; else do not import it
        from torch.distributed.fsdp import FSDPModule

        from .fsdp import ShardedModel

        if isinstance(model, FSDPModule):
            return ShardedModel(model, mesh)
    wanted = "a model under fully_shard or in DistributedDataParallel"
    raise TypeError(f"attach wants {wanted}, not {type(model).__name__}")

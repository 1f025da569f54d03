"""What `attach` has to know of a model in ``DistributedDataParallel``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from .allocate import WIDTHS
from .compress.channel import Channel
from .compress.device import COMPRESSIBLE, Gradients, obstacle
from .compress.exchange import Exchange
from .compress.hierarchy import Node, part_table
from .compress.lanes import Lanes
from .compress.layout import LayerTable
from .compress.residual import ResidualStore
from .compress.wire import DENSE_BITS, ddp_buckets
from .hook import GradientHook, reduce_bucket
from .plan import Plan
from .spec import Compression
from .traffic import Traffic


class ReplicatedModel:
    """A model of which every rank has a copy.

    Attributes:
        ranks: that train one model.
        kin: those that the model itself names, whatever the mesh: all of them.
        group: torch's, of these ranks.
        lanes: exchanges that run side by side.
        nodes: ranks of each node by their place in ``ranks``; None where there is one level only.
        backends: whose collectives carry payload where it is, by type of device.
        gradients: where they are reduced; set by `keep_on_device`.

    Args:
        model: the model, wrapped.
        mesh: see `attach`.

    Raises:
        ValueError: ``mesh`` has not two dimensions, or other ranks than the model.
    """

    lanes = 2  # one bucket is encoded while another is on the wire
    backends: ClassVar[Mapping[str, str]] = {"cuda": "nccl"}

    def __init__(self, model: DistributedDataParallel, mesh: DeviceMesh | None) -> None:
        self._model = model
        self.gradients = Gradients()
        self.group: dist.ProcessGroup = model.process_group
        self.ranks = self.kin = dist.get_process_group_ranks(self.group)
        self.nodes: tuple[tuple[int, ...], ...] | None = None
        if mesh is None:
            return
        if mesh.ndim != 2 or sorted(mesh.mesh.flatten().tolist()) != sorted(self.ranks):
            raise ValueError(
                "mesh must have the model's ranks in two dimensions: node, rank of it"
            )
        if 1 not in mesh.mesh.shape:
            place = {rank: index for index, rank in enumerate(self.ranks)}
            rows = mesh.mesh.tolist()
            self.nodes = tuple(tuple(sorted(place[rank] for rank in row)) for row in rows)

    @property
    def alone(self) -> bool:
        """Whether there is nothing to reduce."""
        return len(self.ranks) == 1

    def layers(self) -> list[tuple[str, int]]:
        """Names of the trained parameters, and how many real numbers the gradient of each has.

        DDP hands a complex gradient over as the real numbers it consists of.
        """
        return [
            (name, parameter.numel() * (2 if parameter.is_complex() else 1))
            for name, parameter in self._trained()
        ]

    def obstacle(self, compression: Compression) -> int:
        """Why gradients must go through host memory, as a number; see :mod:`.compress.device`."""
        devices = [parameter.device for _, parameter in self._trained()]
        backend = self.backends.get(devices[0].type) if devices else None
        selects = compression.mode == "drop" or any(r.keep_share < 1 for r in compression.ladder)
        return obstacle(devices, self.group, backend, block=compression.block, selects=selects)

    def keep_on_device(self, compression: Compression) -> None:
        """Reduce gradients where they are, which all ranks can."""
        trained = [parameter for _, parameter in self._trained()]
        device: torch.device = trained[0].device
        bits = {b for rung in compression.ladder for b in (rung.bits_input, rung.bits_head)}
        if compression.allocation == "norms":
            bits |= set(WIDTHS)
        self.gradients = Gradients(
            on=device,
            backend=self.backends[device.type],
            dtypes=tuple(d for d in COMPRESSIBLE if any(p.dtype == d for p in trained)),
            bits=tuple(sorted(b for b in bits if b < DENSE_BITS)),
        )

    def _trained(self) -> list[tuple[str, Any]]:
        ignored = set(getattr(self._model, "parameters_to_ignore", ()))
        return [
            (name, parameter)
            for name, parameter in self._model.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]

    def uncompressed(self) -> int:
        """Parameters of a type that is never compressed."""
        return sum(parameter.dtype == torch.float64 for _, parameter in self._trained())

    def peers(self, channel: Channel, node: Node | None) -> int:
        """Ranks between which values are quantised."""
        return channel.world if node is None else node.across.world

    def traffic(self, node: Node | None, table: LayerTable) -> Traffic | None:
        """What ranks exchange; None for whole layers in DDP's buckets."""
        if node is None:
            return None
        part = part_table(table, places=node.inside.world, nodes=node.across.world)
        return Traffic(
            elements=part.elements,
            messages=tuple(map(tuple, ddp_buckets(table.elements))),
            world=part.world,
            dense_below=part.dense_below,
        )

    def exchange(
        self,
        channel: Channel,
        node: Node | None,
        table: LayerTable,
        store: ResidualStore,
        compression: Compression,
    ) -> Exchange:
        """The exchange of this model's gradients."""
        return Exchange(
            channel,
            table,
            store,
            keep_share=compression.drop_keep_share,
            node=node,
            shared_gain=compression.residual_decay_shared,
            seeded=compression.selection == "seeded",
            gradients=self.gradients,
        )

    def hook(
        self,
        exchange: Exchange | Lanes,
        plan: Plan,
        *,
        shadow: bool,
        loss_scale: Callable[[], float] | None,
    ) -> GradientHook:
        """The hook of this rank, not yet in place."""
        model = weakref.ref(self._model)  # the model holds the hook

        def uneven() -> bool:
            return bool(getattr(getattr(model(), "_join_config", None), "enable", False))

        return GradientHook(
            exchange,
            {id(parameter): place for place, (_, parameter) in enumerate(self._trained())},
            self.group,
            plan,
            shadow=shadow,
            loss_scale=loss_scale,
            uneven=uneven,
            in_place=self.gradients.on is not None,
        )

    def install(self, hook: GradientHook, _node: Node | None) -> None:
        """Put the hook in place, or behind one of ours that is detached.

        Raises:
            RuntimeError: another one is there.
        """
        placed = (state for _, state in getattr(self._model, "_comm_hooks", ()))
        former = next((state for state in placed if isinstance(state, GradientHook)), None)
        if former is not None and (former.successor or former).detached:
            former.successor = hook
        else:
            self._model.register_comm_hook(hook, reduce_bucket)

    def leave(self, _node: Node | None) -> None:
        """The policy is off: DDP reduces as ever."""

    def lasting(self, _node: Node | None) -> None:
        """The channel that is used with the policy off too: none, DDP has a group of its own."""

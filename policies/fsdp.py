"""FSDP2: the reduce-scatter of each module under ``fully_shard`` goes to the exchange.

FSDP calls it in the backward pass, module by module in one order on all ranks, and needs the
result on return: so all collectives run on the calling thread, and the backward pass waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from .compress.channel import Channel
from .compress.exchange import DENSE
from .compress.hierarchy import Node
from .compress.layout import LayerTable
from .compress.residual import ResidualStore
from .compress.scatter import Shards, shard_table
from .compress.scatter_exchange import ScatterExchange
from .compress.wire import scatter_dense_below
from .hook import GradientHook
from .plan import Plan
from .spec import Compression
from .traffic import Traffic

_LOG = logging.getLogger("xtune")
_MOST_SUMS = 1 << 14  # sums of sizes looked at to find which parameters a call holds
Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Parameters that FSDP reduces in one call."""

    group: Any  # FSDP's
    module: Any  # an FSDPModule that has them
    shards: dict[str, int]  # elements of each one's shard, padded, in FSDP's order


class ShardedModel:
    """What `attach` has to know of a model under ``fully_shard``.

    Attributes:
        ranks: that train one model, ascending.
        kin: those that the model itself names, whatever the mesh, ascending.
        lanes: FSDP waits for each module, so one.
        group: torch's, of the ranks that a parameter is spread over.
        replicated: torch itself sums over replicas afterwards.

    Args:
        model: the root; its modules may be sharded by themselves.
        mesh: see `attach`.

    Raises:
        ValueError: the model is not sharded in a way that is supported, or ``mesh`` is not its.
    """

    lanes = 1

    def __init__(self, model: FSDPModule, mesh: DeviceMesh | None) -> None:
        assert isinstance(model, nn.Module)  # which its type does not say
        self._groups = _parameter_groups(model)
        if not self._groups:
            raise ValueError("the model has no sharded parameter to train")
        sizes = {name: size for group in self._groups for name, size in group.shards.items()}
        named = model.named_parameters()
        trained = [(name, p) for name, p in named if name in sizes]
        self._layers = [(name, p.numel()) for name, p in trained]
        self._wide = sum(p.dtype == torch.float64 for _, p in trained)
        self._shards = {name: sizes[name] for name, _ in self._layers}
        info = self._groups[0].group.mesh_info
        meshes = [group.group.mesh_info.mesh.mesh for group in self._groups]
        if any(not torch.equal(meshes[0], other) for other in meshes) or len(meshes[0].shape) > 2:
            raise ValueError(
                "all parameters must be sharded over one mesh of one or two dimensions"
            )
        if info.shard_mesh_dim is None:
            raise ValueError("the model is replicated and not sharded: use DDP")
        self.group: dist.ProcessGroup = info.shard_process_group
        shard = sorted(dist.get_process_group_ranks(self.group))
        self._width = len(shard)
        self.replicated = meshes[0].ndim == 2
        if self.replicated:
            self._rows = (meshes[0].T if info.shard_mesh_dim == 0 else meshes[0]).tolist()
        elif mesh is None:
            self._rows = [shard]
        else:
            self._rows = mesh.mesh.tolist()
            if mesh.ndim != 2 or shard not in [sorted(row) for row in self._rows]:
                raise ValueError("mesh must be (node, rank of it), a model's shards in each row")
            if self._width == 1 and len(self._rows) > 1:
                raise ValueError("with one rank a node nothing is sharded: use DDP")
        self.ranks = sorted(rank for row in self._rows for rank in row)
        self.kin = self.ranks if self.replicated else shard

    @property
    def alone(self) -> bool:
        """Whether FSDP never reduces and scatters."""
        return self._width == 1

    @property
    def nodes(self) -> Nodes | None:
        """The ranks of each copy of the parameters by their place in ``ranks``; None if one."""
        if len(self._rows) == 1:
            return None
        place = {rank: index for index, rank in enumerate(self.ranks)}
        return tuple(tuple(sorted(place[rank] for rank in row)) for row in self._rows)

    def layers(self) -> list[tuple[str, int]]:
        """Names of the trained parameters and the elements of each, in model order."""
        return self._layers

    def uncompressed(self) -> int:
        """Parameters of a type that is never compressed."""
        return self._wide

    def peers(self, _channel: Channel, node: Node | None) -> int:
        """Ranks between which values are quantised."""
        return self._width if node is None or self.replicated else node.across.world

    def traffic(self, node: Node | None, table: LayerTable) -> Traffic:
        """What ranks exchange: shards, in a message for each module."""
        place = {name: i for i, (name, _) in enumerate(self._layers)}
        shards = Traffic(
            elements=tuple(self._shards[name] for name in place),
            messages=tuple(tuple(place[name] for name in each.shards) for each in self._groups),
            world=self._width,
            dense_below=table.dense_below,
            scatters=True,
            replicas=len(self._rows) if self.replicated else 1,
        )
        if node is None or self.replicated:
            return shards
        small = scatter_dense_below(table.dense_below, self._width, table.block)
        return replace(shards, world=node.across.world, dense_below=small, scatters=False)

    def exchange(
        self,
        channel: Channel,
        node: Node | None,
        table: LayerTable,
        store: ResidualStore,
        compression: Compression,
    ) -> ScatterExchange:
        """The exchange of this model's gradients.

        Raises:
            ValueError: the policy asks for what a reduce-scatter cannot do.
        """
        if compression.mode == "drop" or any(r.keep_share < 1 for r in compression.ladder):
            raise ValueError("a sharded model's gradients are quantised: no drop, no keep_share")
        between = None if self.replicated else node
        part = shard_table(
            tuple(self._shards),
            tuple(self._shards.values()),
            spread=self._width,
            world=1 if between is None else between.across.world,
            block=table.block,
            dense_below=table.dense_below,
        )
        if self.replicated and channel.rank == 0:
            _LOG.warning(
                "xtune: torch's own all-reduce between the model's replicas stays uncompressed; "
                "to compress it, shard over the ranks of a node only and give attach() the mesh"
            )
        return ScatterExchange(
            channel,
            channel if node is None else node.inside,
            table,
            part,
            store,
            node=between,
        )

    def hook(
        self,
        exchange: ScatterExchange,
        plan: Plan,
        *,
        shadow: bool,
        loss_scale: Callable[[], float] | None,
    ) -> ScatterHook:
        """The hook of this rank, not yet in place."""
        return ScatterHook(exchange, self.group, plan, shadow=shadow, loss_scale=loss_scale)

    def install(self, hook: ScatterHook | None, node: Node | None) -> None:
        """Put the hook in place of each module's reduce-scatter, or of an earlier hook.

        Args:
            hook: None: reduce as FSDP does.
            node: where this rank stands, None where there is one copy of the parameters.

        Raises:
            RuntimeError: a policy is at work in the model.
        """
        if self._at_work():
            raise RuntimeError("another policy is attached to this model: detach() it first")
        across, former = self.lasting(node), self._across()
        places = {name: place for place, name in enumerate(self._shards)}
        for index, held in enumerate(self._groups):
            shards = {places[name]: size for name, size in held.shards.items()}
            reducer = ModuleReducer(held.group, index, shards, hook, across)
            held.module.set_custom_reduce_scatter(reducer)
        for channel in former - {across}:
            channel.close()

    def lasting(self, node: Node | None) -> Channel | None:
        """The channel that is used with the policy off too, until the next hook is in place."""
        return None if node is None or self.replicated else node.across

    def _across(self) -> set[Channel]:
        """What the reducers that are in place average over nodes by."""
        return {found.across for found in self._placed() if found.across is not None}

    def _at_work(self) -> bool:
        return any(found.at_work for found in self._placed())

    def _placed(self) -> list[ModuleReducer]:
        """Ours that are in place."""
        placed = [held.group._reduce_scatter_comm for held in self._groups]
        return [found for found in placed if isinstance(found, ModuleReducer)]

    def leave(self, node: Node | None) -> None:
        """The policy is off: FSDP reduces as ever, and nodes must still be kept in step.

        Raises:
            ValueError: they cannot be, for the ranks do not agree on what they are.
        """
        if len(self._rows) > 1 and not self.replicated and not self._at_work():
            if node is None:
                raise ValueError("the ranks differ in mesh: their weights would drift apart")
            self.install(None, node)


class ScatterHook(GradientHook):
    """State of the hook of one sharded model on one rank.

    Args:
        exchange: reduces and scatters.
        group: torch's, of the ranks that a parameter is spread over.
        plan: the first plan.
        shadow: reduce as without us, whatever the plan says.
        loss_scale: current factor of the gradients, from a gradient scaler.
    """

    def __init__(
        self,
        exchange: ScatterExchange,
        group: dist.ProcessGroup,
        plan: Plan,
        *,
        shadow: bool,
        loss_scale: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(exchange, {}, group, plan, shadow=shadow, loss_scale=loss_scale)
        self._pinned: dict[str, Tensor] = {}
        self._said_unused = False

    def mode(self) -> str:
        """How this iteration's gradients are reduced; FSDP, unlike DDP, rebuilds nothing."""
        return DENSE if self._shadow else self.plan.mode

    def scatter(
        self, output: Tensor, whole: Tensor, index: int, layers: tuple[int, ...] | None, **how: Any
    ) -> None:
        """Reduce one call's gradients.

        Args:
            output: receives this rank's shard.
            whole: a chunk for each rank.
            index: of the module.
            layers: in the order of a chunk; None where it cannot be told which they are.
            how: what else `Shards` wants.
        """
        mode = self.mode()
        if layers is None and mode != DENSE:
            mode = DENSE
            self._say_unused()
        chunks, shard = self._on_host("whole", whole), self._on_host("shard", output)
        if whole.is_cuda:
            chunks.copy_(whole, non_blocking=True)
            torch.cuda.current_stream(whole.device).synchronize()
        if self.steering is not None:
            self.steering.send(whole.nbytes)
        bucket = Shards(index=index, layers=layers or (), buffer=shard, whole=chunks, **how)
        self._run(self._lanes[0], bucket, self.step, mode, self.plan.bits)
        if shard is not output:
            output.copy_(shard, non_blocking=True)

    def _on_host(self, role: str, values: Tensor) -> Tensor:
        """The tensor, or pinned memory for it; gloo and the kernels work on the CPU."""
        if not values.is_cuda:
            return values
        held = self._pinned.get(role)
        if held is None or held.numel() < values.nbytes:
            held = torch.empty(values.nbytes, dtype=torch.uint8, pin_memory=True)
            self._pinned[role] = held
        return held[: values.nbytes].view(values.dtype)

    def _say_unused(self) -> None:
        if not self._said_unused and self.exchange.channel.rank == 0:
            _LOG.warning(
                "xtune: some parameters of a module have no gradient, and which cannot be told; "
                "it stays uncompressed: call set_reduce_scatter_unused_params(True) on the model"
            )
        self._said_unused = True


class ModuleReducer:
    """What stands in for the reduce-scatter of one module.

    Attributes:
        across: see below.

    Args:
        group: FSDP's group of parameters.
        index: of the module.
        shards: elements of the shard of each layer, in FSDP's order.
        hook: None: reduce as FSDP does.
        across: where nobody else averages over the nodes.
    """

    def __init__(
        self,
        group: Any,
        index: int,
        shards: Mapping[int, int],
        hook: ScatterHook | None,
        across: Channel | None,
    ) -> None:
        found = group._reduce_scatter_comm
        self._torch: Any = found._torch if isinstance(found, ModuleReducer) else found
        self._group = group
        self._index = index
        self._shards = shards
        self._hook = hook
        self.across = across
        self._known: dict[int, tuple[int, ...] | None] = {}

    @property
    def at_work(self) -> bool:
        """Whether a policy reduces."""
        return self._hook is not None and not self._hook.detached

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a call, as FSDP would take it."""
        memory: Tensor = self._torch.allocate(size, dtype=dtype, device=device)
        return memory

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce and scatter; done on return, whatever ``async_op``, which FSDP never sets."""
        hook = self._hook
        if hook is None or not self.at_work:
            self._uncompressed(output_tensor, input_tensor, group, op)
            return
        count = output_tensor.numel()
        if count not in self._known:
            self._known[count] = layers_of(self._shards, count)
        layers = self._known[count]
        if layers == ():
            hook.exchange.broken = "FSDP reduces a parameter that was not trained at attach"
        info, replicas = self._group.mesh_info, 1
        if info.replicate_mesh_dim is not None and self._group.all_reduce_grads:
            replicas = info.replicate_mesh_size
        hook.scatter(output_tensor, input_tensor, self._index, layers, op=op, replicas=replicas)

    def _uncompressed(
        self, output: Tensor, whole: Tensor, group: dist.ProcessGroup, op: Any
    ) -> None:
        self._torch(output_tensor=output, input_tensor=whole, group=group, op=op)
        if self.across is not None:
            shard = output.cpu()  # itself, if it is there
            self.across.all_reduce_mean(shard)
            if shard is not output:
                output.copy_(shard)


def layers_of(shards: Mapping[int, int], elements: int) -> tuple[int, ...] | None:
    """Which layers a shard of so many elements holds: FSDP leaves out those without a gradient.

    Args:
        shards: elements of each layer of the module.
        elements: of the call.

    Returns:
        In the order of ``shards``; () if no selection has that size, None if several have.
    """
    if elements == sum(shards.values()):
        return tuple(shards)
    sums: dict[int, tuple[int, ...] | None] = {0: ()}
    for layer, size in shards.items():
        longer = {
            total + size: chosen for total, chosen in sums.items() if total + size <= elements
        }
        for total, chosen in longer.items():
            sums[total] = None if chosen is None or total in sums else (*chosen, layer)
        if len(sums) > _MOST_SUMS:
            return None
    return sums.get(elements, ())


def _parameter_groups(model: nn.Module) -> list[_Group]:
    """Those that are trained, in the order of the modules; a group can have several modules."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[int, _Group] = {}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:
            shards = {
                names[id(p.sharded_param)]: p.padded_sharded_param_size.numel()
                for p in group.fsdp_params
                if p.sharded_param.requires_grad
            }
            if shards:
                found.setdefault(id(group), _Group(group=group, module=module, shards=shards))
    return list(found.values())

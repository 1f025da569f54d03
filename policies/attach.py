"""Put a policy on a model: ``handle = attach(model, policy=...)``.

All ranks compare mode, policy and model before anything changes. Any difference, or one rank that
cannot start, turns every rank off with one line: ranks must never differ in what they send.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from .bus import Bus
from .compress.channel import Channel, gather_into
from .compress.device import ON_CPU, ON_DEVICE, REASONS, Gradients
from .compress.exchange import Exchange
from .compress.header import SCHEMA
from .compress.hierarchy import Node
from .compress.lanes import Lanes
from .compress.layout import LayerTable
from .compress.residual import DTYPES, ResidualStore
from .controller import Controller, Layer
from .ddp import ReplicatedModel
from .decisions import DecisionLog
from .handle import Engine, Handle
from .hook import GradientHook
from .plan import Plan, residual_decays
from .presets import preset
from .spec import Compression, Policy, loads

if TYPE_CHECKING:
    from torch.distributed import fsdp

_LOG = logging.getLogger("xtune")
MODES = ("off", "shadow", "on")
_UNFIT = -1  # in place of a mesh
_DIGEST_DIGITS = 15  # hex digits of the policy's SHA-256 that fit a signed 64-bit integer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    policy: Policy | str | Path | None
    bus: Bus
    job: str | None
    loss_scale: Callable[[], float] | None
    link_gbps: float | None
    environ: Mapping[str, str]


class Model(Protocol):
    """What differs between models that are replicated and models that are sharded."""

    ranks: list[int]
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


def attach(
    model: DistributedDataParallel | fsdp.FSDPModule,
    *,
    policy: Policy | str | Path | None = None,
    bus: Bus | None = None,
    job: str | None = None,
    scaler: Any = None,
    link_gbps: float | None = None,
    mesh: DeviceMesh | None = None,
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.perf_counter,
) -> Handle:
    """Reduce a model's gradients by a policy; call it on every rank, before the first iteration.

    ``XTUNE_POLICY=off`` disables it, ``shadow`` decides and logs but changes nothing;
    ``XTUNE_DECISIONS=FILE`` logs decisions.

    Args:
        model: in ``DistributedDataParallel``, or its modules and itself under FSDP2's
            ``fully_shard``; on the CPU or on accelerators.
        policy: a policy, a preset's name or the path of a ``policy.json``; default ``joint``.
        bus: shared with a router; a new one by default.
        job: name for the decision log.
        scaler: the ``GradScaler`` in use, so that residuals follow a change of its scale.
        link_gbps: this rank's share of the network in 1e9 bit/s; without it the fastest transfers
            seen stand for a clear network.
        mesh: the model's ranks as (node, rank of the node), for jobs of many nodes: gradients are
            summed inside a node, which is cheap, and quantised between nodes only. Byte counts
            are then those that leave the node. The same on every rank. A model under
            ``fully_shard`` has to be sharded over the ranks of its node, from equal weights on
            every node: its gradients are averaged over the nodes here, also while the policy is
            off.
        environ: where the ``XTUNE_`` variables come from.
        clock: seconds, monotonic.

    Returns:
        The handle; inert where the policy is off.

    Raises:
        TypeError: ``model`` is neither of both.
        ValueError: ``mesh`` is not the model's, or its sharding is not supported.
    """
    try:
        found = _model(model, mesh)
    except ValueError:
        _tell_unfit(model)
        raise
    ranks = found.ranks
    options = _Options(
        policy=policy,
        bus=Bus() if bus is None else bus,
        job=job,
        loss_scale=None if scaler is None else scaler.get_scale,
        link_gbps=link_gbps,
        environ=environ,
    )
    if found.alone:
        return Handle(options.bus, None, reason="a single rank sends nothing", clock=clock)
    timeout = _timeout(found.group)
    group = _group(ranks, timeout)
    shape = zlib.crc32(repr(found.nodes).encode())
    word = [shape, _obstacle(found, options), _lanes(found, options)]
    shapes, obstacles, lanes = zip(*_gather(group, word), strict=True)
    if len(set(shapes)) > 1:
        if dist.get_rank(group) == 0:
            _LOG.warning("xtune: off on every rank: the ranks differ in mesh")
        found.leave(None)
        return Handle(options.bus, None, reason="the ranks differ in mesh", clock=clock)
    gradients = _gradients(found, options, max(obstacles), say=dist.get_rank(group) == 0)
    count = found.lanes if gradients.on is None else min(lanes)
    groups = [group] + [_group(ranks, timeout) for _ in range(1, count)]
    nodes = [_node(found.nodes, ranks, timeout, clock, gradients) for _ in groups]
    node = nodes[0]
    per_node = node.inside.world if node else 1
    channels = [
        Channel(
            each,
            clock=clock,
            per_node=per_node,
            payload=_payload(ranks, timeout, gradients),
        )
        for each in groups
    ]
    _connect(channels, nodes, gradients)
    engine, problem = None, None
    mode = environ.get("XTUNE_POLICY", "on") or "on"
    word = [SCHEMA, MODES.index(mode) if mode in MODES else len(MODES), 0, 0, 1]
    try:
        if mode not in MODES:
            raise ValueError(f"XTUNE_POLICY={mode!r} is not one of {', '.join(MODES)}")
        if mode != "off":
            engine = _build(found, gradients, channels, nodes, mode, options)
            digest = engine.controller.policy.digest()
            word[2] = int(digest[:_DIGEST_DIGITS], 16)
            word[3] = engine.table.digest()
    except Exception as error:  # the other ranks are waiting to hear of it
        problem = f"{type(error).__name__}: {error}"
        word[4] = 0
    reason = _disagreement(_gather(group, word))
    if reason is None and engine is not None:
        try:
            found.install(engine.hook, node)
        except Exception as error:  # another hook is there
            problem = f"{type(error).__name__}: {error}"
        failed = [rank for rank, (ok,) in enumerate(_gather(group, [int(not problem)])) if not ok]
        if failed:
            reason = f"{_ranks(failed)} cannot start"
    if problem is not None:
        _LOG.warning("xtune: rank %d cannot start: %s", channels[0].rank, problem)
    if reason is not None:
        if channels[0].rank == 0:
            _LOG.warning("xtune: off on every rank: %s", reason)
        if engine is not None:
            engine.hook.detached = True
            engine.log.close()
        found.leave(node)
        return Handle(options.bus, None, reason=reason, clock=clock)
    if engine is None:
        found.leave(node)
        return Handle(options.bus, None, reason="XTUNE_POLICY=off", clock=clock)
    return Handle(options.bus, engine, clock=clock)


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


def _tell_unfit(model: object) -> None:
    """Join the other ranks' first comparison with what none of them has, and so turn them off."""
    if isinstance(model, DistributedDataParallel):
        found = ReplicatedModel(model, None)
        if not found.alone:
            _gather(_group(found.ranks, _timeout(found.group)), [_UNFIT, 0, 0])


def _build(
    model: Model,
    gradients: Gradients,
    channels: Sequence[Channel],
    nodes: Sequence[Node | None],
    mode: str,
    options: _Options,
) -> Engine:
    policy = _policy(options.policy)
    compression = policy.compression
    named = model.layers()
    if not named:
        raise ValueError("the model has no parameter to train")
    last = max(1, len(named) - 1)
    layers = [
        Layer(name=name, elements=count, depth=place / last)
        for place, (name, count) in enumerate(named)
    ]
    table = LayerTable(
        names=tuple(layer.name for layer in layers),
        elements=tuple(layer.elements for layer in layers),
        world=channels[0].world,
        block=compression.block,
        dense_below=compression.dense_below_elements,
    )
    store = ResidualStore(
        decay=residual_decays(layers, compression),
        enabled=compression.error_feedback,
        dtype=DTYPES[compression.residual_dtype],
        limit=compression.residual_limit,
        device=gradients.on,
    )
    stores = [store] + [store.branch() for _ in channels[1:]]
    exchanges = [
        model.exchange(channel, node, table, kept, compression)
        for channel, node, kept in zip(channels, nodes, stores, strict=True)
    ]
    exchange = exchanges[0] if len(exchanges) == 1 else Lanes(exchanges)
    if mode == "on" and compression.mode == "quantise":
        exchange.quantised.warm_up()
    path = options.environ.get("XTUNE_DECISIONS") or None
    log = DecisionLog(path, rank=dist.get_rank(), job=options.job, shadow=mode == "shadow")

    peers = model.peers(channels[0], nodes[0])

    def controller() -> Controller:
        return Controller(policy, layers, peers, log, bus=options.bus)

    running = controller()
    if channels[0].rank == 0:
        _say_what_is_left_out(running, model)
    hook = model.hook(
        exchange, running.begin(0), shadow=mode == "shadow", loss_scale=options.loss_scale
    )
    return Engine(
        hook=hook,
        exchange=exchange,
        table=table,
        controller=running,
        fresh_controller=controller,
        log=log,
        mode=mode,
        link_gbps=options.link_gbps,
    )


def _say_what_is_left_out(controller: Controller, model: Model) -> None:
    useless = controller.useless_rungs()
    if useless:
        _LOG.warning(
            "xtune: for these layers and ranks, rung %s would send no less than bf16, which is "
            "sent instead",
            ", ".join(useless),
        )
    wide = model.uncompressed()
    if wide:
        _LOG.warning("xtune: %d parameters in float64 stay uncompressed", wide)


def _obstacle(found: Model, options: _Options) -> int:
    """Why this rank's gradients go through host memory, as a number that ranks compare."""
    if not isinstance(found, ReplicatedModel) or options.environ.get("XTUNE_POLICY") == "off":
        return ON_CPU
    try:
        compression = _policy(options.policy).compression
    except Exception:  # said where the policy is read to be used
        return ON_CPU
    return found.obstacle(compression)


def _gradients(found: Model, options: _Options, worst: int, *, say: bool) -> Gradients:
    """Where all ranks reduce, by the largest of their numbers."""
    if worst in REASONS and say:
        _LOG.warning("xtune: gradients are compressed in host memory: %s", REASONS[worst])
    if worst == ON_DEVICE and isinstance(found, ReplicatedModel):
        found.keep_on_device(_policy(options.policy).compression)
        return found.gradients
    return Gradients()


def _lanes(found: Model, options: _Options) -> int:
    """Exchanges that this rank may run side by side on an accelerator.

    Where all its streams share one queue, what stands in there behind one lane's collective would
    hold up the other lane's, and ranks need not start them in one order.
    """
    return 1 if options.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1" else found.lanes


def _connect(
    channels: Sequence[Channel], nodes: Sequence[Node | None], gradients: Gradients
) -> None:
    """Open all connections for payload on an accelerator, in one order on every rank."""
    if gradients.on is None:
        return
    for channel, node in zip(channels, nodes, strict=True):
        for each in [channel] if node is None else [channel, node.inside, node.across]:
            each.connect(gradients.on)


def _node(
    nodes: tuple[tuple[int, ...], ...] | None,
    ranks: Sequence[int],
    timeout: timedelta | None,
    clock: Callable[[], float],
    gradients: Gradients,
) -> Node | None:
    """Where this rank stands among the nodes, with groups of its own."""
    if nodes is None:
        return None
    mine = ranks.index(dist.get_rank())
    row = next(row for row in nodes if mine in row)
    column = [other[row.index(mine)] for other in nodes]

    def channel(part: Sequence[int]) -> Channel:
        members = [ranks[i] for i in part]
        payload = _payload(members, timeout, gradients)
        return Channel(_group(members, timeout), clock=clock, payload=payload)

    return Node(inside=channel(row), across=channel(column), ranks=nodes)


def _payload(
    ranks: Sequence[int], timeout: timedelta | None, gradients: Gradients
) -> dist.ProcessGroup | None:
    """A group for payload that does not go over gloo with the rest."""
    return None if gradients.backend is None else _group(ranks, timeout, gradients.backend)


def _group(
    ranks: Sequence[int], timeout: timedelta | None, backend: str = "gloo"
) -> dist.ProcessGroup:
    """A group of our own, in the order of ``ranks``."""
    group = dist.new_group(
        list(ranks), backend=backend, timeout=timeout, use_local_synchronization=True
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long the model's own collectives wait for a rank; None, torch's default, if unknown."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return max(backend.options._timeout for backend in backends)
    except (AttributeError, RuntimeError, ValueError):  # a backend without options
        return None


def _policy(policy: Policy | str | Path | None) -> Policy:
    if policy is None:
        return preset("joint")
    if isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith(".json")):
        return loads(Path(policy).read_bytes())
    if not isinstance(policy, str | Policy):
        raise TypeError(f"policy: {type(policy).__name__} is no policy, preset or path")
    return preset(policy) if isinstance(policy, str) else policy


def _gather(group: dist.ProcessGroup, word: Sequence[int]) -> list[list[int]]:
    """Every rank's word, in rank order."""
    mine = torch.tensor(word, dtype=torch.int64)
    everyone = torch.empty(dist.get_world_size(group) * len(word), dtype=torch.int64)
    gather_into(everyone, mine, group=group)
    rows: list[list[int]] = everyone.view(-1, len(word)).tolist()
    return rows


def _disagreement(words: Sequence[Sequence[int]]) -> str | None:
    """Why all ranks must be off, None if they agree."""
    unable = [rank for rank, word in enumerate(words) if not word[4]]
    if unable:
        return f"{_ranks(unable)} cannot start"
    for place, what in ((0, "version"), (1, "mode (XTUNE_POLICY)"), (2, "policy"), (3, "model")):
        other = [rank for rank, word in enumerate(words) if word[place] != words[0][place]]
        if other:
            return f"{_ranks(other)} and rank 0 differ in {what}"
    return None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"

"""Put a policy on a model: ``handle = attach(ddp_model, policy=...)``.

All ranks compare mode, policy and model before anything changes. Any difference, or one rank that
cannot start, turns every rank off with one line: ranks must never differ in what they send.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from .bus import Bus
from .compress.channel import Channel, gather_into
from .compress.exchange import Exchange
from .compress.header import SCHEMA
from .compress.hierarchy import Node
from .compress.layout import LayerTable
from .compress.residual import DTYPES, ResidualStore
from .controller import Controller, Layer
from .decisions import DecisionLog
from .handle import Engine, Handle
from .hook import GradientHook, reduce_bucket
from .plan import residual_decays
from .presets import preset
from .spec import Policy, loads

_LOG = logging.getLogger("xtune")
MODES = ("off", "shadow", "on")
_DIGEST_DIGITS = 15  # hex digits of the policy's SHA-256 that fit a signed 64-bit integer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    policy: Policy | str | Path | None
    bus: Bus
    job: str | None
    loss_scale: Callable[[], float] | None
    link_gbps: float | None
    environ: Mapping[str, str]
    nodes: tuple[tuple[int, ...], ...] | None


def attach(
    ddp_model: DistributedDataParallel,
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
        ddp_model: the model, wrapped, on the CPU or on accelerators.
        policy: a policy, a preset's name or the path of a ``policy.json``; default ``joint``.
        bus: shared with a router; a new one by default.
        job: name for the decision log.
        scaler: the ``GradScaler`` in use, so that residuals follow a change of its scale.
        link_gbps: this rank's share of the network in 1e9 bit/s; without it the fastest transfers
            seen stand for a clear network.
        mesh: the model's ranks as (node, rank of the node), for jobs of many nodes: gradients are
            summed inside a node, which is cheap, and quantised between nodes only. Byte counts
            are then those that leave the node. The same on every rank.
        environ: where the ``XTUNE_`` variables come from.
        clock: seconds, monotonic.

    Returns:
        The handle; inert where the policy is off.

    Raises:
        TypeError: ``ddp_model`` is not a ``DistributedDataParallel``.
        ValueError: ``mesh`` has not two dimensions, or other ranks than the model.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise TypeError(f"attach wants a DistributedDataParallel, not {type(ddp_model).__name__}")
    ranks = dist.get_process_group_ranks(ddp_model.process_group)
    options = _Options(
        policy=policy,
        bus=Bus() if bus is None else bus,
        job=job,
        loss_scale=None if scaler is None else scaler.get_scale,
        link_gbps=link_gbps,
        environ=environ,
        nodes=_nodes(mesh, ranks),
    )
    if len(ranks) == 1:
        return Handle(options.bus, None, reason="a single rank sends nothing", clock=clock)
    timeout = _timeout(ddp_model.process_group)
    group = _group(ranks, timeout)
    shape = zlib.crc32(repr(options.nodes).encode())
    if len({tuple(word) for word in _gather(group, [shape])}) > 1:
        if dist.get_rank(group) == 0:
            _LOG.warning("xtune: off on every rank: the ranks differ in mesh")
        return Handle(options.bus, None, reason="the ranks differ in mesh", clock=clock)
    node = _node(options.nodes, ranks, timeout, clock)
    channel = Channel(group, clock=clock, per_node=node.inside.world if node else 1)
    engine, problem = None, None
    mode = environ.get("XTUNE_POLICY", "on") or "on"
    word = [SCHEMA, MODES.index(mode) if mode in MODES else len(MODES), 0, 0, 1]
    try:
        if mode not in MODES:
            raise ValueError(f"XTUNE_POLICY={mode!r} is not one of {', '.join(MODES)}")
        if mode != "off":
            engine = _build(ddp_model, channel, node, mode, options)
            digest = engine.controller.policy.digest()
            word[2] = int(digest[:_DIGEST_DIGITS], 16)
            word[3] = engine.table.digest()
    except Exception as error:  # the other ranks are waiting to hear of it
        problem = f"{type(error).__name__}: {error}"
        word[4] = 0
    reason = _disagreement(_gather(group, word))
    if reason is None and engine is not None:
        try:
            ddp_model.register_comm_hook(engine.hook, reduce_bucket)
        except Exception as error:  # another hook is there
            problem = f"{type(error).__name__}: {error}"
        failed = [rank for rank, (ok,) in enumerate(_gather(group, [int(not problem)])) if not ok]
        if failed:
            reason = f"{_ranks(failed)} cannot start"
    if problem is not None:
        _LOG.warning("xtune: rank %d cannot start: %s", channel.rank, problem)
    if reason is not None:
        if channel.rank == 0:
            _LOG.warning("xtune: off on every rank: %s", reason)
        if engine is not None:
            engine.hook.detached = True
            engine.log.close()
        return Handle(options.bus, None, reason=reason, clock=clock)
    if engine is None:
        return Handle(options.bus, None, reason="XTUNE_POLICY=off", clock=clock)
    return Handle(options.bus, engine, clock=clock)


def _build(
    ddp_model: DistributedDataParallel,
    channel: Channel,
    node: Node | None,
    mode: str,
    options: _Options,
) -> Engine:
    policy = _policy(options.policy)
    compression = policy.compression
    ignored = set(getattr(ddp_model, "parameters_to_ignore", ()))
    named = [
        (name, parameter)
        for name, parameter in ddp_model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    if not named:
        raise ValueError("the model has no parameter to train")
    # DDP hands a complex gradient over as the real numbers it consists of.
    elements = [p.numel() * (2 if p.is_complex() else 1) for _, p in named]
    last = max(1, len(named) - 1)
    layers = [
        Layer(name=name, elements=count, depth=place / last)
        for place, ((name, _), count) in enumerate(zip(named, elements, strict=True))
    ]
    table = LayerTable(
        names=tuple(layer.name for layer in layers),
        elements=tuple(elements),
        world=channel.world,
        block=compression.block,
        dense_below=compression.dense_below_elements,
    )
    store = ResidualStore(
        decay=residual_decays(layers, compression),
        enabled=compression.error_feedback,
        dtype=DTYPES[compression.residual_dtype],
        limit=compression.residual_limit,
    )
    exchange = Exchange(
        channel,
        table,
        store,
        keep_share=compression.drop_keep_share,
        node=node,
        shared_gain=compression.residual_decay_shared,
        seeded=compression.selection == "seeded",
    )
    if mode == "on" and compression.mode == "quantise":
        exchange.quantised.warm_up()
    path = options.environ.get("XTUNE_DECISIONS") or None
    log = DecisionLog(path, rank=dist.get_rank(), job=options.job, shadow=mode == "shadow")

    peers = channel.world if node is None else node.across.world

    def controller() -> Controller:
        return Controller(policy, layers, peers, log, bus=options.bus)

    model = weakref.ref(ddp_model)  # the model holds the hook

    def uneven() -> bool:
        return bool(getattr(getattr(model(), "_join_config", None), "enable", False))

    running = controller()
    hook = GradientHook(
        exchange,
        {id(parameter): place for place, (_, parameter) in enumerate(named)},
        ddp_model.process_group,
        running.begin(0),
        shadow=mode == "shadow",
        loss_scale=options.loss_scale,
        uneven=uneven,
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


def _nodes(mesh: DeviceMesh | None, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """The ranks of each node, by their place in ``ranks``; None where there is one level only."""
    if mesh is None:
        return None
    if mesh.ndim != 2 or sorted(mesh.mesh.flatten().tolist()) != sorted(ranks):
        raise ValueError("mesh must have the model's ranks in two dimensions: node, rank of it")
    if 1 in mesh.mesh.shape:
        return None
    place = {rank: index for index, rank in enumerate(ranks)}
    return tuple(tuple(sorted(place[rank] for rank in row)) for row in mesh.mesh.tolist())


def _node(
    nodes: tuple[tuple[int, ...], ...] | None,
    ranks: Sequence[int],
    timeout: timedelta | None,
    clock: Callable[[], float],
) -> Node | None:
    """Where this rank stands among the nodes, with groups of its own."""
    if nodes is None:
        return None
    mine = ranks.index(dist.get_rank())
    row = next(row for row in nodes if mine in row)
    column = [other[row.index(mine)] for other in nodes]
    inside, across = (_group([ranks[i] for i in part], timeout) for part in (row, column))
    return Node(
        inside=Channel(inside, clock=clock), across=Channel(across, clock=clock), ranks=nodes
    )


def _group(ranks: Sequence[int], timeout: timedelta | None) -> dist.ProcessGroup:
    """A gloo group of our own, in the order of ``ranks``."""
    group = dist.new_group(
        list(ranks), backend="gloo", timeout=timeout, use_local_synchronization=True
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
    if isinstance(policy, Path):
        return loads(policy.read_bytes())
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

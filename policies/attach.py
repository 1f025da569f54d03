"""Put a policy on a model: ``handle = attach(model, policy=...)``.

All ranks compare mode, policy and model before anything changes. Any difference, or one rank that
cannot start, turns every rank off with one line: ranks must never differ in what they send.
"""

from __future__ import annotations

import logging
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from . import striping
from .actuators.process_groups import RAIL_TIMEOUT_S
from .actuators.rails import Rail
from .bus import Bus
from .compress.device import ON_CPU, ON_DEVICE, REASONS, Gradients
from .compress.header import SCHEMA
from .compress.lanes import Lanes
from .compress.layout import LayerTable
from .compress.residual import DTYPES, ResidualStore
from .connections import Connections, patience
from .controller import Controller, Layer
from .ddp import ReplicatedModel
from .decisions import DecisionLog
from .handle import Engine, Handle
from .models import Model, fit
from .plan import residual_decays
from .presets import preset
from .spec import Policy, loads
from .steering import Steering
from .striping import Striping

if TYPE_CHECKING:
    from torch.distributed import fsdp

_LOG = logging.getLogger("xtune")
MODES = ("off", "shadow", "on")
_OFF = "XTUNE_POLICY=off"
_UNFIT = (0, -1)  # number of ranks, and digest, of a mesh that is not the model's
_ANOTHER_MESH = "the ranks differ in mesh"
_DIGEST_DIGITS = 15  # hex digits of the policy's SHA-256 that fit a signed 64-bit integer


class _Off(Exception):
    """The policy is off on every rank; raised on all of them at the same place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """What this rank is asked to do. Mode and policy are read once, so that nothing changes."""

    mode: str
    policy: Policy | None  # None: not needed, or not to be had
    problem: str | None  # why the policy cannot be had
    bus: Bus
    job: str | None
    loss_scale: Callable[[], float] | None
    link_gbps: float | None
    rails: Sequence[Rail]
    rail_timeout_s: float
    steering: Steering | None
    environ: Mapping[str, str]
    clock: Callable[[], float]


def attach(
    model: DistributedDataParallel | fsdp.FSDPModule,
    *,
    policy: Policy | str | Path | None = None,
    bus: Bus | None = None,
    job: str | None = None,
    scaler: Any = None,
    link_gbps: float | None = None,
    mesh: DeviceMesh | None = None,
    rails: Iterable[Rail] = (),
    rail_timeout_s: float = RAIL_TIMEOUT_S,
    steering: Steering | None = None,
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
        rails: this rank's ends of the networks that payload goes over at a time, in the same order
            on every rank; without any it goes where torch's collectives go. Of models in
            ``DistributedDataParallel`` without ``mesh``, reduced in host memory.
        rail_timeout_s: a rail that needs longer for a message is given up; 0.001 to 86400. The
            same on every rank.
        steering: this rank's router and its readings; compression hears of congestion by the
            router's bus, and rails get the shares that it wants.
        environ: where the ``XTUNE_`` variables come from.
        clock: seconds, monotonic.

    Returns:
        The handle; inert where the policy is off.

    Raises:
        TypeError: ``model`` is neither of both.
        ValueError: ``mesh`` is not the model's, or its sharding is not supported; or the ranks of
            a model under ``fully_shard`` differ in ``mesh``, and their weights would drift apart.
    """
    mode = environ.get("XTUNE_POLICY") or "on"
    read, problem = _read(policy, mode)
    rails = striping.listed(rails)
    if mode != "off":
        problem = problem or _misfit(scaler, link_gbps)
        problem = problem or striping.misfit(rails, rail_timeout_s, steering, bus)
    request = _Request(
        mode=mode,
        policy=None if problem else read,
        problem=problem,
        bus=striping.shared_bus(bus, steering),
        job=job,
        loss_scale=None if scaler is None or problem else scaler.get_scale,
        link_gbps=link_gbps,
        rails=() if problem else rails,
        rail_timeout_s=rail_timeout_s,
        steering=None if problem else steering,
        environ=environ,
        clock=clock,
    )
    found, unfit = fit(model, mesh)
    if found.alone and unfit is not None:
        raise unfit
    if found.alone:
        return Handle(request.bus, None, reason="a single rank sends nothing", clock=clock)
    connections = _connections(found, request)
    try:
        return _attach(found, unfit, request, connections)
    except Exception:
        connections.close()
        raise


def _attach(
    found: Model, unfit: ValueError | None, request: _Request, connections: Connections
) -> Handle:
    """Compare, build and put in place, step by step; a step that fails ends it on every rank."""
    node = None
    try:
        _agree_on_mesh(found, unfit, connections)
        gradients, lanes, striped = _agree_on_path(found, request, connections)
        connections.open(lanes, gradients)
        node = connections.nodes[0]
        engine = _start(found, request, gradients, connections, striped=striped)
    except _Off as off:
        reason = str(off)
        if reason != _OFF and _first(found):
            _LOG.warning("xtune: off on every rank: %s", reason)
        found.leave(node)
        connections.close(keep=found.lasting(node))
        return Handle(request.bus, None, reason=reason, clock=request.clock)
    return Handle(request.bus, engine, clock=request.clock)


def _agree_on_mesh(found: Model, unfit: ValueError | None, connections: Connections) -> None:
    """Compare the meshes, and connect all ranks of them.

    The ranks that the model itself names compare first: they find each other with any mesh. One
    that has a wrong mesh learns from them which other ranks it would leave waiting.

    Raises:
        _Off: they differ.
        ValueError: this rank's mesh is not the model's, or weights would drift apart.
    """
    mine = (len(found.ranks), zlib.crc32(repr(found.nodes).encode())) if not unfit else _UNFIT
    words = connections.compare(mine)
    if unfit is None and _alike(words):
        if found.ranks == found.kin:
            return
        connections.reach(found.ranks, found.nodes)
        if not _alike(connections.compare(mine)):
            raise _Off(_ANOTHER_MESH)
        return
    most = max(ranks for ranks, _ in words)
    if most > len(found.kin):
        known = connections.compare(found.ranks if mine[0] == most else [0] * most)
        theirs = next(row for row, word in zip(known, words, strict=True) if word[0] == most)
        connections.reach(theirs, None)
        connections.compare(_UNFIT)
    if unfit is not None:
        raise unfit
    if most > len(found.kin):
        raise ValueError(f"{_ANOTHER_MESH}: their weights would drift apart")
    raise _Off(_ANOTHER_MESH)


def _agree_on_path(
    found: Model, request: _Request, connections: Connections
) -> tuple[Gradients, int, bool]:
    """Where gradients are reduced, by how many lanes, and whether over rails: alike everywhere."""
    words = connections.compare(
        [_obstacle(found, request), _lanes(found, request), *_rail_word(found, request)]
    )
    obstacles, lanes = zip(*(word[:2] for word in words), strict=True)
    worst = max(obstacles)
    if worst in REASONS and _first(found):
        _LOG.warning("xtune: gradients are compressed in host memory: %s", REASONS[worst])
    if worst == ON_DEVICE and request.policy and isinstance(found, ReplicatedModel):
        found.keep_on_device(request.policy.compression)
        on_rails = [[*word[2:4], striping.ON_DEVICE] for word in words]
        return found.gradients, min(lanes), _striped(found, request, on_rails)
    return Gradients(), found.lanes, _striped(found, request, [word[2:] for word in words])


def _rail_word(found: Model, request: _Request) -> list[int]:
    """What ranks compare of their rails; see `striping.refusal`."""
    if request.policy is None:
        return [striping.OFF, 0, striping.FIT]
    obstacle = striping.FIT
    if not isinstance(found, ReplicatedModel):
        obstacle = striping.SHARDED
    elif found.nodes is not None:
        obstacle = striping.MESH
    else:
        problem = striping.obstacle(request.rails, request.steering)
        if problem is not None:
            obstacle = striping.UNFIT
            _LOG.warning("xtune: rank %d: rails: %s", dist.get_rank(found.group), problem)
    return striping.word(request.rails, request.rail_timeout_s, obstacle)


def _striped(found: Model, request: _Request, words: Sequence[Sequence[int]]) -> bool:
    """Whether payload goes over rails. In shadow mode it goes as without us."""
    reason = striping.refusal(words)
    if reason is not None and _first(found):
        _LOG.warning("xtune: rails are not used: %s", reason)
    return reason is None and bool(request.rails) and request.mode == "on"


def _obstacle(found: Model, request: _Request) -> int:
    """Why this rank's gradients go through host memory, as a number that ranks compare."""
    if request.policy is None or not isinstance(found, ReplicatedModel):
        return ON_CPU
    return found.obstacle(request.policy.compression)


def _lanes(found: Model, request: _Request) -> int:
    """Exchanges that this rank may run side by side on an accelerator.

    Where all its streams share one queue, what stands in there behind one lane's collective would
    hold up the other lane's, and ranks need not start them in one order.
    """
    return 1 if request.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1" else found.lanes


def _start(
    found: Model,
    request: _Request,
    gradients: Gradients,
    connections: Connections,
    *,
    striped: bool,
) -> Engine:
    """Build the engine and put its hook in place, once all ranks have one and agree.

    Raises:
        _Off: they do not agree, some rank cannot start, or the policy is off.
    """
    engine, problem = None, request.problem
    if request.policy is not None:
        try:
            engine = _build(found, request, request.policy, gradients, connections)
        except Exception as error:  # the other ranks are waiting to hear of it
            problem = _text(error)
    reason = _disagreement(connections.compare(_word(request, engine, problem)))
    if reason is None and engine is not None:
        if striped:
            engine.striping = _stripe(found, request, connections)
        try:
            found.install(engine.hook, connections.nodes[0])
        except Exception as error:  # another hook is there
            problem = _text(error)
        words = connections.compare([int(problem is None)])
        failed = [rank for rank, (ok,) in enumerate(words) if not ok]
        reason = f"{_ranks(failed)} cannot start" if failed else None
    if problem is not None:
        rank = connections.channels[0].rank
        _LOG.warning("xtune: rank %d cannot start: %s", rank, problem)
    if engine is None or reason is not None:
        if engine is not None:
            engine.hook.detached = True
            engine.log.close()
        raise _Off(reason or _OFF)
    return engine


def _stripe(found: Model, request: _Request, connections: Connections) -> Striping:
    lanes, meter = connections.stripe(request.rails, request.rail_timeout_s)
    return Striping(lanes, meter, first=_first(found), steering=request.steering)


def _build(
    model: Model,
    request: _Request,
    policy: Policy,
    gradients: Gradients,
    connections: Connections,
) -> Engine:
    channels, nodes = connections.channels, connections.nodes
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
    if request.mode == "on" and compression.mode == "quantise":
        exchange.quantised.warm_up()
    path = request.environ.get("XTUNE_DECISIONS") or None
    log = DecisionLog(path, rank=dist.get_rank(), job=request.job, shadow=request.mode == "shadow")
    peers, traffic = model.peers(channels[0], nodes[0]), model.traffic(nodes[0], table)

    def controller() -> Controller:
        return Controller(policy, layers, peers, log, bus=request.bus, traffic=traffic)

    running = controller()
    if channels[0].rank == 0:
        _say_what_is_left_out(running, model)
    hook = model.hook(
        exchange, running.begin(0), shadow=request.mode == "shadow", loss_scale=request.loss_scale
    )
    hook.steering = request.steering
    return Engine(
        hook=hook,
        exchange=exchange,
        table=table,
        controller=running,
        fresh_controller=controller,
        log=log,
        mode=request.mode,
        link_gbps=request.link_gbps,
        release=partial(connections.close, keep=model.lasting(nodes[0])),
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


def _read(policy: Policy | str | Path | None, mode: str) -> tuple[Policy | None, str | None]:
    """The policy, if one is needed, or why there is none."""
    try:
        if mode not in MODES:
            raise ValueError(f"XTUNE_POLICY={mode!r} is not one of {', '.join(MODES)}")
        return (None if mode == "off" else _policy(policy)), None
    except Exception as error:  # all ranks are told, once they are connected
        return None, _text(error)


def _misfit(scaler: Any, link_gbps: float | None) -> str | None:
    """What is wrong with an argument of `attach`."""
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        return f"scaler: {type(scaler).__name__} has no get_scale()"
    number = isinstance(link_gbps, int | float) and not isinstance(link_gbps, bool)
    if link_gbps is not None and not (number and 0 < link_gbps < math.inf):
        return f"link_gbps: {link_gbps!r} is no rate"
    return None


def _policy(policy: Policy | str | Path | None) -> Policy:
    if policy is None:
        return preset("joint")
    if isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith(".json")):
        return loads(Path(policy).read_bytes())
    if not isinstance(policy, str | Policy):
        raise TypeError(f"policy: {type(policy).__name__} is no policy, preset or path")
    return preset(policy) if isinstance(policy, str) else policy


def _connections(found: Model, request: _Request) -> Connections:
    """Those of the ranks that the model itself names."""
    wait = patience(found.group)
    rows = found.nodes if found.ranks == found.kin else None
    return Connections(found.kin, rows, wait=wait, clock=request.clock)


def _first(found: Model) -> bool:
    """Whether this rank says what concerns all."""
    return dist.get_rank() == min(found.ranks)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _alike(words: Sequence[Sequence[int]]) -> bool:
    return all(word == words[0] for word in words)


def _word(request: _Request, engine: Engine | None, problem: str | None) -> list[int]:
    """What all ranks must have in common, in numbers; see `_disagreement`."""
    mode = MODES.index(request.mode) if request.mode in MODES else len(MODES)
    policy = table = 0
    if engine is not None:
        policy = int(engine.controller.policy.digest()[:_DIGEST_DIGITS], 16)
        table = engine.table.digest()
    return [SCHEMA, mode, policy, table, int(problem is None)]


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

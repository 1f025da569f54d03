"""Which path `attach` takes, agreed over ranks, and training on it: as through host memory."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from xtune.policies import Rail, ddp
from xtune.policies.compress.device import BACKEND, SCATTERED, obstacle
from xtune.policies.compress.lanes import Lanes
from xtune.policies.compress.two_phase import TwoPhase
from xtune.policies.hook import GradientHook
from xtune.policies.ladder import Rung

from .interpreter import Interpreters
from .ranks import Lines, run
from .training import attached, policy, weights

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton has no build for this system"
    ),
    pytest.mark.xdist_group("triton"),
]

WIDTH, STEPS, MIDDLE = 24, 7, 4
SMALL = {"block": 64, "dense_below_elements": 512, "rung_by_level": (3, 3, 3, 3)}


@contextmanager
def payload_over(backends: Mapping[str, str]) -> Iterator[None]:
    """Say whose collectives carry payload where it is, for models attached meanwhile."""
    before = ddp.ReplicatedModel.backends
    ddp.ReplicatedModel.backends = backends
    try:
        yield
    finally:
        ddp.ReplicatedModel.backends = before


def wrapped(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH)).to(dtype)
    return DistributedDataParallel(net, bucket_cap_mb=0.004)


def train(model: Any, handle: Any, steps: Any, rank: int, start: int, stop: int) -> None:
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, WIDTH, generator=generator).to(next(model.parameters()).dtype)
        steps.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        loss.backward()
        steps.step()
        if handle is not None:
            handle.step(loss)


def _training(
    rank: int, world: int, device: bool, dtype: torch.dtype, saved: list[bytes] | None, mode: str
) -> dict[str, Any]:
    """Train from the start to a checkpoint, or from one to the end."""
    lines, model = Lines(), wrapped(dtype)
    with payload_over({"cpu": "gloo"} if device else {}):
        handle = attached(
            model, policy(compression=SMALL, period=3), environ={"XTUNE_POLICY": mode}
        )
    steps = torch.optim.SGD(model.parameters(), lr=0.05)
    start, stop = 0, MIDDLE
    if saved is not None:
        start, stop = MIDDLE, STEPS
        state = torch.load(io.BytesIO(saved[rank]), weights_only=True)
        model.load_state_dict(state["model"])
        handle.load_state_dict(state["handle"])
    train(model, handle, steps, rank, start, stop)
    engine = handle._engine
    assert engine is not None
    assert isinstance(engine.exchange, Lanes)
    quantised = [one.quantised for one in engine.exchange.exchanges]
    out = io.BytesIO()
    torch.save({"model": model.state_dict(), "handle": handle.state_dict()}, out)
    return {
        "state": out.getvalue(),
        "weights": weights(model).tolist(),
        "wire": handle.metrics()["wire_bytes"],
        "mode": handle.metrics()["plan_mode"],
        "failed": handle.metrics()["failed_steps"],
        "codecs": [type(q._codec).__name__ for q in quantised if isinstance(q, TwoPhase)],
        "groups": [one.channel._payload is not one.channel.group for one in
                   engine.exchange.exchanges],
        "in place": engine.hook._in_place,
        "lines": lines.take(),
    }  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_training_is_the_same_on_both_paths_and_across_a_checkpoint(
    interpreters: Interpreters, dtype: torch.dtype
) -> None:
    device = interpreters.ranks(_training, True, dtype, None, "on")
    host = run(2, _training, False, dtype, None, "on")
    device_on = interpreters.ranks(_training, True, dtype, [one["state"] for one in host], "on")
    host_on = run(2, _training, False, dtype, [one["state"] for one in device], "on")
    for ours, theirs in ((device, host), (device_on, host_on)):
        for a, b in zip(ours, theirs, strict=True):
            assert a["weights"] == b["weights"] == ours[0]["weights"]
            assert a["wire"] == b["wire"]
            assert a["mode"] == "quantise"
            assert a["failed"] == 0
            assert a["lines"] == b["lines"] == []
            assert (a["codecs"], b["codecs"]) == (["TritonCodec"] * 2, ["NumbaCodec"] * 2)
            assert (a["groups"], b["groups"]) == ([True] * 2, [False] * 2)
            assert (a["in place"], b["in place"]) == (True, False)


class Recorder:
    """A kernel that notes how it is launched.

    Args:
        kernel: the real one.
        launches: what the compiler tells apart: types, alignment of pointers, constants.
    """

    def __init__(self, kernel: Any, launches: set[Any]) -> None:
        self._kernel = kernel
        self._launches = launches

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            kinds = [(a.dtype, a.data_ptr() % 16) if isinstance(a, torch.Tensor) else type(a)
                     for a in args]  # fmt: skip
            self._launches.add((id(self._kernel), *kinds, *sorted(constants.items())))
            self._kernel[grid](*args, **constants)

        return launch


def _launched(rank: int, world: int) -> tuple[int, int]:
    """Kinds of launches in training, and those among them that attaching did not make."""
    from xtune.policies.compress import triton_kernels

    launches: set[Any] = set()
    real = {name: getattr(triton_kernels, name) for name in ("encode", "reduce", "decode")}
    for name, kernel in real.items():
        setattr(triton_kernels, name, Recorder(kernel, launches))
    try:
        model = wrapped(torch.bfloat16)
        with payload_over({"cpu": "gloo"}):
            handle = attached(model, policy(compression=SMALL, period=3))
        before = set(launches)
        launches.clear()
        steps = torch.optim.SGD(model.parameters(), lr=0.05)
        train(model, handle, steps, rank, 0, STEPS)
    finally:
        for name, kernel in real.items():
            setattr(triton_kernels, name, kernel)
    return len(launches), len(launches - before)


@pytest.mark.slow
def test_training_compiles_nothing_that_attaching_did_not(interpreters: Interpreters) -> None:
    for in_training, new in interpreters.ranks(_launched):
        assert in_training >= 5  # encode with and without a residual, reduce so, decode
        assert new == 0


def _shadow(rank: int, world: int) -> tuple[list[float], list[float]]:
    """Weights after training in shadow mode, and without an engine."""
    plain = wrapped(torch.float32)
    train(plain, None, torch.optim.SGD(plain.parameters(), lr=0.05), rank, 0, MIDDLE)
    model = torch.load(
        io.BytesIO(_training(rank, world, True, torch.float32, None, "shadow")["state"]),
        weights_only=True,
    )["model"]
    ours = torch.cat([values.flatten() for values in model.values()])
    return weights(plain).tolist(), ours.tolist()


def test_shadow_changes_nothing(interpreters: Interpreters) -> None:
    for plain, ours in interpreters.ranks(_shadow):
        assert plain == ours


def _choice(rank: int, world: int) -> dict[str, Any]:
    """What is said and done where the device's path cannot be taken, on one rank or on all."""
    lines, out = Lines(), {}

    def case(
        name: str,
        backends: Mapping[str, str],
        environ: Any = None,
        rails: Sequence[Rail] = (),
        **changes: Any,
    ) -> None:
        with payload_over(backends):
            made = policy(compression={**SMALL, **changes})
            handle = attached(wrapped(torch.float32), made, environ=environ or {}, rails=rails)
        engine = handle._engine
        assert engine is not None
        hook, exchange = engine.hook, engine.exchange
        assert isinstance(hook, GradientHook)
        exchanges = exchange.exchanges if isinstance(exchange, Lanes) else (exchange,)
        out[name] = (hook._in_place, len(exchanges), lines.take())
        hook.close()

    over = {"cpu": "gloo"}
    group, gpus = dist.group.WORLD, [torch.device("cuda", i) for i in range(2)]
    assert group is not None
    assert obstacle(gpus[:1], group, "nccl", block=64, selects=False) == BACKEND
    assert obstacle(gpus, group, "gloo", block=64, selects=False) == SCATTERED
    case("host", {})
    case("device", over)
    case("rails", over, rails=[Rail(address="127.0.0.2")])
    case("one queue", over, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if rank == 1 else None)
    case("backend", {"cpu": "nccl"} if rank == 1 else over)
    case("drop", over, mode="drop")
    rungs = (Rung(name="off", bits_input=16, bits_head=16),
             Rung(name="s", bits_input=16, bits_head=16, keep_share=0.1))  # fmt: skip
    case("shared", over, ladder=rungs, rung_by_level=(1, 1, 1, 1))
    return out


def test_all_ranks_take_one_path_and_rank_0_says_why_it_is_the_host(
    interpreters: Interpreters,
) -> None:
    said = "xtune: gradients are compressed in host memory: "
    reasons = {
        "backend": "the model's process group is of another backend than its device's",
        "drop": "the policy drops or selects elements, which runs there",
        "shared": "the policy drops or selects elements, which runs there",
    }
    for rank, result in enumerate(interpreters.ranks(_choice)):
        assert result.pop("host") == (False, 2, [])
        assert result.pop("device") == (True, 2, [])
        unused = "xtune: rails are not used: gradients are reduced on accelerators"
        assert result.pop("rails") == (True, 2, [unused] if rank == 0 else [])
        assert result.pop("one queue") == (True, 1, [])
        assert result == {
            name: (False, 2, [said + why] if rank == 0 else []) for name, why in reasons.items()
        }


def _compiler(rank: int, world: int) -> tuple[bool, list[str]]:
    """Attach where triton finds no device and does not interpret."""
    lines = Lines()
    with payload_over({"cpu": "gloo"}):
        handle = attached(wrapped(torch.float32), policy(compression=SMALL))
    engine = handle._engine
    assert engine is not None
    assert isinstance(engine.hook, GradientHook)
    return engine.hook._in_place, lines.take()


def test_without_a_compiler_the_host_path_remains() -> None:
    why = "triton is missing or cannot compile for the device"
    first, second = run(2, _compiler)
    assert first == (False, [f"xtune: gradients are compressed in host memory: {why}"])
    assert second == (False, [])

"""Buckets reduced where they are: the same bits and bytes as through host memory.

The device's part is played by host memory, Triton's interpreter and a second gloo group.
"""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from xtune.policies.compress import wire
from xtune.policies.compress.bucket import Bucket
from xtune.policies.compress.channel import Channel
from xtune.policies.compress.device import Gradients
from xtune.policies.compress.exchange import Exchange
from xtune.policies.compress.hierarchy import Node
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import WORKER, ResidualStore
from xtune.policies.compress.two_phase import TwoPhase

from .interpreter import Interpreters
from .ranks import Lines, run

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton has no build for this system"
    ),
    pytest.mark.xdist_group("triton"),
]

BLOCK, DENSE_BELOW = 64, 200
SIZES = (900, 50, 1300, 400, 120)
ORDER = (4, 3, 2, 1, 0)
MIXED, FOUR, SPILL = (4, 4, 8, 4, 4), (4,) * 5, (8, 8, 16, 8, 8)
# Bits of each step and what goes wrong in it: one rank's own, for the gradients or its engine.
STEPS: tuple[tuple[tuple[int, ...], str], ...] = (
    (MIXED, ""),
    (FOUR, "held"),
    (MIXED, "nan"),
    (MIXED, "encode_all"),
    (MIXED, "reduce_all"),
    (SPILL, ""),
    (MIXED, "decode"),
    (FOUR, "held"),
)
BROKEN = ("encode_all", "reduce_all", "decode")


class Breaking:
    """A back-end of which one call fails, once.

    Args:
        codec: the real one.
    """

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        if name == self.fails:
            self.fails = ""
            raise RuntimeError("test")
        return getattr(self._codec, name)


def made(node: Node | None, channel: Channel, *, device: bool, kept: torch.dtype) -> Exchange:
    """One rank's exchange, on either path."""
    world = channel.world
    table = LayerTable(
        names=tuple("abcde"), elements=SIZES, world=world, block=BLOCK, dense_below=DENSE_BELOW
    )
    on = torch.device("cpu") if device else None
    store = ResidualStore(decay=0.5, enabled=True, dtype=kept, device=on)
    found = Gradients(on=on, bits=(4,))
    return Exchange(channel, table, store, keep_share=0.35, node=node, gradients=found)


def group() -> dist.ProcessGroup:
    found = dist.new_group(backend="gloo")
    assert isinstance(found, dist.ProcessGroup)
    return found


def collectives(group: Any) -> int:
    """How many there were on a group."""
    return int(group._get_sequence_number_for_group())


def gradient(rank: int, step: int, dtype: torch.dtype) -> Tensor:
    """Any rank's gradients in a step: layer d is unused, in a held step a and c on one rank."""
    random = np.random.default_rng((step, rank))
    parts = {i: torch.from_numpy(random.standard_normal(SIZES[i], np.float32)) for i in ORDER}
    trouble = STEPS[step][1]
    if trouble == "held":
        parts[3].zero_()
        if rank == 0:
            parts[0].zero_()
            parts[4].zero_()
    if trouble == "nan" and rank == 1:
        parts[2][-1] = torch.nan
    return torch.cat([parts[i] * 10.0**-i for i in ORDER]).to(dtype)


def packed(state: Any) -> bytes:
    """What a test can take home from a process that ends."""
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def unpacked(state: bytes) -> Any:
    return torch.load(io.BytesIO(state), weights_only=True)


def _steps(
    rank: int,
    world: int,
    device: bool,
    dtype: torch.dtype,
    kept: torch.dtype,
    first: int,
    last: int,
    state: bytes | None,
) -> dict[str, Any]:
    """Some steps on one rank, from a state; what they gave and how many collectives there were."""
    lines, words, payload = Lines(), group(), group()
    channel = Channel(words, payload=payload if device else None)
    exchange = made(None, channel, device=device, kept=kept)
    assert isinstance(exchange.quantised, TwoPhase)
    exchange.quantised.warm_up()
    assert type(exchange.quantised._codec).__name__ == ("TritonCodec" if device else "NumbaCodec")
    codec: Any = Breaking(exchange.quantised._codec)
    exchange.quantised._codec = codec
    if state is not None:
        exchange.store.load_state_dict(unpacked(state), exchange.residual_sizes())
    out: dict[str, Any] = {"buffers": [], "wire": [], "how": [], "calls": []}
    for step in range(first, last):
        bits, trouble = STEPS[step]
        codec.fails = trouble if trouble in BROKEN and rank == 1 else ""
        before = collectives(words), collectives(payload)
        buffer = gradient(rank, step, dtype)
        reduced = exchange.reduce(
            Bucket(index=0, layers=ORDER, buffer=buffer),
            step=step,
            mode="quantise",
            bits=bits,
            loss=None,
        )
        after = collectives(words), collectives(payload)
        out["calls"].append((after[0] - before[0], after[1] - before[1]))
        out["buffers"].append(buffer.view(torch.uint8).numpy().tobytes())
        out["wire"].append(reduced.wire_bytes)
        out["how"].append((reduced.finite, reduced.failed, len(reduced.spans)))
    out["state"] = packed(exchange.store.state_dict())
    out["said"] = lines.take()
    return out


def _same_state(left: bytes, right: bytes) -> bool:
    ours, theirs = unpacked(left), unpacked(right)
    pairs = [(ours[kind], theirs[kind]) for kind in ("worker", "owner")]
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs
    )


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)],
)
def test_both_paths_give_the_same_and_go_on_from_each_other(
    interpreters: Interpreters, dtype: torch.dtype, kept: torch.dtype
) -> None:
    middle = 4
    host = run(2, _steps, False, dtype, kept, 0, middle, None)
    device = interpreters.ranks(_steps, True, dtype, kept, 0, middle, None)
    states = [one["state"] for one in host]
    assert all(_same_state(a["state"], b["state"]) for a, b in zip(host, device, strict=True))
    assert unpacked(states[0])[WORKER].keys() == set("acd")
    host_on = run(2, _resumed, False, dtype, kept, middle, [one["state"] for one in device])
    device_on = interpreters.ranks(_resumed, True, dtype, kept, middle, states)
    for rank in range(2):
        for ours, theirs in ((device, host), (device_on, host_on)):
            for what in ("buffers", "wire", "how"):
                assert ours[rank][what] == theirs[rank][what], what
            assert ours[rank]["said"] == theirs[rank]["said"]
        assert _same_state(device_on[rank]["state"], host_on[rank]["state"])
    both = [{k: a[k] + b[k] for k in ("wire", "how", "calls", "buffers")}
            for a, b in zip(device, device_on, strict=True)]  # fmt: skip
    assert both[0]["buffers"] == both[1]["buffers"]
    for step, (bits, trouble) in enumerate(STEPS):
        redone = trouble in ("encode_all", "reduce_all")
        assert both[0]["how"][step][:2] == (trouble != "nan", (1,) if redone else ())
        # Headers and words over the one group; shares, means or the plain sum over the other.
        expected = {"": (2, 2), "nan": (1, 0), "encode_all": (1, 1), "reduce_all": (2, 3)}
        assert both[0]["calls"][step] == expected.get(trouble, (2, 2))
        if trouble != "nan" and not redone:
            formula = wire.plan_wire_bytes(
                SIZES, bits, 2, BLOCK, dense_below=DENSE_BELOW, buckets=[ORDER]
            )
            assert both[0]["wire"][step] == formula


def _resumed(
    rank: int,
    world: int,
    device: bool,
    dtype: torch.dtype,
    kept: torch.dtype,
    first: int,
    states: list[bytes],
) -> dict[str, Any]:
    return _steps(rank, world, device, dtype, kept, first, len(STEPS), states[rank])


def _nodes(rank: int, world: int, device: bool, rows: tuple[tuple[int, ...], ...]) -> Any:
    """Two steps of two ranks, which are two nodes or one."""
    width, spots = len(rows[0]), [rows.index(row) for row in rows if rank in row]
    members = (rows[spots[0]], tuple(row[rank % width] for row in rows))
    parts = []
    for part in members:
        pair = [
            dist.new_group(list(part), backend="gloo", use_local_synchronization=True)
            for _ in range(2)
        ]
        parts.append(Channel(pair[0], payload=pair[1] if device else None))
    node = Node(inside=parts[0], across=parts[1], ranks=rows)
    channel = Channel(group(), per_node=width, payload=group() if device else None)
    exchange = made(node, channel, device=device, kept=torch.float32)
    exchange.quantised.warm_up()
    out = []
    for step in (0, 5):
        buffer = gradient(rank, step, torch.bfloat16)
        reduced = exchange.reduce(
            Bucket(index=0, layers=ORDER, buffer=buffer),
            step=step,
            mode="quantise",
            bits=STEPS[step][0],
            loss=None,
        )
        assert reduced.finite
        assert not reduced.failed
        out.append((buffer.float().tolist(), reduced.wire_bytes))
    return out, packed(exchange.store.state_dict())


@pytest.mark.parametrize("rows", [((0,), (1,)), ((0, 1),)])
def test_nodes_give_the_same_on_both_paths(
    interpreters: Interpreters, rows: tuple[tuple[int, ...], ...]
) -> None:
    host = run(2, _nodes, False, rows)
    device = interpreters.ranks(_nodes, True, rows)
    for ours, theirs in zip(device, host, strict=True):
        assert ours[0] == theirs[0]
        assert _same_state(ours[1], theirs[1])
    assert device[0][0][1][0] == device[1][0][1][0]

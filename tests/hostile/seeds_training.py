"""Seeds of the collectors of training logs."""

from __future__ import annotations

import json
import struct
import zlib
from random import Random

import google_crc32c

from tests.hostile.mutate import damaged
from tests.hostile.seed import Seed, lines


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes) -> bytes:
    """A TensorFlow record."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def part(number: int, value: bytes | int) -> bytes:
    """One protobuf field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, **tags: float) -> bytes:
    """One event of TensorBoard, with scalars by tag."""
    summary = b"".join(
        part(1, part(1, tag.replace("__", "/").encode()) + b"\x15" + struct.pack("<f", value))
        for tag, value in tags.items()
    )
    wall = b"\x09" + struct.pack("<d", 1_700_000_000.25 + step)
    return wall + part(2, step) + part(5, summary)


_VERSION = b"\x09" + struct.pack("<d", 1.0) + part(3, b"brain.Event:2")
_EVENTS = [_VERSION, *(event(n, train__loss=3 - 0.1 * n, learning_rate=0.25) for n in range(4))]


def tensorboard(events: list[bytes]) -> bytes:
    """An event file."""
    return b"".join(map(framed, events))


def history(step: int, **values: object) -> bytes:
    """One history record of a run."""
    items = b"".join(
        part(1, part(1, key.encode()) + part(16, json.dumps(value).encode()))
        for key, value in values.items()
    )
    return part(1, step + 1) + part(2, items + part(2, part(1, step)))


def wandb(contents: list[bytes]) -> bytes:
    """A run's log: records cut at blocks of 32 KiB (wandb/sdk/internal/datastore.py)."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for content in contents:
        first = True
        while first or content:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            piece, content = content[: room - 7], content[room - 7 :]
            kind = (1 if first else 4) if not content else (2 if first else 3)
            crc = zlib.crc32(piece, zlib.crc32(bytes([kind])))
            out += struct.pack("<IHB", crc, len(piece), kind) + piece
            first = False
    return bytes(out)


_RUN = [
    part(1, 1) + part(17, part(1, b"run7")),
    *(history(n, loss=3 - 0.1 * n, val_loss=3.5, _timestamp=1.7e9 + n) for n in range(4)),
]


def _inside(contents: list[bytes], rng: Random) -> list[bytes]:
    """One record damaged, its frame to be made anew."""
    found = list(contents)
    at = rng.randrange(len(found))
    found[at] = damaged(rng, found[at], [found[at - 1]])[:30_000]
    return found


def _megatron(n: int) -> str:
    return (
        f"[2026-07-01 14:00:0{n}.5] iteration {n:8}/   10000 | consumed samples: {n * 8:12} | "
        "elapsed time per iteration (ms): 1250.0 | learning rate: 1.500E-04 | "
        f"global batch size:     8 | lm loss: 2.{n}E+00 | loss scale: 4096.0 | grad norm: 0.750 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _mllog(key: str, value: object, **metadata: object) -> str:
    record = {"time_ms": 1_700_000_000_123, "key": key, "value": value, "metadata": metadata}
    return "3: :::MLLOG " + json.dumps(record)


_STATE = {
    "global_step": 20,
    "log_history": [
        {"step": 10, "loss": 2.5, "grad_norm": 0.5, "learning_rate": 0.25, "epoch": 1.0},
        {"step": 10, "eval_loss": 3.5, "eval_runtime": 1.0},
        {"step": 20, "loss": 2.25},
    ],
}
_STEP = ("step", "loss", "split")

SEEDS = {
    "loss_tensorboard": Seed(
        form="binary",
        inputs=(tensorboard(_EVENTS),),
        remake=lambda rng: tensorboard(_inside(_EVENTS, rng)),
    ),
    "loss_wandb": Seed(
        form="binary",
        inputs=(wandb(_RUN),),
        remake=lambda rng: wandb(_inside(_RUN, rng)),
    ),
    "loss_megatron": Seed(
        form="text",
        inputs=(lines(*(_megatron(n) for n in range(1, 6))),),
        stands=_STEP,
        context=(("tz", "Europe/Berlin"),),
    ),
    "loss_mllog": Seed(
        form="jsonl",
        inputs=(
            lines(
                _mllog("submission_benchmark", "llama2_70b_lora"),
                _mllog("global_batch_size", 8),
                _mllog("train_loss", 3.25, samples_count=192),
                _mllog("train_loss", 3.0, samples_count=384),
                _mllog("eval_accuracy", 0.925, samples_count=1536),
            ),
        ),
        stands=_STEP,
    ),
    "loss_table": Seed(
        form="jsonl",
        inputs=(
            lines(
                '{"step": 1, "loss": 2.5, "val_loss": 3.5, "lr": 0.25, "_timestamp": 1.7e9}',
                '{"step": 2, "loss": 2.25, "grad_norm": "nan"}',
                '{"step": 3, "loss": 2.0}',
            ),
            lines("iteration,loss,ema,mode", "1,2.5,2.0,train", "1,3.5,3.0,eval", "2,2.4,2.1,x"),
            json.dumps(_STATE, indent=1).encode(),
            json.dumps(_STATE).encode(),
        ),
    ),
    "loss_text": Seed(
        form="text",
        inputs=(
            lines(*(f"iter {n}: loss 3.{n}000, time 250.00ms, mfu 3%" for n in range(5))),
            lines(*(f"s:{n} trl:3.{n} lr:0.1 norm:0.3" for n in range(5)), "s:5 tel:3.2"),
            lines(*(f"step: {n}  loss: 3.{n}  grad_norm: 0.3" for n in range(5))),
            lines(*(f"step {n}/100 | loss 3.1 (+1.2z)| norm 0.3 | lr 6e-4" for n in range(5))),
        ),
        stands=_STEP,
    ),
}

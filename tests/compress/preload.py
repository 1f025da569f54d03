"""Imported once by the fork server: the engine with its kernels compiled, and the tests' ranks."""

from __future__ import annotations

import torch
import torch._dynamo  # `fully_shard` imports it, late and slowly
import torch.distributed.fsdp

from xtune.policies.attach import attach
from xtune.policies.compress.chunk_codec import NumbaChunks
from xtune.policies.compress.codec import NumbaCodec
from xtune.policies.compress.layout import LayerTable
from xtune.policies.compress.residual import Feedback

torch.set_num_threads(1)
_LAYOUT = LayerTable(names=("a",), elements=(300,), world=1, block=256, dense_below=1).layout(
    (0,), (4,)
)
_PLACE = _LAYOUT.places[0]
_CODEC = NumbaCodec(world=1, rank=0, block=256)
_VALUES, _KEPT = torch.ones(300), torch.ones(512)
_MESSAGE = torch.zeros(_LAYOUT.payload, dtype=torch.uint8)
_STRIDE = _LAYOUT.payload
_CODEC.encode(_PLACE, _VALUES, _KEPT, 1.0, _KEPT, _MESSAGE, _STRIDE)
_CODEC.encode(_PLACE, torch.zeros(300), None, 1.0, None, _MESSAGE, _STRIDE)
_CODEC.reduce(_PLACE, _MESSAGE, _STRIDE, _KEPT, 1.0, _KEPT, _MESSAGE.clone(), 0)
_CODEC.decode(_PLACE, _MESSAGE, _STRIDE, 0, _VALUES)
_CHUNKS, _OWN = NumbaChunks(block=256), Feedback(residual=None, gain=1.0, fresh=None)
_CHUNKS.encode([_PLACE], _VALUES.view(1, -1), 0, [_OWN], _MESSAGE.view(1, -1), 0)
_CHUNKS.sum([_PLACE], _MESSAGE.view(1, -1), 1.0, _VALUES)
_CHUNKS.sum_bf16(_MESSAGE.view(1, -1), 0, 1.0, _VALUES[:1])

__all__ = ["attach"]

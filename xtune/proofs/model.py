"""A LLaMA-style language model: RoPE, RMSNorm, SwiGLU, untied head; 1.07 M parameters by default.

Small enough for a thousand steps in minutes on one core, and with the kinds of layers whose
gradients a compressor meets in a large one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROPE_BASE = 10_000.0
INIT_STD = 0.02  # GPT-2's; matrices that write to the residual stream get it by 1/sqrt(2 layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the model."""

    width: int = 128
    layers: int = 4
    hidden: int = 352
    heads: int = 4
    context: int = 128  # tokens
    vocabulary: int = 1024


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(shape.width, shape.width, bias=False) for _ in range(4)
        )
        half = shape.width // shape.heads // 2
        frequency = ROPE_BASE ** (-torch.arange(half) / half)
        angle = torch.arange(shape.context)[:, None] * frequency[None, :]
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix (batch, tokens, width) over earlier tokens."""
        batch, tokens, width = x.shape

        def split(values: Tensor) -> Tensor:
            return values.view(batch, tokens, self.heads, -1).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            self._rotate(split(self.query(x))),
            self._rotate(split(self.key(x))),
            split(self.value(x)),
            is_causal=True,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out

    def _rotate(self, x: Tensor) -> Tensor:
        tokens = x.shape[-2]
        cosine, sine = self.cosine[:tokens], self.sine[:tokens]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)


class Block(nn.Module):
    """Attention, then SwiGLU, each on the normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One layer over (batch, tokens, width)."""
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_norm(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class Llama(nn.Module):
    """The model.

    Args:
        shape: its sizes.
        seed: of its weights.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            writes = name.endswith(("attention.out.weight", "down.weight"))
            std = INIT_STD / math.sqrt(2 * shape.layers) if writes else INIT_STD
            with torch.no_grad():
                parameter.normal_(0.0, std, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, tokens, vocabulary) of the token that follows each."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy, nats per token, of windows (batch, tokens + 1) of token ids."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def optimizer(model: nn.Module) -> torch.optim.AdamW:
    """AdamW as language models are trained: betas 0.9 and 0.95, decay 0.1 on matrices alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), foreach=True)

"""Published transformers: elements of each layer, floating-point operations, traffic of a rank.

Sizes are computed from a model's published shape. Operations are those of the matrix products,
twice forward for each multiply-add and twice that backward, without recomputation (Narayanan et
al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, appendix).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xtune.errors import UsageError
from xtune.sim.beside import Beside
from xtune.sim.calibration import LayerShape

BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The published shape of a transformer.

    Attributes:
        name: As published.
        source: Where it is.
        layers: Blocks of attention and a feed-forward part.
        hidden: Width.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        ffn: Width inside the feed-forward part.
        vocabulary: Tokens.
        sequence: Tokens of a sequence.
        llama: Three feed-forward matrices, no biases, a head of its own, no learned positions;
            else those of GPT-2 and GPT-3.
        experts: Feed-forward parts of a block with experts; 0: none has any.
        top_k: Experts that a token goes to.
        expert_every: Every which block has experts.
    """

    name: str
    source: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    llama: bool = False
    experts: int = 0
    top_k: int = 1
    expert_every: int = 1

    @property
    def attention_elements(self) -> int:
        """Of one block, with its norm."""
        keys = self.hidden * self.kv_heads // self.heads
        matrices = 2 * self.hidden * self.hidden + 2 * self.hidden * keys
        return matrices + (self.hidden if self.llama else 6 * self.hidden)

    @property
    def ffn_elements(self) -> int:
        """Of one feed-forward part, without its norm."""
        if self.llama:
            return 3 * self.hidden * self.ffn
        return 2 * self.hidden * self.ffn + self.ffn + self.hidden

    @property
    def norm_elements(self) -> int:
        """Of one norm."""
        return self.hidden if self.llama else 2 * self.hidden

    @property
    def embedding_elements(self) -> int:
        """Tokens, and positions where they are learned."""
        return self.hidden * (self.vocabulary + (0 if self.llama else self.sequence))

    @property
    def head_elements(self) -> int:
        """The last norm, and the output matrix where it is not the embedding's."""
        return self.norm_elements + (self.hidden * self.vocabulary if self.llama else 0)

    def has_experts(self, block: int) -> bool:
        """Whether a block, from 0, has experts; with every second one, the odd ones."""
        return self.experts > 0 and block % self.expert_every == self.expert_every - 1

    @property
    def expert_blocks(self) -> int:
        """Blocks that have experts."""
        return sum(self.has_experts(b) for b in range(self.layers))

    @property
    def elements(self) -> int:
        """All parameters."""
        return self._elements(self.experts)

    @property
    def active_elements(self) -> int:
        """Parameters that take part in one token."""
        return self._elements(self.top_k)

    def _elements(self, experts: int) -> int:
        routed = self.expert_blocks * (experts * self.ffn_elements + self.hidden * self.experts)
        dense = (self.layers - self.expert_blocks) * self.ffn_elements
        blocks = self.layers * (self.attention_elements + self.norm_elements)
        return self.embedding_elements + blocks + routed + dense + self.head_elements

    @property
    def flops_per_token(self) -> float:
        """Forward and backward."""
        keys = self.hidden * self.kv_heads // self.heads
        attention = self.layers * (2 * self.hidden * (self.hidden + keys))
        products = (3 if self.llama else 2) * self.hidden * self.ffn
        dense = (self.layers - self.expert_blocks) * products
        routed = self.expert_blocks * (self.top_k * products + self.hidden * self.experts)
        matrices = attention + dense + routed + self.hidden * self.vocabulary
        scores = 2 * self.layers * self.sequence * self.hidden
        return 6.0 * (matrices + scores)


GPT3_XL = Model(
    name="GPT-3 XL",
    source="Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1 (16 heads of 128:"
    " the 24 printed there do not divide the width)",
    layers=24, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocabulary=50257, sequence=2048,
)  # fmt: skip
GPT3_175B = Model(
    name="GPT-3 175B",
    source="Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1",
    layers=96, hidden=12288, heads=96, kv_heads=96, ffn=49152, vocabulary=50257, sequence=2048,
)  # fmt: skip
LLAMA_7B = Model(
    name="LLaMA 7B",
    source="Touvron et al., LLaMA, 2023, table 2; its config.json for ffn and vocabulary",
    layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, vocabulary=32000, sequence=2048,
    llama=True,
)  # fmt: skip
MIXTRAL_8X7B = Model(
    name="Mixtral 8x7B",
    source="Jiang et al., Mixtral of Experts, 2024, table 1; sequence as trained on is not given",
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=32000, sequence=4096,
    llama=True, experts=8, top_k=2,
)  # fmt: skip
GPT_MOE_128 = Model(
    name="1.3B+MoE-128",
    source="Rajbhandari et al., DeepSpeed-MoE, 2022, table 1: GPT-3 XL with 128 experts in every"
    " other block, one of them a token",
    layers=24, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocabulary=50257, sequence=2048,
    experts=128, top_k=1, expert_every=2,
)  # fmt: skip
MODELS = {m.name: m for m in (GPT3_XL, GPT3_175B, LLAMA_7B, MIXTRAL_8X7B, GPT_MOE_128)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a model is spread over cards.

    Attributes:
        cards: All of them.
        tensor: Cards that share each layer, inside a node.
        expert: Data-parallel ranks that share the experts of a block.
        batch: Sequences of one iteration, over all cards.
    """

    cards: int
    tensor: int
    expert: int
    batch: int

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: They do not fit each other.
        """
        data = self.cards // max(1, self.tensor)
        if min(self.cards, self.tensor, self.expert, self.batch) < 1 or (
            data * self.tensor != self.cards or data % self.expert or self.batch % data
        ):
            raise UsageError(
                f"{self} does not fit",
                "tensor divides cards, expert and batch fit the data-parallel ranks",
            )

    @property
    def data(self) -> int:
        """Data-parallel ranks."""
        return self.cards // self.tensor

    def flops_per_card(self, model: Model) -> float:
        """Of one iteration."""
        return model.flops_per_token * model.sequence * self.batch / self.cards


def shapes(model: Model, layout: Layout) -> tuple[LayerShape, ...]:
    """The model's layers from input to head as one card holds them.

    Every layer is cut evenly over the cards of a tensor-parallel group; norms and routers, which
    each of them holds whole, are below a thousandth.
    """
    parts: list[tuple[str, int, int]] = [("embedding", model.embedding_elements, 0)]
    for block in range(model.layers):
        attention = model.attention_elements + model.norm_elements
        if not model.has_experts(block):
            parts += [
                (f"{block}.attention", attention, 0),
                (f"{block}.ffn", model.ffn_elements, 0),
            ]
            continue
        own = math.ceil(model.experts / layout.expert) * model.ffn_elements
        parts += [
            (f"{block}.attention", attention + model.hidden * model.experts, 0),
            (f"{block}.experts", own, layout.data // layout.expert),
        ]
    parts.append(("head", model.head_elements, 0))
    last = len(parts) - 1
    return tuple(
        LayerShape(name=name, elements=-(-n // layout.tensor), depth=i / last, ranks=ranks)
        for i, (name, n, ranks) in enumerate(parts)
    )


def buckets(layers: Sequence[LayerShape], most_bytes: int) -> tuple[int, ...]:
    """Bytes of each gradient bucket in bf16, from the head down: closed when it is full.

    Args:
        layers: From input to head.
        most_bytes: Size from which on a bucket is full.
    """
    sizes, filling = [], 0
    for layer in reversed(layers):
        filling += layer.elements * BF16_BYTES
        if filling >= most_bytes:
            sizes.append(filling)
            filling = 0
    return (*sizes, filling) if filling else tuple(sizes)


def tensor_bytes(model: Model, layout: Layout) -> int:
    """What a card sends to those of its node in an iteration.

    Two all-reduces of a sequence's activations in each block forward and two backward, each of
    2 (t - 1) / t of them (Shoeybi et al., Megatron-LM, 2019, section 3).
    """
    tokens = model.sequence * layout.batch // layout.data
    share = 2 * (layout.tensor - 1) / layout.tensor
    return round(4 * model.layers * tokens * model.hidden * BF16_BYTES * share)


def expert_traffic(model: Model, layout: Layout) -> tuple[Beside, ...]:
    """All-to-alls of an iteration: to the experts and back, forward and backward.

    The cards of a tensor-parallel group send a part of the tokens each, and all but the share of
    the own rank's expert leaves the card.
    """
    if not model.experts or layout.expert == 1:
        return ()
    tokens = model.sequence * layout.batch // layout.data // layout.tensor
    away = (layout.expert - 1) / layout.expert
    size = round(tokens * model.hidden * BF16_BYTES * model.top_k * away)
    return (Beside(kind="expert", bytes_per_host=size, per_step=4.0 * model.expert_blocks),)

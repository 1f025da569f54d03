"""What a model's ranks exchange in one iteration, and how much of it a plan saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .compress import wire
from .spec import Compression

FEWEST_RANKS = 2  # a single rank sends nothing; its ratio is reckoned as if there were two


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The part of a model that one rank exchanges with its peers.

    Attributes:
        elements: of each layer, in that part.
        messages: layers of each message.
        world: peers, this rank included.
        dense_below: layers of fewer elements travel as bf16.
        scatters: what is summed stays with its owner, so that one phase is enough;
            ``dense_below`` is then of whole layers.
        replicas: over which torch sums the part afterwards, uncompressed.
    """

    elements: tuple[int, ...]
    messages: tuple[tuple[int, ...], ...]
    world: int
    dense_below: int
    scatters: bool = False
    replicas: int = 1

    @staticmethod
    def of_buckets(elements: Sequence[int], world: int, dense_below: int) -> Traffic:
        """Whole layers, in DDP's buckets."""
        return Traffic(
            elements=tuple(elements),
            messages=tuple(map(tuple, wire.ddp_buckets(elements))),
            world=max(world, FEWEST_RANKS),
            dense_below=dense_below,
        )

    def saved_share(
        self, mode: str, bits: Sequence[int], keep_share: float, compression: Compression
    ) -> float:
        """Share of gradient bytes that is not sent, against bf16, side traffic included.

        Args:
            mode: bf16 | quantise | shared | drop.
            bits: of each layer.
            keep_share: of mode shared.
            compression: block size, selection, share that mode drop keeps.
        """
        if mode == "drop":
            sizes = [sum(self.elements[i] for i in message) for message in self.messages]
            keep = compression.drop_keep_share
            sent = sum(wire.drop_wire_bytes(size, keep, self.world) for size in sizes)
        elif mode == "shared":
            sent = wire.shared_plan_bytes(
                self.elements,
                keep_share,
                self.world,
                dense_below=self.dense_below,
                seeded=compression.selection == "seeded",
                buckets=self.messages,
            )
        elif self.scatters:
            sent = wire.scatter_plan_bytes(
                self.elements,
                bits,
                self.world,
                compression.block,
                dense_below=self.dense_below,
                calls=self.messages,
            )
        else:
            sent = wire.plan_wire_bytes(
                self.elements,
                bits,
                self.world,
                compression.block,
                dense_below=self.dense_below,
                buckets=self.messages,
            )
        after = wire.dense_bytes(sum(self.elements), self.replicas, wire.BF16_BYTES)
        return wire.saved_share(sent + after, self._dense() + after) or 0.0

    def _dense(self) -> int:
        """Bytes of the same class of collective in bf16."""
        part = sum(self.elements)
        if self.scatters:
            return wire.ring_scatter_bytes(self.world * part * wire.BF16_BYTES, self.world)
        return wire.dense_bytes(part, self.world, wire.BF16_BYTES)

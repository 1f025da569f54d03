"""What one iteration puts on the wire under a plan, by the engine's byte formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xtune.policies.compress import wire
from xtune.policies.plan import Layer, Plan
from xtune.policies.spec import Compression
from xtune.sim.calibration import Calibration, LayerShape

RING = ("ring",)
# Shares go to their owners, results come back by all-gather, which NCCL and gloo run as a ring.
TWO_PHASE = ("all_to_all", "ring")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """One iteration's traffic under a plan, sent per rank.

    Attributes:
        patterns: Patterns of the flows that each bucket's bytes are shared by in equal parts, one
            after the other: a ring; or an all-to-all, then the ring of an all-gather.
        bucket_bytes: Bytes of each bucket, in the order they are sent.
        codec_s: Time to encode, sum and decode each bucket.
    """

    patterns: tuple[str, ...]
    bucket_bytes: tuple[int, ...]
    codec_s: tuple[float, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of the iteration."""
        return sum(self.bucket_bytes)


def cut_into_buckets(layers: Sequence[LayerShape], sizes: Sequence[int]) -> list[list[int]]:
    """Layer indices of each bucket, from the head down, cut where the sizes say.

    A layer belongs to the bucket in which its middle lies; a bucket that no layer's middle lies in
    is left out.
    """
    total_bytes, total = sum(sizes), sum(layer.elements for layer in layers)
    edges, passed = [], 0.0
    for size in sizes:
        passed += size / total_bytes * total
        edges.append(passed)
    buckets: list[list[int]] = [[] for _ in sizes]
    passed, bucket = 0.0, 0
    for index in reversed(range(len(layers))):
        middle = passed + layers[index].elements / 2
        while bucket < len(sizes) - 1 and middle > edges[bucket]:
            bucket += 1
        buckets[bucket].append(index)
        passed += layers[index].elements
    return [bucket for bucket in buckets if bucket]


def apart_by_ranks(layers: Sequence[LayerShape], buckets: list[list[int]]) -> list[list[int]]:
    """The buckets, each cut in one for every group of ranks that its layers are reduced in."""
    return [
        [i for i in bucket if layers[i].ranks == ranks]
        for bucket in buckets
        for ranks in dict.fromkeys(layers[i].ranks for i in bucket)
    ]


class Workload:
    """The job's gradients.

    Args:
        calibration: Layers, buckets, ranks, element size.
        compression: The policy's compression half.
    """

    def __init__(self, calibration: Calibration, compression: Compression) -> None:
        self.world = max(2, int(calibration["ranks"]))
        self.element_bytes = int(calibration["element_bytes"])
        self.layers = tuple(
            Layer(name=layer.name, elements=layer.elements, depth=layer.depth)
            for layer in calibration.layers
        )
        self.elements = [layer.elements for layer in self.layers]
        cut = cut_into_buckets(calibration.layers, calibration.buckets)
        self.buckets = apart_by_ranks(calibration.layers, cut)
        worlds = [layer.ranks or self.world for layer in calibration.layers]
        self._worlds = [worlds[bucket[0]] for bucket in self.buckets]
        self._compression = compression
        self._codec_s = calibration["codec_s_per_element"]
        self._bases = self._block_bases(worlds)
        self._plans: dict[tuple[str, tuple[int, ...], float], Wire] = {}
        self.bf16_bytes = self._dense(wire.BF16_BYTES)
        self.fp32_bytes = self._dense(wire.FP32_BYTES)

    def under(self, plan: Plan) -> Wire:
        """Traffic of an iteration under a plan."""
        key = (plan.mode, plan.bits, plan.keep_share)
        if key not in self._plans:
            self._plans[key] = self._make(plan)
        return self._plans[key]

    def bucket_elements(self) -> list[int]:
        """Elements of each bucket."""
        return [sum(self.elements[i] for i in bucket) for bucket in self.buckets]

    def _block_bases(self, worlds: Sequence[int]) -> list[int]:
        """First owner of each layer, counted among the layers of its group of ranks."""
        bases = [0] * len(worlds)
        for world in set(worlds):
            own = [i for i, ranks in enumerate(worlds) if ranks == world]
            found = wire.block_bases(
                [self.elements[i] for i in own], world=world, block=self._compression.block,
                dense_below=self._compression.dense_below_elements,
            )  # fmt: skip
            for i, base in zip(own, found, strict=True):
                bases[i] = base
        return bases

    def _dense(self, element_bytes: int) -> int:
        sizes = zip(self.bucket_elements(), self._worlds, strict=True)
        return sum(wire.dense_bytes(n, world, element_bytes) for n, world in sizes)

    def _make(self, plan: Plan) -> Wire:
        counts = self.bucket_elements()
        sized = list(zip(counts, self._worlds, strict=True))
        if plan.mode == "dense":
            sizes = [wire.dense_bucket_bytes(n, self.element_bytes, w) for n, w in sized]
            return Wire(patterns=RING, bucket_bytes=tuple(sizes), codec_s=(0.0,) * len(counts))
        codec = tuple(n * self._codec_s for n in counts)
        if plan.mode == "drop":
            keep = self._compression.drop_keep_share
            sizes = [wire.drop_wire_bytes(n, keep, w) for n, w in sized]
            return Wire(patterns=RING, bucket_bytes=tuple(sizes), codec_s=codec)
        if plan.mode == "shared":
            sizes = [self._shared(i, plan.keep_share) for i in range(len(counts))]
            return Wire(patterns=TWO_PHASE, bucket_bytes=tuple(sizes), codec_s=codec)
        sizes = [self._two_phase(i, plan.bits) for i in range(len(counts))]
        if plan.mode != "quantise":
            codec = (0.0,) * len(counts)
        return Wire(patterns=TWO_PHASE, bucket_bytes=tuple(sizes), codec_s=codec)

    def _two_phase(self, number: int, bits: Sequence[int]) -> int:
        bucket, world = self.buckets[number], self._worlds[number]
        below = self._compression.dense_below_elements
        payload = wire.payload_bytes(
            [self.elements[i] for i in bucket],
            [wire.effective_bits(self.elements[i], bits[i], below) for i in bucket],
            [self._bases[i] for i in bucket],
            world=world, block=self._compression.block,
        )  # fmt: skip
        return wire.two_phase_bytes(payload, world)

    def _shared(self, number: int, keep_share: float) -> int:
        bucket = self.buckets[number]
        return wire.shared_plan_bytes(
            [self.elements[i] for i in bucket],
            keep_share,
            self._worlds[number],
            dense_below=self._compression.dense_below_elements,
            seeded=self._compression.selection == "seeded",
            buckets=[range(len(bucket))],
        )

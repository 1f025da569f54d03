"""How a bucket is reduced, and what happens when a rank fails: the protocol of every mode.

1. Each rank prepares its message, or fails to.
2. Headers are exchanged. They have one size whatever the plan, so a rank that failed or holds
   another plan can always answer. All ranks draw the same conclusion from the same headers.
3. Where a rank failed, all of them redo the bucket as an exact, uncompressed all-reduce. Where a
   value was not finite, all of them return NaN, so that a gradient scaler skips the step, and
   residuals stay as they were. Where they count steps differently, compression ends on all of
   them; ranks in different buckets raise, all of them.
4. Else the payload travels. Waiting for the slowest rank happened in 2, so what is timed here is
   the network.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import torch

from .bucket import Bucket, LayerPower, Outcome, Quantiser, Reduced
from .channel import Channel
from .codec import best_codec
from .device import COMPRESSIBLE, Gradients
from .drop import Drop
from .header import Header, Verdict, judge
from .hierarchy import Hierarchy, Node
from .layout import LayerTable
from .notes import Notes
from .residual import OWNER, WORKER, ResidualStore
from .shared import SharedIndex
from .statistics import layer_powers
from .two_phase import TwoPhase
from .wire import BF16_BYTES, FP32_BYTES, blocks, dense_bytes, owned_blocks
from .workspace import Workspace

FAILURES_IN_ROW = 8  # buckets; then compression stays off on every rank
_HOST = Gradients()
DENSE, DROP, SHARED = "dense", "drop", "shared"


class Exchange:
    """Reduces buckets over all ranks, in order.

    Args:
        channel: collectives.
        table: the model's layers.
        store: residuals.
        keep_share: of mode drop.
        node: where this rank stands among the nodes, to quantise between these alone.
        shared_gain: share of a residual that the next round carries in mode shared.
        seeded: of mode shared; see :class:`SharedIndex`.
        gradients: where they are and what they are like; modes drop and shared want them in host
            memory.
    """

    def __init__(
        self,
        channel: Channel,
        table: LayerTable,
        store: ResidualStore,
        *,
        keep_share: float,
        node: Node | None = None,
        shared_gain: float = 1.0,
        seeded: bool = False,
        gradients: Gradients = _HOST,
    ) -> None:
        self._gradients = gradients
        self.channel = channel
        self.store = store
        self.table = table
        self.failures = 0  # buckets that had to be redone
        self.disabled: str | None = None  # why compression is off for good, on every rank alike
        self.broken: str | None = None  # why this rank's engine cannot go on
        self._shared_gain, self._seeded = shared_gain, seeded
        self._node = node
        self._channels = [channel] if node is None else [channel, node.inside, node.across]
        self.quantised = self._quantiser(table)
        self.shared = self._selector(table)
        self.drop = Drop(channel, keep_share=keep_share, workspace=Workspace())
        self._failures_in_row = 0
        self.notes = Notes()

    def reduce(
        self,
        bucket: Bucket,
        *,
        step: int,
        mode: str,
        bits: tuple[int, ...],
        loss: float | None,
        keep_share: float = 1.0,
        measure: bool = False,
    ) -> Reduced:
        """Replace the bucket's content by the mean over all ranks.

        Args:
            bucket: the gradients.
            step: iteration.
            mode: dense | bf16 | quantise | shared | drop.
            bits: planned bits of every layer of the model.
            loss: of the previous iteration on this rank, None if unknown.
            keep_share: of mode shared.
            measure: also measure each layer's power, and whether residuals have outgrown it.

        Raises:
            OrderError: the ranks are in different buckets.
            RuntimeError: the network failed.
        """
        for channel in self._channels:
            channel.reset()
        if self.disabled is not None or bucket.buffer.dtype not in COMPRESSIBLE:
            mode = DENSE
        if bucket.buffer.is_sparse or bucket.buffer.numel() == 0:
            mode = DENSE
        digest, finite, error = 0, True, None
        local: dict[int, LayerPower] = {}
        try:
            if self.broken is not None and self.disabled is None:
                raise RuntimeError(self.broken)
            if measure and bucket.layers and not bucket.buffer.is_sparse:
                local = layer_powers(bucket, self.table)
            self.shared.begin(step=step, keep_share=keep_share)
            digest = self._digest(bucket, mode, bits)
            finite = self._prepare(bucket, mode)
        except Exception as caught:  # whatever it was, the other ranks must be told
            error = caught
        header = Header(
            step=step,
            bucket=bucket.index,
            digest=digest,
            finite=finite,
            failed=error is not None,
            loss=loss,
        )
        verdict = judge(self.channel.headers(header))
        if verdict.apart is not None:
            self.store.discard()
            self.disable(verdict.apart)
            mode = DENSE
        while verdict.between:  # the others have given up what they were at, and come to this
            plain = Header(step=step, bucket=bucket.index, digest=self._digest(bucket, DENSE, ()))
            verdict = judge(self.channel.headers(plain))
        outcome = Outcome(failed=verdict.failed, finite=verdict.finite, error=error)
        sound = verdict.finite or mode == DENSE
        if verdict.apart is not None or (not verdict.failed and sound):
            outcome = self._transfer(bucket, mode, header)
        if outcome.failed:
            self._redo(bucket, step, outcome)
        elif not outcome.finite:
            self.store.discard()
            bucket.buffer.fill_(math.nan)
        else:
            self.store.commit()
            for layer, power in local.items():
                self.store.watch(self.table.names[layer], math.sqrt(power.squares))
            self._failures_in_row = 0
            if outcome.error is not None:
                self._say_failure(bucket, step, outcome)
        return self._account(bucket, outcome, verdict, measured=bool(local))

    def combine(self, values: Sequence[float], *, step: int, what: int) -> list[float] | None:
        """Elementwise maximum of some numbers over the ranks, outside the backward pass.

        Opened by headers like every exchange, so that ranks of which one is in its backward pass
        do not take one collective for another.

        Args:
            values: as many on every rank.
            step: iteration.
            what: `header.REGULATION` or `header.RESUME`.

        Returns:
            The maxima; None where some rank's engine has failed, or is elsewhere in its training
            loop, on every rank alike.

        Raises:
            RuntimeError: the network failed.
        """
        self.channel.reset()
        header = Header(step=step, bucket=what, digest=len(values), failed=self.broken is not None)
        verdict = judge(self.channel.headers(header))
        if verdict.apart is not None:
            self.disable(verdict.apart)
        if verdict.failed:
            return None
        combined = torch.tensor(values, dtype=torch.float64)
        self.channel.all_reduce_max(combined)
        result: list[float] = combined.tolist()
        return result

    def forget(self) -> None:
        """Drop all residuals and their buffers, between iterations."""
        self.store.clear()

    def residual_sizes(self) -> dict[tuple[str, str], int]:
        """Elements of each residual that this rank may keep, by kind and name."""
        table, sizes = self.quantised.table, {}
        for name, elements, base in zip(table.names, table.elements, table.bases, strict=True):
            count = blocks(elements, table.block)
            owned = int(owned_blocks(count, base, table.world)[self.quantised.rank])
            sizes[WORKER, name] = count * table.block
            sizes[OWNER, name] = owned * table.block
        return sizes

    def _digest(self, bucket: Bucket, mode: str, bits: tuple[int, ...]) -> int:
        if mode == DENSE:
            inner = 0
        elif mode == DROP:
            inner = self.drop.digest(bucket)
        elif mode == SHARED:
            inner = self.shared.digest(bucket, bits)
        else:
            inner = self.quantised.digest(bucket, bits)
        return zlib.crc32(f"{mode} {bucket.layers} {inner}".encode())

    def _prepare(self, bucket: Bucket, mode: str) -> bool:
        if mode == DENSE:
            return True  # a NaN spreads by itself in an uncompressed sum
        if mode == DROP:
            return self.drop.prepare(bucket)
        if mode == SHARED:
            return self.shared.prepare(bucket)
        return self.quantised.prepare(bucket)

    def _transfer(self, bucket: Bucket, mode: str, header: Header) -> Outcome:
        if mode == DENSE:
            self._dense(bucket)
            return Outcome(failed=(), finite=True)
        if mode == DROP:
            return self.drop.transfer(bucket)
        if mode == SHARED:
            return self.shared.transfer(bucket, header)
        return self.quantised.transfer(bucket, header)

    def _quantiser(self, table: LayerTable) -> Quantiser:
        def make(channel: Channel, layers: LayerTable) -> TwoPhase:
            found = self._gradients
            if self._node is not None:  # which sums a node's gradients in fp32
                found = replace(found, dtypes=(torch.float32,))
            codec = best_codec(
                world=layers.world, rank=channel.rank, block=layers.block, on=found.on
            )
            return TwoPhase(channel, layers, codec, self.store, self._workspace(), found)

        if self._node is None:
            return make(self.channel, table)
        return Hierarchy(self._node, table, make, self._workspace())

    def _workspace(self) -> Workspace:
        return Workspace(self._gradients.on)

    def _selector(self, table: LayerTable) -> SharedIndex | Hierarchy[SharedIndex]:
        def make(channel: Channel, layers: LayerTable) -> SharedIndex:
            return SharedIndex(
                channel, layers, self.store, gain=self._shared_gain, seeded=self._seeded
            )

        if self._node is None:
            return make(self.channel, table)
        return Hierarchy(self._node, table, make, Workspace())

    def _dense(self, bucket: Bucket) -> None:
        """Reduce the bucket as without an engine."""
        self.channel.all_reduce_mean(bucket.buffer)

    def _redo(self, bucket: Bucket, step: int, outcome: Outcome) -> None:
        self.store.discard()
        self._dense(bucket)
        self.failures += 1
        self._failures_in_row += 1
        self._say_failure(bucket, step, outcome)
        if self._failures_in_row >= FAILURES_IN_ROW:
            self.disable(f"{FAILURES_IN_ROW} buckets in a row failed")

    def disable(self, reason: str) -> None:
        """Turn compression off for good; every rank must do so at the same bucket."""
        if self.disabled is None:
            self.disabled = reason
            if self.channel.rank == 0:
                self.notes.say("off", f"xtune: compression is off from here on: {reason}")

    def _say_failure(self, bucket: Bucket, step: int, outcome: Outcome) -> None:
        """Once per rank and kind: rank 0 says whose engine failed, that rank says why."""
        where = f"bucket {bucket.index} of step {step}"
        if outcome.failed and self.channel.rank == 0:
            ranks = ", ".join(str(rank) for rank in outcome.failed)
            self.notes.say(
                "redone",
                f"xtune: the engine failed on rank {ranks} at {where}; all ranks reduced it "
                "uncompressed, and will do so each time without saying it again",
            )
        if outcome.error is not None:
            cause = f"{type(outcome.error).__name__}: {outcome.error}"
            self.notes.say("cause", f"xtune: rank {self.channel.rank}, {where}: {cause}")

    def _account(
        self, bucket: Bucket, outcome: Outcome, verdict: Verdict, *, measured: bool
    ) -> Reduced:
        buffer = bucket.buffer.coalesce().values() if bucket.buffer.is_sparse else bucket.buffer
        narrow = buffer.dtype in (torch.bfloat16, torch.float16)
        norm = float(torch.linalg.vector_norm(buffer.float() if narrow else buffer))
        if outcome.finite and not math.isfinite(norm):  # perhaps only their squares are not
            norm = float(torch.linalg.vector_norm(buffer, dtype=torch.float64))
        across = 0 if self._node is None else self._node.across.sent_bytes
        return Reduced(
            wire_bytes=self.channel.sent_bytes + across,
            dense_bytes_bf16=self._uncompressed(bucket, BF16_BYTES),
            dense_bytes_fp32=self._uncompressed(bucket, FP32_BYTES),
            spans=tuple(span for channel in self._channels for span in channel.spans),
            wait_s=self.channel.wait_s,
            finite=outcome.finite and math.isfinite(norm),
            failed=outcome.failed,
            mean_loss=verdict.mean_loss,
            norm=norm,
            powers=layer_powers(bucket, self.table) if measured else {},
        )

    def _uncompressed(self, bucket: Bucket, element_bytes: int) -> int:
        """Bytes that this rank would send for the bucket without compression."""
        if bucket.buffer.is_sparse:  # torch gathers the entries, as we do
            entries = bucket.buffer.coalesce()
            size = entries.values().numel() * element_bytes + entries.indices().nbytes
            return (self.channel.world - 1) * size
        if self._node is None:
            return dense_bytes(bucket.buffer.numel(), self.channel.world, element_bytes)
        part = -(-bucket.buffer.numel() // self._node.inside.world)  # each place sends its own
        return dense_bytes(part, self._node.across.world, element_bytes)

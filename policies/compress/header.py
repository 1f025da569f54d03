"""The header that opens every bucket: what ranks must agree on before a payload may travel.

It is 32 bytes whatever the plan, so it can always be exchanged, also by a rank whose engine has
failed or holds another plan: collective libraries do not detect payloads of different sizes, they
abort or hang. The second phase carries it again in front of its payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .wire import HEADER_BYTES

MAGIC = b"XTGR"
SCHEMA = 1
REGULATION, RESUME = 0xFFFFFFFF, 0xFFFFFFFE  # exchanges between iterations, for a bucket's index
_FORMAT = struct.Struct("<4sHHqIId")
_FINITE, _FAILED, _HAS_LOSS = 1, 2, 4
assert _FORMAT.size == HEADER_BYTES


class OrderError(RuntimeError):
    """Ranks reduce different buckets: no common result is left, with or without an engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """One rank's word about one bucket of one iteration."""

    step: int
    bucket: int
    digest: int  # 32 bits over mode, bits table and layout of the bucket
    finite: bool = True  # no NaN or infinity among what this rank would send
    failed: bool = False  # this rank's engine could not prepare or sum the bucket
    loss: float | None = None  # of the previous iteration on this rank
    schema: int = SCHEMA
    magic: bytes = MAGIC

    @property
    def place(self) -> str:
        """Where in its training loop the rank is, for people."""
        between = {REGULATION: "regulation", RESUME: "load_state_dict"}
        return f"step {self.step}, {between.get(self.bucket, f'bucket {self.bucket}')}"

    def pack(self) -> bytes:
        """The header as it travels."""
        flags = self.finite * _FINITE | self.failed * _FAILED | (self.loss is not None) * _HAS_LOSS
        loss = 0.0 if self.loss is None else self.loss
        return _FORMAT.pack(
            self.magic, self.schema, flags, self.step, self.bucket, self.digest, loss
        )

    @staticmethod
    def unpack(data: bytes) -> Header:
        """The header in the first 32 bytes of a message; any bytes give some header."""
        magic, schema, flags, step, bucket, digest, loss = _FORMAT.unpack(data[:HEADER_BYTES])
        return Header(
            step=step,
            bucket=bucket,
            digest=digest,
            finite=bool(flags & _FINITE),
            failed=bool(flags & _FAILED),
            loss=loss if flags & _HAS_LOSS else None,
            schema=schema,
            magic=magic,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all ranks conclude, alike, from the same headers."""

    failed: tuple[int, ...]  # ranks that failed, or hold another schema or plan than the first
    finite: bool
    mean_loss: float | None  # over the ranks that sent one, in rank order
    apart: str | None = None  # ranks are at different steps: compression must end, and why
    between: bool = False  # some of them are not in the backward pass, and will come to it


def judge(headers: Sequence[Header]) -> Verdict:
    """Compare the headers of all ranks, in rank order.

    Another schema or plan is a failure of the engine, and the bucket is redone uncompressed.
    Where ranks count their steps differently, the gradients still belong together.

    Raises:
        OrderError: ranks reduce different buckets; raised on every rank.
    """
    known = [h for h in headers if h.magic == MAGIC and h.schema == SCHEMA]
    for header in known:
        if (header.step, header.bucket) != (known[0].step, known[0].bucket):
            return _apart(known, header, len(headers))
    digest = next((h.digest for h in known if not h.failed), None)
    failed = [
        rank
        for rank, header in enumerate(headers)
        if header not in known or header.failed or header.digest != digest
    ]
    losses = [header.loss for header in headers if header.loss is not None]
    return Verdict(
        failed=tuple(failed),
        finite=all(header.finite for header in headers),
        mean_loss=sum(losses) / len(losses) if losses else None,
    )


def _apart(known: Sequence[Header], other: Header, world: int) -> Verdict:
    """The verdict on ranks of which one is elsewhere than the first."""
    where = f"one rank is at {other.place}, another at {known[0].place}"
    buckets = {header.bucket for header in known}
    inside = buckets - {REGULATION, RESUME}
    if len(inside) > 1:
        raise OrderError(f"xtune: {where}: the ranks' training loops have diverged")
    return Verdict(
        failed=tuple(range(world)),
        finite=True,
        mean_loss=None,
        apart=f"{where}; call handle.step() once an iteration on every rank and resume all "
        "ranks from one checkpoint",
        between=bool(inside) and len(buckets) > 1,
    )

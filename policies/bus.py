"""The congestion bus: what routing knows and what compression does, each side reading the other's.

One writer a side. A write makes a new immutable snapshot and swaps one reference, so that a
reader needs no lock and never sees half an update; the version tells it whether anything is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

HEARD_S = 30.0  # what routing said longer ago says nothing of now; it speaks each time a job sends


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingState:
    """What routing last said. ``None`` is unknown, for example without a router."""

    version: int = 0
    at_ns: int | None = None  # on the router's clock
    level: int | None = None  # congestion level 0..3 on the paths in use
    available_share: float | None = None  # of the link rate that is free, worst pair, 0..1
    available_gbps: float | None = None  # the same in 1e9 bit/s, where link rates are known


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionState:
    """What compression last said."""

    version: int = 0
    step: int | None = None  # iteration from which it holds
    ratio: float = 0.0  # planned share of gradient bytes that is not sent, against bf16
    ratio_cap: float = 1.0  # what the available bandwidth allows
    wire_bytes: int | None = None  # sent per rank in the last iteration, as measured
    transfer_s: float | None = None  # for how long these were on the wire; both are of this rank
    reserve: float = 0.0  # share of bandwidth that routing is asked to keep free


class Bus:
    """The two snapshots: read `routing` and `compression`, write by the two push methods alone.

    Args:
        clock: Seconds, monotonic; for the age of what was said.
    """

    __slots__ = ("_clock", "_heard_s", "compression", "routing")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_s = clock()
        # Plain attributes: reading or replacing one reference is atomic in Python.
        self.routing = RoutingState()
        self.compression = CompressionState()

    @property
    def reserve(self) -> float:
        """Share of bandwidth that routing is asked to keep free."""
        return self.compression.reserve

    @property
    def routing_now(self) -> RoutingState:
        """What routing said within `HEARD_S`; all of it unknown where that is longer ago."""
        said = self.routing
        silent = said.version > 0 and self._clock() - self._heard_s > HEARD_S
        return RoutingState(version=said.version) if silent else said

    def push_routing(
        self,
        *,
        at_ns: int | None = None,
        level: int | None = None,
        available_share: float | None = None,
        available_gbps: float | None = None,
    ) -> None:
        """Publish the routing side; only the router calls it.

        Args:
            at_ns: When, on the router's clock.
            level: Congestion level 0..3, None if unknown.
            available_share: Free share of the link rate on the worst pair in use.
            available_gbps: The same in 1e9 bit/s.
        """
        self._heard_s = self._clock()  # before: a reader between both takes the old for newer
        self.routing = RoutingState(
            version=self.routing.version + 1,
            at_ns=at_ns,
            level=level,
            available_share=available_share,
            available_gbps=available_gbps,
        )

    def push_compression(
        self,
        *,
        step: int,
        ratio: float,
        ratio_cap: float,
        wire_bytes: int | None,
        reserve: float,
        transfer_s: float | None = None,
    ) -> None:
        """Publish the compression side; only the controller calls it.

        Bytes and times tell whoever places a job's flows how much it will send, and at what rate
        it got them across.

        Args:
            step: Iteration from which it holds.
            ratio: Planned share of gradient bytes that is not sent, against bf16.
            ratio_cap: What the available bandwidth allows.
            wire_bytes: Sent per rank in the last iteration, None before the first.
            reserve: Share of bandwidth that routing is asked to keep free.
            transfer_s: For how long these bytes were on the wire, None if unknown.
        """
        self.compression = CompressionState(
            version=self.compression.version + 1,
            step=step,
            ratio=ratio,
            ratio_cap=ratio_cap,
            wire_bytes=wire_bytes,
            reserve=reserve,
            transfer_s=transfer_s,
        )

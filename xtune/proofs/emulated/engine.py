"""The engine in one sending host: its router, its readings, and the route that it moves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from xtune.policies import Router
from xtune.policies.actuators.nexthop import Gateway, NexthopGroup
from xtune.policies.decisions import DecisionLog
from xtune.policies.executor import Executor
from xtune.policies.probe.feed import Feed
from xtune.policies.spec import loads


class HostEngine:
    """Moves one flow of this host over the spines; use it in a ``with`` block.

    Args:
        said: ``policy`` (its text), ``readings`` (the agent's file), ``ends`` (names of the two
            hosts), ``destination`` (a network), ``paths`` (name of each, as the agent probes it,
            with gateway and interface, the primary first), ``log`` (a file or null).
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        paths = said["paths"]
        self._log = DecisionLog(said["log"])
        self.router = Router(
            {tuple(said["ends"]): [[name] for name, _, _ in paths]}, loads(said["policy"]),
            log=self._log,
        )  # fmt: skip
        self._flow = (*said["ends"], 0)
        self._feed = Feed(said["readings"], self.router)
        gateways = [Gateway(address=address, device=device) for _, address, device in paths]
        group = NexthopGroup(said["destination"], gateways)
        group.apply([1.0] + [0.0] * (len(paths) - 1))  # takes longer than all later changes
        # The kernel moves a flow as a whole, so one unit tells all.
        self._executor = Executor(
            self.router, [self._feed], {self._flow: group}, units=1, log=self._log
        )

    def listen(self) -> None:
        """Take readings only, while there is nothing to send."""
        self._feed.poll()

    def turn(self) -> tuple[int, list[float]] | None:
        """Take readings, decide, move.

        Returns:
            Where something was moved, when that was done (CLOCK_MONOTONIC, ns) and the shares.
        """
        if not self._executor.turn():
            return None
        return time.monotonic_ns(), self._executor.shares(self._flow) or []

    @property
    def alive(self) -> bool:
        """Whether a probe agent writes the readings."""
        return self._feed.alive

    @property
    def dead(self) -> list[str]:
        """Paths that are blacklisted."""
        links = self.router.links
        return [
            n for n, worth in zip(links.names, links.worth, strict=True) if worth == float("inf")
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.undo()
        self._feed.close()
        self._log.close()

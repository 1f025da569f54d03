"""What each port has sent, received, waited and miscounted by any moment, exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.planted.run import History

Signal = tuple[np.ndarray, np.ndarray]  # edges of time, value cumulated by then


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """Something a port counts beside what the flows make it count.

    Attributes:
        kind: ``wait`` (share of time) or ``errors`` (a second).
    """

    port: int
    kind: str
    start_s: float
    end_s: float
    value: float


class Tallies:
    """Integrals of each port's signals over time, in units of seconds at line rate.

    Kinds: sent, received, wait, held (what it makes the port at the other end wait), errors.
    """

    def __init__(self, history: History, extras: Iterable[Extra]) -> None:
        self.history = history
        fabric = history.plan.fabric
        self._peer = [fabric.of_link[port.peer].index for port in fabric.ports]
        self._extras: dict[tuple[str, int], list[Extra]] = {}
        for extra in [*extras, *self._sick_errors()]:
            self._extras.setdefault((extra.kind, extra.port), []).append(extra)

    def _sick_errors(self) -> Iterable[Extra]:
        for plant in self.history.plan.plants:
            for root in plant.slow if plant.errors_s else ():
                for start, end in plant.bursts:
                    yield Extra(
                        port=self._peer[root],
                        kind="errors",
                        start_s=start,
                        end_s=end,
                        value=plant.errors_s,
                    )

    @cached_property
    def _load(self) -> np.ndarray:
        return np.array([steady.load for steady, _ in self.history.states])

    @cached_property
    def _wait(self) -> np.ndarray:
        return np.array([steady.wait for steady, _ in self.history.states])

    def extras(self, kind: str, port: int) -> list[Extra]:
        return self._extras.get((kind, port), [])

    def rate(self, kind: str, port: int) -> np.ndarray:
        """What the flows make of a signal, by state."""
        peer = self._peer[port]
        if kind == "sent":
            return np.asarray(self._load[:, port])
        if kind == "received":
            return np.asarray(self._load[:, peer])
        if kind == "wait":
            return np.asarray(self._wait[:, port])
        if kind == "held":
            return np.asarray(self._wait[:, peer])
        return np.zeros(len(self.history.states))

    def at(self, kind: str, port: int, times: np.ndarray) -> np.ndarray:
        """What a port has counted by each of these times."""
        total = np.interp(times, self.history.edges, self.history.integral(self.rate(kind, port)))
        for extra in self.extras(kind, port):
            span = extra.end_s - extra.start_s
            total = total + extra.value * np.clip(times - extra.start_s, 0.0, span)
        return np.asarray(total)

    def above(self, kind: str, port: int, value: float) -> list[tuple[float, float]]:
        """Spans of time in which a signal is at ``value`` or above."""
        edges = self.history.edges
        high = self.rate(kind, port)[self.history.state] >= value
        spans = [(float(edges[i]), float(edges[i + 1])) for i in np.flatnonzero(high)]
        spans += [(e.start_s, e.end_s) for e in self.extras(kind, port) if e.value >= value]
        return joined(spans)


def joined(spans: Iterable[tuple[float, float]], gap_s: float = 1e-6) -> list[tuple[float, float]]:
    """Spans no further apart than ``gap_s`` as one."""
    out: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if out and start - out[-1][1] <= gap_s:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    return out

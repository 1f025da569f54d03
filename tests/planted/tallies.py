"""What each port has sent, received, waited and miscounted by any moment, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.planted.fabric import Path
from tests.planted.plan import Plan, Plant
from tests.planted.run import History

#: Signals, as shares of line rate or of time, of full-size packets at line rate, or a second.
KINDS = ("sent", "wait", "cnp", "marked", "drops", "resent", "errors")
# Receivers join the marks of a few packets into one notification.
NOTIFIED = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """Something a port counts beside what the flows make it count: one of ``KINDS``."""

    port: int
    kind: str
    start_s: float
    end_s: float
    value: float


class Tallies:
    """Integrals of each port's signals over time.

    Kinds: sent, received (seconds at line rate), wait, held (what it makes the port at the other
    end wait, seconds), cnp (notifications that slow this sender), marked (packets that arrive
    marked), both as shares of the full-size packets of line rate; drops, resent, errors.
    """

    def __init__(self, history: History, extras: Iterable[Extra]) -> None:
        self.history = history
        self.fabric = history.plan.fabric
        self._peer = [self.fabric.of_link[port.peer].index for port in self.fabric.ports]
        self._extras: dict[tuple[str, int], list[Extra]] = {}
        for extra in extras:
            self._extras.setdefault((extra.kind, extra.port), []).append(extra)
        shape = len(history.states), len(self.fabric.ports)
        self._values = {kind: np.zeros(shape) for kind in KINDS}
        self._values["sent"][:] = [steady.load for steady, _ in history.states]
        self._values["wait"][:] = [steady.wait for steady, _ in history.states]
        #: State -> port -> episodes that this port shows.
        self.shown: list[dict[int, set[int]]] = [{} for _ in history.states]
        for index in range(len(history.states)):
            self._mark(index)

    def _mark(self, index: int) -> None:
        """What a state's episodes make ports count."""
        steady, active = self.history.states[index]
        plan, shown = self.history.plan, self.shown[index]
        for number in active:
            plant = plan.plants[number]
            for port, roots in steady.roots.items():
                if roots & plant.roots:
                    shown.setdefault(port, set()).add(number)
            for root in plant.roots:
                self._values["errors"][index, self._peer[root]] += plant.errors_s
                self._values["drops"][index, root] += plant.drops_s
                if plant.drops_s:
                    shown.setdefault(root, set()).add(number)
                for path, rate in _through(plan, plant, root, steady.rates):
                    source, sink = path[0], self._peer[path[-1]]
                    marked = rate * plant.marks
                    self._values["marked"][index, sink] += marked
                    self._values["cnp"][index, source] += NOTIFIED * marked
                    self._values["resent"][index, source] += plant.drops_s * rate
                    if plant.marks:
                        for port in (source, sink):
                            shown.setdefault(port, set()).add(number)

    def extras(self, kind: str, port: int) -> list[Extra]:
        return self._extras.get((kind, port), [])

    def rate(self, kind: str, port: int) -> np.ndarray:
        """What the flows make of a signal, by state."""
        if kind in ("received", "held"):
            kind, port = {"received": "sent", "held": "wait"}[kind], self._peer[port]
        return np.asarray(self._values[kind][:, port])

    def at(self, kind: str, port: int, times: np.ndarray) -> np.ndarray:
        """What a port has counted by each of these times."""
        total = np.interp(times, self.history.edges, self.history.integral(self.rate(kind, port)))
        for extra in self.extras(kind, port):
            span = extra.end_s - extra.start_s
            total = total + extra.value * np.clip(times - extra.start_s, 0.0, span)
        return np.asarray(total)

    def above(self, port: int, signals: Sequence[tuple[str, float]]) -> list[tuple[float, float]]:
        """Spans of time in which one of some signals is at its value or above."""
        edges = self.history.edges
        high = np.zeros(len(self.history.states), bool)
        spans = []
        for kind, value in signals:
            high |= self.rate(kind, port) >= value
            spans += [(e.start_s, e.end_s) for e in self.extras(kind, port) if e.value >= value]
        segments = np.flatnonzero(high[self.history.state])
        return joined([*spans, *((float(edges[i]), float(edges[i + 1])) for i in segments)])


def _through(
    plan: Plan, plant: Plant, root: int, rates: dict[str, float]
) -> Iterable[tuple[Path, float]]:
    """Paths over a port, and their rates."""
    groups = [job.group for job in plan.jobs] + [group for group, _, _ in plan.busy]
    groups += [group for other in plan.plants for group in other.groups]
    for group in groups:
        if group.name in rates:
            for path in group.paths:
                if root in path:
                    yield path, rates[group.name]


def joined(spans: Iterable[tuple[float, float]], gap_s: float = 1e-6) -> list[tuple[float, float]]:
    """Spans no further apart than ``gap_s`` as one."""
    out: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if out and start - out[-1][1] <= gap_s:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    return out

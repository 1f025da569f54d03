"""Rates of flows in a lossless fabric, and who waits for whom: a fluid in equilibrium.

Ports serve their flows max-min fairly. A flow that a port limits keeps every port before it full:
they always have data, send what they send, and wait for credits for the rest of the time. Queues
are first in, first out, so whatever passes a full port moves no faster than the flow that fills
it (head-of-line blocking), and fills the ports before it in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.planted.fabric import Path

_NEAR = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Flows of one rate: a single one, or those of a job's collective, which move in step.

    Attributes:
        demand: Most that each flow would send, as a share of line rate.
    """

    name: str
    paths: tuple[Path, ...]
    demand: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """What holds while the same groups are active.

    Attributes:
        rates: Group -> rate of each of its flows.
        load: Share of line rate that each port sends.
        wait: Share of time in which each port has data and no credit.
        roots: Port that waits -> the ports it waits for.
        limits: Group -> the ports that limit it; none where only its source does.
        limiting: Ports that limit a flow and have others wait.
        began: Group that is stuck behind one that is stuck behind it -> the ports that limited
            the first of them when that began; without them nobody would wait.
    """

    rates: dict[str, float]
    load: np.ndarray
    wait: np.ndarray
    roots: dict[int, frozenset[int]]
    limits: dict[str, frozenset[int]]
    limiting: frozenset[int]
    began: dict[str, frozenset[int]]


def max_min(
    counts: np.ndarray, demand: np.ndarray, room: np.ndarray
) -> tuple[np.ndarray, list[list[int]]]:
    """Progressive filling.

    Args:
        counts: Flows of each group on each port.
        demand: Most that a flow of each group takes.
        room: What each port has to give.

    Returns:
        Rates, and for each group the ports that stopped it.
    """
    rates = np.zeros(len(demand))
    stopped: list[list[int]] = [[] for _ in demand]
    active = np.ones(len(demand), bool)
    left = room.astype(float).copy()
    while active.any():
        number = counts[active].sum(axis=0)
        share = np.full(len(left), np.inf)
        np.divide(left, number, out=share, where=number > 0)
        level = max(0.0, float(share.min()))
        wanted = float(demand[active].min())
        if wanted <= level + _NEAR:
            frozen = active & (demand <= wanted + _NEAR)
            rates[frozen] = demand[frozen]
        else:
            full = share <= level + _NEAR
            frozen = active & (counts[:, full].sum(axis=1) > 0)
            rates[frozen] = level
            for group in np.flatnonzero(frozen):
                stopped[group] = [int(p) for p in np.flatnonzero(full & (counts[group] > 0))]
        left = left - rates[frozen] @ counts[frozen]
        active &= ~frozen
    return rates, stopped


def settle(
    groups: Sequence[Group],
    capacity: np.ndarray,
    background: np.ndarray,
    deaf: frozenset[int] = frozenset(),
    mild: frozenset[int] = frozenset(),
) -> Steady:
    """Equilibrium of the active groups.

    Args:
        groups: What is active.
        capacity: Share of line rate that each port can send.
        background: Share that small flows take anyway.
        deaf: Ports that are slow without waiting (they repeat what was spoiled).
        mild: Ports that limit flows without holding back the ports before them: their senders
            are slowed by marks, or by loss.
    """
    counts = np.zeros((len(groups), len(capacity)))
    for index, group in enumerate(groups):
        for path in group.paths:
            for port in path:
                counts[index, port] += 1
    demand = np.array([group.demand for group in groups])
    caps = demand.copy()
    blocked_at: dict[int, tuple[int, int]] = {}
    began: dict[int, frozenset[int]] = {}
    while True:
        rates, stopped = max_min(counts, caps, capacity - background)
        full = _full_ports(groups, rates, caps, stopped, blocked_at, mild)
        changed = False
        for port, holders in full.items():
            slowest = min(holders, key=lambda g: (rates[g], g))
            for other in np.flatnonzero(counts[:, port] > 0):
                if rates[other] > rates[slowest] + 1e-6:
                    caps[other] = rates[slowest]
                    blocked_at[int(other)] = (port, slowest)
                    first = frozenset(stopped[slowest]) or began.get(slowest, frozenset())
                    began[int(other)] = first or began.get(int(other), frozenset())
                    changed = True
        if not changed:
            break
    load = rates @ counts + background
    return _told(groups, rates, load, capacity, stopped, full, blocked_at, began, deaf)


def _limits(
    group: int,
    rates: np.ndarray,
    caps: np.ndarray,
    stopped: list[list[int]],
    blocked_at: dict[int, tuple[int, int]],
) -> tuple[list[int], int | None]:
    """Ports that limit a group, and the full port in whose queue it is stuck."""
    if stopped[group]:
        return stopped[group], None
    if group in blocked_at and rates[group] >= caps[group] - 1e-6:
        return [], blocked_at[group][0]
    return [], None


def _full_ports(
    groups: Sequence[Group],
    rates: np.ndarray,
    caps: np.ndarray,
    stopped: list[list[int]],
    blocked_at: dict[int, tuple[int, int]],
    mild: frozenset[int],
) -> dict[int, set[int]]:
    """Ports that are full of a blocked flow -> the groups of those flows."""
    full: dict[int, set[int]] = defaultdict(set)
    for index, group in enumerate(groups):
        ports, stuck = _limits(index, rates, caps, stopped, blocked_at)
        for path in group.paths:
            for limit in ports:
                if limit in path and limit not in mild:
                    for port in path[: path.index(limit)]:
                        full[port].add(index)
            if stuck is not None and stuck in path:
                for port in path[: path.index(stuck) + 1]:
                    full[port].add(index)
    return full


def _told(
    groups: Sequence[Group],
    rates: np.ndarray,
    load: np.ndarray,
    capacity: np.ndarray,
    stopped: list[list[int]],
    full: dict[int, set[int]],
    blocked_at: dict[int, tuple[int, int]],
    began: dict[int, frozenset[int]],
    deaf: frozenset[int],
) -> Steady:
    def roots_of(group: int, seen: frozenset[int]) -> frozenset[int]:
        if stopped[group]:
            return frozenset(stopped[group])
        if group not in blocked_at or group in seen:
            return frozenset()
        return roots_of(blocked_at[group][1], seen | {group})

    of_group = {index: roots_of(index, frozenset()) for index in range(len(groups))}
    wait = np.zeros(len(load))
    roots: dict[int, frozenset[int]] = {}
    for port, holders in full.items():
        roots[port] = frozenset().union(*(of_group[g] for g in holders))
        wait[port] = max(0.0, 1.0 - load[port])
    for slow in (int(p) for p in np.flatnonzero(capacity < 1.0)):
        if load[slow] >= capacity[slow] - 1e-6 and slow not in deaf:
            roots[slow] = roots.get(slow, frozenset()) | {slow}
            wait[slow] = 1.0 - load[slow]
    return Steady(
        rates={group.name: float(rates[i]) for i, group in enumerate(groups)},
        load=load,
        wait=wait,
        roots=roots,
        limits={group.name: of_group[i] for i, group in enumerate(groups)},
        limiting=frozenset().union(*roots.values()) if roots else frozenset(),
        began={groups[i].name: ports for i, ports in began.items() if not of_group[i]},
    )

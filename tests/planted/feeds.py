"""How ports are sampled: by whom, when, under which name, and what goes wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.planted.fabric import Fabric, Port
from tests.planted.plan import Plan
from tests.planted.truth import Watched

OFFSET_S = 40.0  # of the host whose clock is wrong
DOMAIN = "dc1.example.net"
# An interval longer than this many nominal ones tells nothing of what happened in it.
_MISSING = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """One source's samples of one port.

    Attributes:
        times: True moments of its samples, seconds after the beginning, rising.
        offset_s: What the stamps are ahead of the truth.
        host: The host as this source calls it; with ``by_name`` the link is called after it.
        resets: When the port's counters went to zero.
        stuck: The wait counter sits at its maximum.
    """

    port: int
    times: np.ndarray
    interval_s: float
    offset_s: float = 0.0
    host: str | None = None
    by_name: bool = False
    resets: tuple[float, ...] = ()
    stuck: bool = False


@dataclass(kw_only=True)
class Feeds:
    """All sources.

    Attributes:
        offsets_s: Host -> what its clock is ahead of the truth.
        named: Hosts of which no source tells names and GUIDs together but the topology.
    """

    feeds: list[Feed]
    offsets_s: dict[str, float] = field(default_factory=dict)
    named: frozenset[str] = frozenset()

    def watched(self) -> dict[int, Watched]:
        """What each port's samples tell, whoever took them."""
        by_port: dict[int, list[Feed]] = {}
        for feed in self.feeds:
            by_port.setdefault(feed.port, []).append(feed)
        return {port: _watched(feeds) for port, feeds in by_port.items()}


def _watched(feeds: Sequence[Feed]) -> Watched:
    times = np.unique(np.concatenate([feed.times for feed in feeds]))
    interval = max(feed.interval_s for feed in feeds)
    known = np.ones(len(times) - 1, bool)
    for reset in feeds[0].resets:
        after = int(np.searchsorted(times, reset))
        if 0 < after < len(times):
            known[after - 1] = False
    spans = np.diff(times)
    long = spans > np.maximum(_MISSING * interval, 10.0)
    masks = [(float(times[i]), float(times[i + 1])) for i in np.flatnonzero(long)]
    # A reset costs one interval; where that is longer than the longest gap, it hides it.
    masks += [(float(times[i]), float(times[i + 1])) for i in np.flatnonzero(~known & (spans > 8))]
    if any(feed.stuck for feed in feeds):
        masks = [(-1e9, 1e9)]
    return Watched(times=times, interval_s=interval, known=known, masks=tuple(sorted(masks)))


def clean_feeds(plan: Plan, rng: np.random.Generator, view: str) -> Feeds:
    """Every port of the view each second, in its own phase."""
    return Feeds(
        feeds=[
            Feed(
                port=port.index,
                times=np.arange(rng.uniform(0.0, 1.0), plan.length_s, 1.0),
                interval_s=1.0,
                host=port.host,
            )
            for port in plan.fabric.ports
            if _in_view(port, view)
        ]
    )


def _in_view(port: Port, view: str) -> bool:
    return view == "all" or (view == "hosts") == (port.host is not None)


def messy_feeds(plan: Plan, rng: np.random.Generator, view: str) -> Feeds:
    """Hosts each second under their names, switches every 5 or 10 s, and all that goes wrong."""
    fabric, length = plan.fabric, plan.length_s
    hosts = [fabric.host_name(h) for h in range(fabric.hosts)]
    late = fabric.host_name(plan.jobs[0].hosts[int(rng.integers(len(plan.jobs[0].hosts)))])
    others = [str(h) for h in rng.permutation([h for h in hosts if h != late])]
    twice, stuck, long_names = set(others[:8]), set(others[8:11]), set(others[11:20])
    gone = _outages(fabric, rng, length, others[20:22])
    phases: dict[str, tuple[float, float]] = {}
    feeds: list[Feed] = []
    for port in fabric.ports:
        if not _in_view(port, view):
            continue
        if port.guid not in phases:
            interval = 1.0 if port.host else float(rng.choice([5.0, 10.0]))
            phases[port.guid] = float(rng.uniform(0.0, interval)), interval
        phase, interval = phases[port.guid]
        feed = Feed(
            port=port.index,
            times=_times(rng, phase, interval, length, gone.get(port.guid)),
            interval_s=interval,
            offset_s=OFFSET_S if port.host == late else 0.0,
            host=f"{port.host}.{DOMAIN}" if port.host in long_names else port.host,
            by_name=port.host is not None,
            stuck=port.host in stuck,
        )
        feeds.append(feed)
        if port.host in twice:
            times = _times(rng, float(rng.uniform(0.0, 10.0)), 10.0, length, None)
            feeds.append(Feed(port=port.index, times=times, interval_s=10.0))
    _reset_some(plan, feeds, rng)
    return Feeds(
        feeds=feeds, offsets_s={late: OFFSET_S}, named=frozenset(h for h in others[22:40])
    )


def _times(
    rng: np.random.Generator,
    phase: float,
    interval: float,
    length: float,
    gone: tuple[float, float] | None,
) -> np.ndarray:
    """Moments of samples with jitter; some are missing, and a whole stretch where ``gone``."""
    times = np.arange(phase, length, interval)
    times = times + rng.uniform(0.0, 0.02 * interval, len(times))
    times = times[rng.random(len(times)) > 0.01]
    if gone is not None:
        times = times[(times < gone[0]) | (times > gone[1])]
    return np.asarray(times)


def _outages(
    fabric: Fabric, rng: np.random.Generator, length: float, hosts: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Nodes whose collector is down for minutes: these hosts and one leaf."""
    guids = [port.guid for port in fabric.ports if port.host in hosts]
    guids.append(fabric.leaf(int(rng.integers(fabric.leaves)))[0])
    spans = {}
    for guid in guids:
        start = float(rng.uniform(0.1, 0.7)) * length
        spans[guid] = start, start + float(rng.uniform(100.0, 200.0))
    return spans


def _reset_some(plan: Plan, feeds: list[Feed], rng: np.random.Generator) -> None:
    """Reset counters of some ports at any time, and of some while they wait or are waited for."""
    ports = sorted({feed.port for feed in feeds})
    resets: dict[int, list[float]] = {}
    for _ in range(8):
        port = int(rng.choice(ports))
        resets.setdefault(port, []).append(float(rng.uniform(0.05, 0.95) * plan.length_s))
    for plant in plan.plants[::3]:
        for group in plant.groups[:1]:
            port = int(rng.choice(group.paths[0]))
            when = float(rng.uniform(plant.start_s, plant.end_s))
            resets.setdefault(port, []).append(when)
    for index, feed in enumerate(feeds):
        if feed.port in resets:
            feeds[index] = replace(feed, resets=tuple(sorted(resets[feed.port])))

"""Leaves, their hosts and their links upward, each with what its history says it has to spare."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xtune.errors import NoDataError
from xtune.pipelines.history import History, LinkHistory

# rdma-ndd's form of an adapter's description is "<host> <device>"; older stacks wrote HCA-1.
_DEVICE = re.compile(r"(?i)hca-\d+|[a-z][a-z0-9]*_\d+|rocep\w+|ibp\w+")
# Not a host's: the reduction engine inside a switch, which hangs on it like an adapter.
_ENGINE = "aggregation node"
_NOTHING = LinkHistory()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """Both directions between two ports; the busier one counts.

    Attributes:
        up: Link away from hosts.
        down: Link back.
        name: As people call the end that it is of, ``<node>:<port>``.
        to: The node at the other end.
        rate_gbps: Of the near port; None unknown.
        mean: Busy share, 0..1; None where one direction has no readings.
        high: Busy share that a twentieth of the readings exceeded; None likewise.
        known_s: For how long the less known direction is.
        episode_s: In congestion episodes, the worse direction.
        sick: Whether either was the root of a sick link's episode.
    """

    up: str
    down: str
    name: str
    to: str
    rate_gbps: float | None
    mean: float | None
    high: float | None
    known_s: float
    episode_s: float
    sick: bool

    def spare(self, reserved: Mapping[str, float]) -> float | None:
        """Share that is left at high load beside reservations, 0..1; None unknown."""
        if self.high is None:
            return None
        taken = max(reserved.get(self.up, 0.0), reserved.get(self.down, 0.0))
        return max(0.0, 1.0 - self.high - taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host and its adapters' cables."""

    name: str
    cables: tuple[Cable, ...]

    @property
    def sick(self) -> bool:
        """Whether a cable of it is."""
        return any(cable.sick for cable in self.cables)

    def spare(self, reserved: Mapping[str, float]) -> float | None:
        """Share that its fullest cable has left; None where one is unknown."""
        found = [cable.spare(reserved) for cable in self.cables]
        known = [spare for spare in found if spare is not None]
        return min(known) if known and len(known) == len(found) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """Hosts on the same switch, or on the same set of them (rails), and the way up from there."""

    name: str
    hosts: tuple[Host, ...]
    uplinks: tuple[Cable, ...]

    @property
    def usable(self) -> tuple[Cable, ...]:
        """Uplinks that are known and sound."""
        return tuple(c for c in self.uplinks if c.high is not None and not c.sick)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What `survey` found.

    Attributes:
        leaves: By name.
        notes: What had to be assumed.
    """

    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()


def survey(history: History, since_ns: int, until_ns: int) -> Fabric:
    """The fabric with its history between two instants, nanoseconds since the epoch.

    Raises:
        NoDataError: No topology was collected, or it shows no host on a switch.
    """
    return _Survey(history, since_ns, until_ns).fabric()


class _Survey:
    def __init__(self, history: History, since_ns: int, until_ns: int) -> None:
        self.topology = history.fabric()
        self.history = history.links(since_ns, until_ns)
        self.bearers = Counter(self.topology.names.values())
        self.guessed = 0

    def fabric(self) -> Fabric:
        topology = self.topology
        hosts: dict[str, list[Cable]] = defaultdict(list)
        for node in sorted(topology.out_of):
            if not topology.is_host(node) or _ENGINE in topology.names.get(node, "").lower():
                continue
            cables = [self._cable(link) for link in topology.out_of[node]]
            hosts[self._host(node)] += [c for c in cables if not topology.is_host(c.to)]
        groups: dict[tuple[str, ...], list[Host]] = defaultdict(list)
        for name, cables in sorted(hosts.items()):
            if cables:
                switches = tuple(sorted({cable.to for cable in cables}, key=self._called))
                groups[switches].append(Host(name=name, cables=tuple(cables)))
        if not groups:
            raise NoDataError(
                "this lake knows no host on a switch", "xtune collect the output of ibnetdiscover"
            )
        leaves = [
            Leaf(
                name=", ".join(self._called(switch) for switch in switches),
                hosts=tuple(found),
                uplinks=tuple(self._uplinks(switches)),
            )
            for switches, found in groups.items()
        ]
        return Fabric(
            leaves=tuple(sorted(leaves, key=lambda leaf: leaf.name)), notes=tuple(self._notes())
        )

    def _uplinks(self, switches: Iterable[str]) -> list[Cable]:
        own = set(switches)
        links = [link for switch in sorted(own) for link in self.topology.out_of[switch]]
        cables = [
            self._cable(link) for link in links if not self.topology.is_host(self._beyond(link))
        ]
        return [cable for cable in cables if cable.to not in own]

    def _beyond(self, link: str) -> str:
        return self.topology.hops[link].next_node

    def _cable(self, link: str) -> Cable:
        hop = self.topology.hops[link]
        ends = [self.history.get(end, _NOTHING) for end in (link, hop.receiver)]
        means = [end.mean for end in ends if end.mean is not None]
        highs = [end.high for end in ends if end.high is not None]
        facts = self.topology.identity.facts.get(link)
        return Cable(
            up=link,
            down=hop.receiver,
            name=f"{self._called(hop.node)}:{link.rpartition('/')[2]}",
            to=hop.next_node,
            rate_gbps=facts.rate_gbps if facts is not None else None,
            mean=max(means) if len(means) == len(ends) else None,
            high=max(highs) if len(highs) == len(ends) else None,
            known_s=min(end.known_s for end in ends),
            episode_s=max(end.episode_s for end in ends),
            sick=any(end.sick_s > 0 for end in ends),
        )

    def _called(self, node: str) -> str:
        """A node's description; beside its GUID where another has the same."""
        name = self.topology.names.get(node) or node
        return f"{name} {node}" if self.bearers[name] > 1 else name

    def _host(self, node: str) -> str:
        """The host of an adapter; where no source says, by its description's form."""
        known = self.topology.host(node)
        if known is not None:
            return known
        self.guessed += 1
        words = self.topology.names.get(node, "").replace("'", " ").split()
        rest = [word for word in words if not _DEVICE.fullmatch(word)]
        return rest[0].lower() if len(rest) == 1 else self._called(node)

    def _notes(self) -> Iterable[str]:
        if self.guessed:
            yield f"hosts of {self.guessed} adapters are named by their descriptions alone"

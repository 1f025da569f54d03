"""Sorts series by what they are of, ports, GPUs or operations, and makes rows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xtune.collectors._base import Context, Item, Note, Unknown
from xtune.collectors._prometheus import Group, Names, Ports
from xtune.collectors._prometheus_collectives import Collectives
from xtune.collectors._prometheus_ethtool import Ethernet
from xtune.collectors._prometheus_gpu import DCGM_OWN, XPU_OWN, Gpus, xpu_meaning
from xtune.collectors._prometheus_names import (
    DCGM,
    ETHTOOL,
    GPUS,
    NODE_RATE,
    PORTS,
    TOLD,
    XPU_GPU,
    recognise,
)

_OWN = {DCGM: DCGM_OWN, XPU_GPU: XPU_OWN}
#: Names listed one by one; a hostile file can have millions.
_LISTED = 10_000
NOTHING = "nothing here that xtune knows: no port, GPU or NCCL figures among its metrics"


@dataclass(frozen=True, slots=True)
class Key:
    """What makes series belong together: the exporter and every label but the name."""

    exporter: str
    labels: tuple[tuple[str, str], ...]


def key_of(exporter: str, labels: Mapping[str, str]) -> Key:
    """The key of a series' labels."""
    own = _OWN.get(exporter, frozenset())
    kept = (p for p in labels.items() if p[0] != "__name__" and p[0] not in own)
    return Key(exporter, tuple(sorted(kept)))


def meaning_of(exporter: str, meaning: str, labels: Mapping[str, str]) -> str:
    """What a series tells of its group, where the metric's name is not enough."""
    return xpu_meaning(meaning, labels) if exporter == XPU_GPU else meaning


class Others:
    """Names of metrics that are not ours, counted."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.summaries: set[str] = set()

    def add(self, name: str) -> None:
        """Count one series or sample of a name."""
        if name not in self._counts and len(self._counts) >= _LISTED:
            name = "(others)"
        self._counts[name] += 1

    def __bool__(self) -> bool:
        return bool(self._counts)

    def items(self) -> Iterator[Item]:
        """Yield them: histograms and summaries once, creation times of our own counters never."""
        found: Counter[str] = Counter()
        for name, count in self._counts.items():
            base, _, suffix = name.rpartition("_")
            if suffix in ("bucket", "sum", "count", "created") and base in self.summaries:
                name = base
            elif suffix == "created" and (recognise(base) or recognise(f"{base}_total")):
                continue
            found[name] += count
        for name, count in found.items():
            yield Unknown(name, count)


class Writer:
    """Makes the rows of all tables.

    Args:
        context: What the user says.
        unknown: Stands for the host of ports where nothing tells it.
    """

    def __init__(self, context: Context, unknown: str) -> None:
        self.names = Names()
        self.ports = Ports(context, self.names, unknown)
        self._gpus = Gpus(context)
        self._collectives = Collectives(context)
        self._ethernet = Ethernet(context)
        self._held: list[Group] = []

    def tell(self, exporter: str, meaning: str, labels: Mapping[str, str], value: float) -> bool:
        """Take what is said of a whole device or node; ``False`` where it is of one port."""
        if meaning in TOLD:
            self.names.learn(exporter, meaning, labels)
        elif meaning == NODE_RATE:
            self.ports.learn_rate(labels, value)
        else:
            return False
        return True

    def group(self, exporter: str, labels: Mapping[str, str]) -> tuple[int, Group]:
        """A new group: its index among ports, else -1, and where its gauges go."""
        if exporter in PORTS:
            return self.ports.group(exporter, labels)
        group = Group(exporter, {k: v for k, v in labels.items() if k != "__name__"})
        self._held.append(group)
        return -1, group

    def flush(self, place: str) -> Iterator[Item]:
        """Rows of all groups since the last flush."""
        yield from self.ports.flush(place)
        self._ethernet.unknown = self.ports.unknown
        held, self._held = self._held, []
        for group in held:
            if not group.gauges:
                continue
            if group.exporter == ETHTOOL:
                yield from self._ethernet.add(group)
            elif group.exporter in GPUS:
                yield from self._gpus.add(group)
            else:
                yield from self._collectives.add(group)

    def finish(self) -> Iterator[Item]:
        """Yield what is left, and the notes."""
        yield from self.ports.finish()
        for part in (self._gpus, self._collectives, self._ethernet):
            yield from part.finish()
        notes = self.ports.notes + self._gpus.notes + self._collectives.notes
        for text, times in notes.items():
            yield Note(text, times)

"""Clock repair: each host's offset on each UTC day, and where it is sure enough to be applied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median_low

import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines._clock_collectives import Group, Stretch, from_collectives
from xtune.pipelines._clock_counters import Lag
from xtune.pipelines._clock_fabric import Sampled, find_lags, find_ports, sampling_ns
from xtune.pipelines._engine import Session
from xtune.pipelines._identity import Identity
from xtune.pipelines._state import digest
from xtune.pipelines._tables import DayInput, DayTable

FABRIC = "fabric"
# A smaller offset moves no interval of counters to another place.
MATERIAL_NS = 500_000_000
# Hosts of a group that tie it to the fabric's clock.
_ANCHORS = 5
# Hosts that differ are looked at from the counters' side as well, so many of a group.
_CHECKED = 20
_NAMED = 8

_ESTIMATES = pa.schema(
    [
        ("host", pa.string()),
        ("from_ns", pa.int64()),
        ("to_ns", pa.int64()),
        ("offset_ns", pa.int64()),
        ("low_ns", pa.int64()),
        ("high_ns", pa.int64()),
        ("source", pa.string()),
        ("reference", pa.string()),
        ("samples", pa.int64()),
        ("applied", pa.bool_()),
    ]
)
_CLOCKS = pa.schema(
    [
        ("host", pa.string()),
        ("from_ns", pa.int64()),
        ("to_ns", pa.int64()),
        ("offset_ns", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """One row of ``clock_offsets``; times are of the host's own clock.

    Attributes:
        host: Its one name.
        from_ns: Start of validity.
        to_ns: End of validity.
        offset_ns: Host's clock minus the reference's.
        low_ns: Lower bound.
        high_ns: Upper bound.
        source: ``collectives`` or ``counters``.
        reference: ``fabric``, or the host whose clock is the median of those compared.
        samples: Collectives, or intervals of counters, that it rests on.
        applied: Whether derived times are repaired by it.
    """

    host: str
    from_ns: int
    to_ns: int
    offset_ns: int
    low_ns: int
    high_ns: int
    source: str
    reference: str
    samples: int
    applied: bool = False


@dataclass(kw_only=True, slots=True)
class Clocks:
    """The repairs of a lake: where offsets are applied, and which.

    Attributes:
        stretches: Host -> (from_ns, to_ns, offset_ns) of its own clock, in the order of time.
    """

    stretches: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, lake: Lake) -> Clocks:
        """The applied rows of ``clock_offsets``."""
        clocks = cls()
        names = ["host", "from_ts", "to_ts", "offset_ns", "applied"]
        table = lake.read("derived/clock_offsets", columns=names)
        columns = [table["host"].to_pylist()]
        columns += [table[name].cast(pa.int64()).to_pylist() for name in names[1:4]]
        columns += [table["applied"].to_pylist()]
        rows = zip(*columns, strict=True)
        for host, begin, end, offset, applied in sorted(rows):
            if applied:
                clocks.stretches.setdefault(host, []).append((begin, end, offset))
        return clocks

    def offset_ns(self, host: str | None, at_ns: int) -> int:
        """What a host's clock is ahead when it shows ``at_ns``; 0 where that is not sure."""
        found = self.stretches.get(host or "", [])
        place = bisect_right(found, at_ns, key=lambda stretch: stretch[0]) - 1
        return found[place][2] if place >= 0 and at_ns < found[place][1] else 0

    def within(
        self, host: str | None, start_ns: int, end_ns: int
    ) -> tuple[tuple[int, int, int], ...]:
        """The stretches of a host's clock that touch a span of it."""
        found = self.stretches.get(host or "", [])
        return tuple(s for s in found if s[0] < end_ns and s[1] > start_ns)

    def mark(self, start_ns: int, end_ns: int) -> str:
        """Digest of all stretches that touch a span; empty where every clock is right."""
        off = [
            (host, found)
            for host in sorted(self.stretches)
            if (found := self.within(host, start_ns, end_ns))
        ]
        return digest(off) if off else ""

    def load(self, session: Session) -> None:
        """Make relation ``host_clocks``: host, from_ns, to_ns, offset_ns."""
        rows = [
            dict(zip(_CLOCKS.names, (host, *stretch), strict=True))
            for host, found in sorted(self.stretches.items())
            for stretch in found
        ]
        session.load("host_clocks", pa.Table.from_pylist(rows, schema=_CLOCKS))


def load_host_names(session: Session, identity: Identity) -> None:
    """Make relation ``host_names``: a host as read, and its one name."""
    hosts = sorted(identity.hosts.items())
    columns = [[read for read, _ in hosts], [name for _, name in hosts]]
    arrays = [pa.array(column, pa.string()) for column in columns]
    session.load("host_names", pa.table(arrays, names=["host", "name"]))


def estimate(given: DayInput) -> tuple[list[Offset], list[str]]:
    """Offsets of a day, from its collectives and its counters, and notes for the user."""
    load_host_names(given.session, given.identity)
    groups = from_collectives(given.session, given.start_ns, given.end_ns)
    sampled = find_ports(given)
    lags = find_lags(given, sampled, _wanted(groups, sampled))
    offsets: list[Offset] = []
    notes: list[str] = []
    for group in groups:
        offsets += _of_group(given, group, lags, sampled, notes)
    grouped = {host for group in groups for host in group.stretches}
    for host, lag in sorted(lags.items()):
        if host not in grouped:
            offsets.append(_decide(given, _from_lag(given, host, lag), sampled))
    unanchored = len({offset.reference for offset in offsets} - {FABRIC})
    if unanchored > 1:
        notes.append(
            f"clocks: {unanchored} groups of hosts share no collective; each is compared with"
            " its own median host"
        )
    notes += _unknown(given, {offset.host for offset in offsets} | grouped, sampled)
    return sorted(offsets, key=lambda o: (o.host, o.from_ns)), notes


def prepare(given: DayInput) -> list[str]:
    """Make relation ``clock_estimates`` of a day."""
    offsets, notes = estimate(given) if given.date is not None else ([], [])
    rows = [asdict(offset) for offset in offsets]
    given.session.load("clock_estimates", pa.Table.from_pylist(rows, schema=_ESTIMATES))
    return notes


TABLE = DayTable(
    name="clock_offsets",
    inputs=("collectives", "link_counters"),
    reach_days=1,
    prepare=prepare,
    rests_on=("identity", "topology"),
    before_rates=True,
)


def _wanted(groups: Sequence[Group], sampled: Sampled) -> list[str]:
    """Hosts whose counters are worth comparing: anchors, those that differ, those in no group."""
    wanted: list[str] = []
    grouped: set[str] = set()
    for group in groups:
        grouped |= group.stretches.keys()
        there = sorted(group.stretches.keys() & sampled.ports.keys())
        differ = [host for host in there if _differs(group.stretches[host])]
        plain = [host for host in there if host not in differ]
        wanted += plain[:_ANCHORS] + differ[:_CHECKED]
    return [*wanted, *sorted(sampled.ports.keys() - grouped)]


def _differs(stretches: Iterable[Stretch]) -> bool:
    return any(abs(stretch.offset_ns) > MATERIAL_NS for stretch in stretches)


def _of_group(
    given: DayInput, group: Group, lags: Mapping[str, Lag], sampled: Sampled, notes: list[str]
) -> list[Offset]:
    """Offsets of one group, against the fabric's clock where it differs from the group's."""
    ties = {
        host: (lags[host], found[0])
        for host, found in group.stretches.items()
        if host in lags and len(found) == 1
    }
    shift = half = 0
    if ties:
        shift = median_low(lag.offset_ns - tie.offset_ns for lag, tie in ties.values())
        half = max(lag.half_ns for lag, _ in ties.values())
    moved = abs(shift) > half
    if not moved:
        shift = half = 0
    offsets = []
    for host, found in sorted(group.stretches.items()):
        own = [stretch.moved(shift, half) for stretch in found]
        if host in ties and _apart(lags[host], own[0]):
            notes.append(
                f"clock of {host}: ahead by {own[0].offset_ns / 1e9:.3f} s by collectives, by"
                f" {lags[host].offset_ns / 1e9:.3f} s by counters"
            )
        if host in ties and own[0].high_ns - own[0].low_ns > 2 * lags[host].half_ns:
            offsets.append(_decide(given, _from_lag(given, host, lags[host]), sampled))
            continue
        offsets += [
            _decide(
                given,
                Offset(
                    host=host,
                    **asdict(stretch),
                    source="collectives",
                    reference=FABRIC if moved else group.reference,
                    samples=group.samples[host],
                ),
                sampled,
                sure=bool(ties) or group.agreed,
            )
            for stretch in own
        ]
    return offsets


def _apart(lag: Lag, stretch: Stretch) -> bool:
    low, high = lag.offset_ns - 2 * lag.half_ns, lag.offset_ns + 2 * lag.half_ns
    return low > stretch.high_ns or high < stretch.low_ns


def _from_lag(given: DayInput, host: str, lag: Lag) -> Offset:
    return Offset(
        host=host,
        from_ns=given.start_ns,
        to_ns=given.end_ns,
        offset_ns=lag.offset_ns,
        low_ns=lag.offset_ns - lag.half_ns,
        high_ns=lag.offset_ns + lag.half_ns,
        source="counters",
        reference=FABRIC,
        samples=lag.cells,
    )


def _decide(given: DayInput, offset: Offset, sampled: Sampled, *, sure: bool = True) -> Offset:
    """Apply an offset where it is no 0, sure, and larger than half a sampling interval."""
    if not sure or offset.low_ns <= 0 <= offset.high_ns:
        return offset
    limit = MATERIAL_NS
    if abs(offset.offset_ns) <= limit and offset.host in sampled.hosts:
        names = {offset.host: sampled.hosts[offset.host]}
        step = sampling_ns(given, names).get(offset.host)
        limit = limit if step is None else min(limit, step // 2)
    return replace(offset, applied=abs(offset.offset_ns) > limit)


def _unknown(given: DayInput, known: set[str], sampled: Sampled) -> list[str]:
    """Say which hosts of the day have no estimate."""
    rows = given.session.rows(
        "SELECT DISTINCT coalesce(name, collectives.host) FROM collectives"
        " LEFT JOIN host_names ON host_names.host = collectives.host"
        f" WHERE epoch_ns(start_ts) >= {given.start_ns} AND epoch_ns(start_ts) < {given.end_ns}"
        " AND collectives.host IS NOT NULL"
    )
    lost = sorted(({host for (host,) in rows} | sampled.hosts.keys()) - known)
    if not lost:
        return []
    named = ", ".join(lost[:_NAMED]) + (", ..." if len(lost) > _NAMED else "")
    hosts = "1 host has" if len(lost) == 1 else f"{len(lost)} hosts have"
    return [f"clocks: {hosts} no estimate, so times are as read ({named})"]

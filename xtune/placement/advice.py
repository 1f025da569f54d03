"""Which hosts to take for a job, by what would be left on the fullest link that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xtune.errors import XtuneError
from xtune.placement.fabric import Cable, Fabric, Host, Leaf
from xtune.placement.patterns import leaving
from xtune.placement.reservations import Reservation

# Hosts are tried from the idlest on; on a fabric of thousands, at so many levels of spare share.
_LEVELS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a job wants.

    Attributes:
        ranks: In all.
        ranks_per_host: What a host has room for.
        pattern: How it communicates, one of `PATTERNS`.
        share: Of a host's links that it will use, 0..1, where it has the whole host.
    """

    ranks: int
    ranks_per_host: int
    pattern: str
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """Ranks on one host.

    Attributes:
        host: The host.
        leaf: Its leaf.
        ranks: How many of the job's.
        spare: Share of its fullest cable that was left before the job.
    """

    host: Host
    leaf: Leaf
    ranks: int
    spare: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Where to put a job.

    Attributes:
        takes: In the order of the job's ranks: hosts of a leaf stand together.
        links: Share of each link that the job will use, 0..1.
        headroom: What is left on the fullest of them; below 0 the job will contend there.
        tightest: That link, as people call it.
    """

    takes: tuple[Take, ...]
    links: Mapping[str, float]
    headroom: float
    tightest: str

    def reservation(self, job: str, made_ns: int, expires_ns: int) -> Reservation:
        """What the job takes, as later calls subtract it."""
        return Reservation(
            job=job,
            hosts={take.host.name: take.ranks for take in self.takes},
            links=dict(sorted(self.links.items())),
            made_ns=made_ns,
            expires_ns=expires_ns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    """What reservations leave.

    Attributes:
        ranks: By host, what it still has room for; 0 where it may not be taken.
        spares: By host, the share that its fullest cable has left; None unknown.
        reserved: By link, the share that is taken.
    """

    ranks: Mapping[str, int]
    spares: Mapping[str, float | None]
    reserved: Mapping[str, float] = field(default_factory=dict)


def free(fabric: Fabric, ranks_per_host: int, reservations: Iterable[Reservation]) -> Free:
    """Subtract reservations from what hosts have and links have left, never below nothing."""
    taken: dict[str, int] = {}
    reserved: dict[str, float] = {}
    for reservation in reservations:
        for host, ranks in reservation.hosts.items():
            taken[host] = taken.get(host, 0) + ranks
        for link, share in reservation.links.items():
            reserved[link] = reserved.get(link, 0.0) + share
    hosts = [host for leaf in fabric.leaves for host in leaf.hosts]
    return Free(
        ranks={host.name: max(0, ranks_per_host - taken.get(host.name, 0)) for host in hosts},
        spares={host.name: host.spare(reserved) for host in hosts},
        reserved=reserved,
    )


def may_take(host: Host, left: Free) -> bool:
    """Whether a host is known, sound and not all reserved."""
    return left.spares[host.name] is not None and not host.sick and left.ranks[host.name] > 0


def advise(fabric: Fabric, request: Request, left: Free) -> Advice:
    """The plan that leaves most on its fullest link; then the one on fewest leaves.

    Raises:
        XtuneError: Hosts that are known and sound have not room enough.
    """
    best: tuple[tuple[float, int, int], Advice] | None = None
    for takes in _candidates(fabric, request.ranks, left):
        advice = _evaluate(takes, request, left)
        if advice is None:
            continue
        leaves = len({take.leaf.name for take in takes})
        rank = (-round(advice.headroom, 6), leaves, len(takes))
        if best is None or rank < best[0]:
            best = rank, advice
    if best is None:
        raise XtuneError(_no_room(fabric, request, left), "xtune place lists leaves and why")
    return best[1]


def _candidates(fabric: Fabric, ranks: int, left: Free) -> Iterator[list[Take]]:
    """Plans: each leaf alone, then several, of the hosts above each level of spare share."""
    hosts = {leaf.name: _takeable(leaf, left) for leaf in fabric.leaves}
    for leaf in fabric.leaves:
        found = _filled(hosts[leaf.name], ranks)
        if found is not None:
            yield found
    levels = sorted({take.spare for takes in hosts.values() for take in takes}, reverse=True)
    step = max(1, len(levels) // _LEVELS)
    joinable = [leaf for leaf in fabric.leaves if leaf.usable]
    for level in [*levels[::step], *levels[-1:]]:
        above = {
            leaf.name: [take for take in hosts[leaf.name] if take.spare >= level]
            for leaf in joinable
        }
        largest = sorted(joinable, key=lambda leaf: (-_ranks(above[leaf.name]), leaf.name))
        idlest = sorted(joinable, key=lambda leaf: (-_room(leaf, left), leaf.name))
        for order in (largest, idlest):
            found = _filled([take for leaf in order for take in above[leaf.name]], ranks)
            if found is not None:
                yield found


def _takeable(leaf: Leaf, left: Free) -> list[Take]:
    """All that a leaf's hosts have room for, the idlest first."""
    found = [
        Take(
            host=host, leaf=leaf, ranks=left.ranks[host.name], spare=left.spares[host.name] or 0.0
        )
        for host in leaf.hosts
        if may_take(host, left)
    ]
    return sorted(found, key=lambda take: (-take.spare, -take.ranks, take.host.name))


def _ranks(takes: Iterable[Take]) -> int:
    return sum(take.ranks for take in takes)


def _room(leaf: Leaf, left: Free) -> float:
    """Uplinks' worth of spare share."""
    return sum(cable.spare(left.reserved) or 0.0 for cable in leaf.usable)


def _filled(order: Sequence[Take], ranks: int) -> list[Take] | None:
    """The first hosts that hold so many ranks; None where all of them do not."""
    found: list[Take] = []
    for take in order:
        if ranks <= 0:
            break
        used = min(ranks, take.ranks)
        found.append(Take(host=take.host, leaf=take.leaf, ranks=used, spare=take.spare))
        ranks -= used
    return found if ranks <= 0 else None


def _evaluate(takes: Sequence[Take], request: Request, left: Free) -> Advice | None:
    """What a plan uses and leaves; None where a leaf of several has no usable way up."""
    here: dict[str, list[Take]] = {}
    for take in takes:
        here.setdefault(take.leaf.name, []).append(take)
    loads: list[tuple[Cable, float]] = []
    if len(takes) > 1:
        for take in takes:
            share = request.share * take.ranks / request.ranks_per_host
            loads += [(cable, share) for cable in take.host.cables]
    for found in here.values():
        crossing = leaving(request.pattern, len(found), len(takes))
        if crossing:
            uplinks = _uplink_loads(found, crossing * request.share)
            if uplinks is None:
                return None
            loads += uplinks
    if not loads:  # one host: nothing leaves it
        spare = min(take.spare for take in takes)
        return Advice(takes=tuple(takes), links={}, headroom=spare, tightest=takes[0].host.name)
    rest = [((cable.spare(left.reserved) or 0.0) - load, cable.name) for cable, load in loads]
    headroom, tightest = min(rest)
    links = {link: load for cable, load in loads for link in (cable.up, cable.down)}
    return Advice(takes=tuple(takes), links=links, headroom=headroom, tightest=tightest)


def _uplink_loads(takes: Sequence[Take], crossing: float) -> list[tuple[Cable, float]] | None:
    """A leaf's traffic, spread over its usable uplinks by their rates, as ECMP does.

    Args:
        takes: On this leaf.
        crossing: What leaves it, in line rates of a host.
    """
    usable = takes[0].leaf.usable
    if not usable:
        return None
    host = sum(_width(cable) for cable in takes[0].host.cables)
    share = min(1.0, crossing * host / sum(_width(cable) for cable in usable))
    return [(cable, share) for cable in usable]


def _width(cable: Cable) -> float:
    """Its rate; where no source says, as wide as an NDR port, the commonest."""
    return cable.rate_gbps or 400.0


def _no_room(fabric: Fabric, request: Request, left: Free) -> str:
    hosts = [host for leaf in fabric.leaves for host in leaf.hosts]
    known = [host for host in hosts if left.spares[host.name] is not None]
    sick = sum(host.sick for host in known)
    full = sum(not host.sick and not left.ranks[host.name] for host in known)
    room = sum(left.ranks[host.name] for host in known if not host.sick)
    blank = "" if known else "; no port of theirs has a reading in the time looked at"
    apart = ", on leaves without known and sound uplinks" if room >= request.ranks else ""
    return (
        f"no room for {request.ranks} ranks: {room} on known and sound hosts{apart}; of"
        f" {len(hosts)} hosts {len(hosts) - len(known)} are unknown, {sick} are on sick links,"
        f" {full} are reserved{blank}"
    )

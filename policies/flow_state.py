"""What the router keeps of each flow: the paths between its ends, and where each pair stands."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from ._core import MOVE_BURST, hash31
from .spec import Routing

Flow: TypeAlias = tuple[str, str, Hashable]

_SLOTS = 3  # over which flows that would leave one queue spread
MOST_FLOWS = 65_536  # of which the state is kept; the oldest goes first
_FALLEN = 0.05  # of occupancy; less is noise
MOST_CANDIDATES = 8  # alternatives of one pair; a scan of them stays well within 10 us


class PathSet:
    """The paths between two ends, as link indices.

    Links that all paths share (a host's own) are no ground to choose by: kept apart.
    """

    __slots__ = ("common", "equal", "links", "longer", "number", "total", "units")

    def __init__(self, number: int, links: list[tuple[int, ...]]) -> None:
        self.number = number
        shared = set(links[0]).intersection(*links[1:])
        self.common = tuple(link for link in links[0] if link in shared)
        self.links = [tuple(link for link in path if link not in shared) for path in links]
        self.equal = [i for i, path in enumerate(links) if len(path) <= len(links[0])]
        self.longer = [i for i, path in enumerate(links) if len(path) > len(links[0])]
        self.total = 0.0  # forecast occupancy of the paths that units took, since the last publish
        self.units = 0


class Pair:
    """A flow's state on one (primary, alternative) pair."""

    __slots__ = (
        "alternative", "begun_ns", "budget", "budget_ns", "candidates", "moved_ns", "moves",
        "primary", "warned_ns", "warned_worth",
    )  # fmt: skip

    def __init__(self, primary: int, candidates: list[int], now_ns: int) -> None:
        self.primary = primary
        self.candidates = candidates
        self.alternative = -1  # the path in use instead of the primary, -1: none
        self.moved_ns: int | None = None
        self.moves = 0
        self.budget = MOVE_BURST
        self.budget_ns = self.begun_ns = now_ns
        self.warned_ns: int | None = None  # since when it would move and waits
        self.warned_worth = 0.0  # of the path in use then

    def yields(self, key: int, now_ns: int, worth: float, slot_ns: int, hold_ns: int) -> bool:
        """Whether the pair lets others move first; asked while it would move itself.

        Flows that meet in a queue are warned together; were all to leave at once, they would
        meet in the next one. Who came last moves at once, since the others were there without
        harm; the others wait for one to three slots, by a hash that each move changes, and stay
        where the warning has passed by then. A queue that falls meanwhile has been left by
        somebody, though it may take long to drain: the wait begins anew.

        Args:
            key: Tells flows apart, on other hosts as well.
            now_ns: When.
            worth: Forecast occupancy of the path in use.
            slot_ns: Time in which a move of one shows in the readings of another.
            hold_ns: Who began less long before the warning came last.
        """
        if (
            self.warned_ns is None
            or now_ns < self.warned_ns  # the clock was set back
            or worth < self.warned_worth - _FALLEN
        ):
            self.warned_ns, self.warned_worth = now_ns, worth
        slots = 1 + hash31(key, self.moves) % _SLOTS
        if not self.moves and 0 <= self.warned_ns - self.begun_ns < hold_ns:
            slots = 0  # not for who left a dead path, since others did so with it
        return now_ns - self.warned_ns < slots * slot_ns

    @property
    def path(self) -> int:
        """The path in use."""
        return self.primary if self.alternative < 0 else self.alternative


class FlowState:
    """One flow: its pairs, and how many of its units were sent.

    Args:
        ident: The flow's id.
        paths: The paths between its ends.
        routing: The policy's routing parameters.
        now_ns: Time of its first unit.
    """

    __slots__ = ("asked_ns", "hash", "pairs", "paths", "units")

    def __init__(self, ident: Hashable, paths: PathSet, routing: Routing, now_ns: int) -> None:
        self.paths = paths
        self.hash = hash31(_number(ident), paths.number)
        self.units = 0
        self.asked_ns = now_ns  # time of the last unit, for flowlets
        primaries = paths.equal[: routing.pairs]
        if routing.mode == "flowlet":
            primaries = [paths.equal[self.hash % len(paths.equal)]]
        self.pairs = [self._pair(primary, now_ns) for primary in primaries]

    def place(self, path: int, now_ns: int) -> None:
        """Send all units by one pair whose primary is the given path.

        Args:
            path: Its index in the path set.
            now_ns: When.
        """
        if len(self.pairs) > 1 or self.pairs[0].primary != path:  # else hold and budget go on
            self.pairs = [self._pair(path, now_ns)]

    def _pair(self, primary: int, now_ns: int) -> Pair:
        # Detours first ("edge first"), then the other shortest paths; each flow starts at
        # another one, so that flows that leave one hot link do not meet on the next.
        paths, key = self.paths, self.hash
        longer = turned([i for i in paths.longer if i != primary], key)
        detours = sorted(longer, key=lambda i: -len(paths.links[i]))
        others = turned([i for i in paths.equal if i != primary], key)
        return Pair(primary, (detours + others)[:MOST_CANDIDATES], now_ns)


def checked_paths(
    paths: Mapping[tuple[str, str], Sequence[Sequence[str]]],
) -> dict[tuple[str, str], list[Sequence[str]]]:
    """The paths between each two ends as lists.

    Args:
        paths: For each (src, dst) the paths as lists of links.

    Raises:
        ValueError: A path set or a path is empty, a path is no list, a key no pair.
    """
    made = {ends: list(alternatives) for ends, alternatives in paths.items()}
    for ends, alternatives in made.items():
        if not isinstance(ends, tuple) or len(ends) != 2:
            raise ValueError(f"{ends!r} is not a pair of ends (src, dst)")
        if any(isinstance(path, str) for path in alternatives):
            raise ValueError(
                f"a path between {ends[0]} and {ends[1]} is a text, not a list of links"
            )
        if not alternatives or not all(alternatives):
            raise ValueError(f"no path, or an empty one, between {ends[0]} and {ends[1]}")
    return made


def make_room(flows: dict[Flow, Any]) -> None:
    """Give up the oldest flow where too many are known."""
    if len(flows) >= MOST_FLOWS:
        with contextlib.suppress(KeyError, RuntimeError):  # another thread was faster
            del flows[next(iter(flows))]


def flow_key(flow: Flow) -> int:
    """Tells flows apart, on whichever host, in every run."""
    return zlib.crc32(repr(flow).encode()) & 0x7FFFFFFF


def turned(items: Sequence[int], by: int) -> list[int]:
    """The items, starting at another one."""
    if not items:
        return []
    start = by % len(items)
    return [*items[start:], *items[:start]]


def _number(ident: Hashable) -> int:
    """A flow's id as a non-negative number; text by its checksum, so that every run agrees."""
    if isinstance(ident, int):
        return ident & 0x7FFFFFFF
    return zlib.crc32(repr(ident).encode()) & 0x7FFFFFFF

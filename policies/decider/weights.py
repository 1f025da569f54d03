"""Link weights in shared memory, and from there to the router.

An entry of the table is one block of links as it came, so that taking one in costs the agent a
copy; who reads it takes it apart. Entries behind the blocks hold notes: JSON for ``show``.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..probe.following import Follower  # noqa: TID252 - exported under another name
from ..probe.table import (  # noqa: TID252 - exported under another name
    STALE_NS,
    Form,
    TableReader,
    TableWriter,
)
from .packet import MOST_BLOCKS, MOST_BODY_BYTES, Entry, split_body, unpack_body, unpack_names

_HEAD = struct.Struct("=QQqI")  # epoch, version, when its ages were true, bytes
_ROOM = MOST_BODY_BYTES
POLL_BLOCKS = 8  # in one call of a feed, which a job makes before it sends: a quarter of a ms
FORM = Form(b"xtuneWGT", 1, "link weights", _HEAD.size + _ROOM)


class Block(NamedTuple):
    """A block of links.

    Attributes:
        epoch, version: Of the snapshot that brought it.
        at_ns: When its ages were true, CLOCK_MONOTONIC.
        body: See `packet.unpack_body`.
    """

    epoch: int
    version: int
    at_ns: int
    body: bytes

    def entries(self) -> list[Entry]:
        """Its links."""
        return unpack_body(self.body) or []


class WeightsWriter(TableWriter):
    """The one writer of the weights, see `TableWriter`.

    Args:
        path: The file.
        notes: Room for so many.
        counters: Names of counts that are published beside the weights.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        TableError: Another writer holds the path.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        notes: int,
        counters: Sequence[str],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        names = [str(place) for place in range(MOST_BLOCKS + notes)]
        super().__init__(FORM, path, names, counters, clock)

    def publish(self, number: int, block: Block) -> None:
        """Replace one block."""
        self._put(number, block.epoch, block.version, block.at_ns, block.body)

    def clear(self) -> None:
        """Take all blocks away: a link may lie in another one in the next epoch."""
        for number in range(MOST_BLOCKS):
            if self.version(number):
                self._put(number, 0, 0, 0, b"")

    def note(self, place: int, known: Mapping[str, Any] | None) -> None:
        """Replace one note; None: there is none any more."""
        text = b"" if known is None else json.dumps(known).encode()
        self._put(MOST_BLOCKS + place, 0, 0, 0, text if len(text) <= _ROOM else b"")

    def _put(self, index: int, epoch: int, version: int, at_ns: int, content: bytes) -> None:
        head = _HEAD.pack(epoch, version, at_ns, len(content))
        self.write(index, (head + content).ljust(FORM.content_bytes, b"\0"))


class WeightsReader(TableReader):
    """Reads the weights, see `TableReader`.

    Args:
        path: The writer's file.
        clock: CLOCK_MONOTONIC in ns.
        stale_ns: Without a word of the decider for so long it counts as dead.

    Raises:
        TableError: No table of this version, or not one of this user or root.
        OSError: There is none, or it cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
    ) -> None:
        super().__init__(FORM, path, clock, stale_ns=stale_ns)

    def block(self, number: int) -> Block | None:
        """A block, or None where none was written or none could be read whole."""
        content = self.content(number)
        if content is None:
            return None
        epoch, version, at_ns, length = _HEAD.unpack_from(content)
        return Block(epoch, version, at_ns, content[_HEAD.size : _HEAD.size + length])

    def blocks(self) -> list[Block]:
        """All that there are."""
        found = (self.block(number) for number in range(min(MOST_BLOCKS, len(self.names))))
        return [block for block in found if block is not None and block.body]

    def notes(self) -> list[dict[str, Any]]:
        """All notes."""
        found = (self.block(place) for place in range(MOST_BLOCKS, len(self.names)))
        return [json.loads(note.body) for note in found if note is not None and note.body]


class Weigher(Protocol):
    """What takes weights: `Router`."""

    def knows(self, link: str) -> bool:
        """Whether a link is one of its own; that never changes."""

    def weigh(self, link: str, weight: float, *, at_ns: int) -> None:
        """Take the central verdict on a link."""


class _Names(NamedTuple):
    """The names of a block, and what they are to the router.

    Attributes:
        packed: As they lie in the block.
        links: The router's links of each.
        any: Whether there is one at all.
    """

    packed: bytes
    links: list[Sequence[str]]
    any: bool

    def of(self, body: bytes) -> bool:
        """Whether a block has these names: as many, of the same bytes."""
        return body.startswith(self.packed, 1) and body[:1] == bytes((len(self.links),))


class WeightsFeed(Follower[WeightsReader]):
    """Hands a router the decider's verdicts; call `poll` where the readings' feed is polled.

    Where the decider or the agent has died nothing is handed on: the router's verdicts grow stale
    and it goes on with this host's own readings, or static.

    Args:
        path: The agent's ``<readings>.weights``; the file need not exist yet.
        router: Takes the weights.
        links: For each link of the decider the router's links that it speaks for, of which the
            router counts those that it does not know; by default those that it knows by the
            decider's names.
        clock: CLOCK_MONOTONIC in ns, the router's clock.
        stale_ns: Without a word of the decider for so long it counts as dead.
        most: Blocks (some 40 links each) with news for the router that one call of `poll` may
            take, the rest stays for the next ones: such a block takes tens of microseconds.

    Raises:
        ValueError: The bound is less than one block.
    """

    def __init__(
        self,
        path: str | Path,
        router: Weigher,
        links: Mapping[str, Sequence[str]] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        stale_ns: int = STALE_NS,
        most: int = POLL_BLOCKS,
    ) -> None:
        super().__init__(lambda: WeightsReader(path, clock, stale_ns=stale_ns), clock)
        self._most = _at_least_one(most)
        self._router = router
        self._given = links
        self._updates = -1
        self._versions: list[int] = []
        self._next = 0
        self._known: dict[int, _Names] = {}

    def poll(self, most: int | None = None) -> int:
        """Hand on the verdicts that changed since the last call; never raises for a file's sake.

        Args:
            most: In place of the feed's own bound.

        Returns:
            How many verdicts.
        """
        left = self._most if most is None else _at_least_one(most)
        reader = self._living()
        if reader is None:
            return 0
        updates = reader.updates()  # before the entries: what changes meanwhile is seen next time
        if updates == self._updates:
            return 0
        count = 0
        versions = reader.versions()
        for number in self._changed(versions):
            if not left:
                return count
            block = reader.block(number)
            if block is None:
                return count  # half written: again next time
            self._next = number + 1
            self._versions[number] = versions[number]
            known = self._known.get(number)
            if known is not None and not known.any and known.of(block.body):
                continue  # others' links, at next to no cost
            left -= 1
            count += self._hand_on(number, block)
        self._updates = updates
        return count

    def _changed(self, versions: list[int]) -> list[int]:
        """Blocks with news, those first that the last call did not come to."""
        seen = self._versions
        changed = [n for n, at in enumerate(versions[:MOST_BLOCKS]) if at != seen[n]]
        return sorted(changed, key=lambda number: (number < self._next, number))

    def _hand_on(self, number: int, block: Block) -> int:
        cut = split_body(block.body)
        if cut is None:
            return 0
        names, values = cut
        known = self._known.get(number)
        if known is None or known.packed != names:
            known = self._known[number] = self._names(names)
        count = 0
        for links, (weight, age_us, _) in zip(known.links, values, strict=False):
            if age_us is None:
                continue
            at_ns = block.at_ns - age_us * 1000
            for link in links:
                self._router.weigh(link, weight, at_ns=at_ns)
                count += 1
        return count

    def _names(self, packed: bytes) -> _Names:
        try:
            links = [self._links(name) for name in unpack_names(packed)]
        except UnicodeDecodeError:
            links = []
        return _Names(packed, links, any(links))

    def _links(self, name: str) -> Sequence[str]:
        if self._given is not None:
            return self._given.get(name, ())
        return (name,) if self._router.knows(name) else ()

    def _begin(self, reader: WeightsReader) -> None:
        self._updates = -1
        self._versions = [0] * len(reader.names)
        self._known.clear()


def _at_least_one(most: int) -> int:
    if most < 1:
        raise ValueError(f"most: {most} blocks would never be read to the end")
    return most

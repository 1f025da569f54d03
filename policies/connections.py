"""Process groups of the engine's own: what ranks agree on by them, and how they end.

They belong to one model on one rank. All ranks make theirs in one order; ending them is each
rank's own affair: what its peers still wait for has been sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .actuators.process_groups import StripedGroups
from .actuators.rails import Meter, Rail
from .compress.channel import Channel, gather_into
from .compress.device import Gradients
from .compress.hierarchy import Node

_c10d: Any = distributed_c10d  # of which the types differ between torch's releases


class Connections:
    """What one rank sends by, as far as it was opened.

    Attributes:
        channels: between all ranks, one a lane; the first is there from the start.
        nodes: where this rank stands among the nodes, one a lane; None where there is one level.

    Args:
        ranks: of the whole job, ascending.
        rows: the ranks of each node by their place in ``ranks``; None where there is one level.
        wait: how long a collective waits for a rank.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rows: Sequence[Sequence[int]] | None,
        *,
        wait: timedelta,
        clock: Callable[[], float],
    ) -> None:
        self._wait = wait
        self._clock = clock
        self._all: list[Channel] = []
        self._rails = ExitStack()
        self.reach(ranks, rows)

    def reach(self, ranks: Sequence[int], rows: Sequence[Sequence[int]] | None) -> None:
        """Connect these ranks, in place of those so far."""
        self.close()
        self._ranks = ranks
        self._rows = rows
        self._per_node = 1 if rows is None else len(rows[0])
        self.channels = [self._channel(ranks, self._per_node)]
        self.nodes: list[Node | None] = []

    def compare(self, word: Sequence[int]) -> list[list[int]]:
        """Every rank's word, in rank order; as many numbers on every rank."""
        mine = torch.tensor(word, dtype=torch.int64)
        everyone = torch.empty(self.channels[0].world * len(word), dtype=torch.int64)
        gather_into(everyone, mine, group=self.channels[0].group)
        rows: list[list[int]] = everyone.view(-1, len(word)).tolist()
        return rows

    def open(self, lanes: int, gradients: Gradients) -> None:
        """Make what is missing for so many lanes.

        Args:
            lanes: exchanges that run side by side.
            gradients: payload that does not go over gloo with the rest has groups of its own.
        """
        self.channels += [self._channel(self._ranks, self._per_node) for _ in range(1, lanes)]
        self.nodes = [self._node() for _ in range(lanes)]
        if gradients.backend is None:
            return
        for channel in self._all:
            ranks = dist.get_process_group_ranks(channel.group)
            channel.carry_over(new_group(ranks, self._wait, gradients.backend))
        if gradients.on is not None:
            for channel in self._all:  # in one order on every rank
                channel.connect(gradients.on)

    def stripe(self, rails: Sequence[Rail], timeout_s: float) -> tuple[list[StripedGroups], Meter]:
        """Send all lanes' payload over rails from here on.

        Args:
            rails: this rank's ends, as many on every rank.
            timeout_s: of a transfer on a rail.

        Returns:
            The groups of each lane, and what they measure by.

        Raises:
            RuntimeError: the ranks cannot tell each other which rails they reach.
        """
        store, meter = _c10d._get_default_store(), Meter(len(rails))
        lanes: list[StripedGroups] = []
        name = _new_name(sorted(self._ranks), store)
        for number, channel in enumerate(self.channels):
            groups = StripedGroups(
                _c10d.PrefixStore(f"{name}/{number}", store),
                channel.rank,
                channel.world,
                rails,
                control=channel.group,
                timeout_s=timeout_s,
                clock=self._clock,
                alive=lanes[0].alive if lanes else None,
                meter=meter,
            )
            lanes.append(self._rails.enter_context(groups))
            channel.stripe(groups)
        return lanes, meter

    def close(self, keep: Channel | None = None) -> None:
        """End all groups but those of ``keep``; nothing of it may be in use."""
        self._rails.close()
        for channel in self._all:
            if channel is not keep:
                channel.close()
        self._all.clear()

    def _node(self) -> Node | None:
        if self._rows is None:
            return None
        mine = self._ranks.index(dist.get_rank())
        row = next(row for row in self._rows if mine in row)
        column = [other[row.index(mine)] for other in self._rows]
        inside, across = (self._channel([self._ranks[i] for i in part]) for part in (row, column))
        return Node(inside=inside, across=across, ranks=tuple(tuple(row) for row in self._rows))

    def _channel(self, ranks: Sequence[int], per_node: int = 1) -> Channel:
        made = Channel(new_group(ranks, self._wait), clock=self._clock, per_node=per_node)
        self._all.append(made)
        return made


def new_group(ranks: Sequence[int], wait: timedelta, backend: str = "gloo") -> dist.ProcessGroup:
    """A group of these ranks alone, under a name that no other has had.

    ``dist.new_group``, where only the members call it, names a group after its ranks and the
    number of groups that the process has. The name comes again once a group has ended, and with
    it, from the store, the addresses at which the ended group was reached; and ranks that are in
    different numbers of groups wait for each other under different names. It is used where torch
    has not what a name of one's own needs.

    Args:
        ranks: of the whole job; each of them makes its groups of these ranks in one order.
        wait: how long a collective waits for a rank.
        backend: whose collectives it has.
    """
    members = sorted(ranks)
    try:
        make, store = _c10d._new_process_group_helper, _c10d._get_default_store()
        device, known = _c10d._get_default_group().bound_device_id, _c10d._world.pg_group_ranks
    except AttributeError:  # a release that calls it otherwise
        made = dist.new_group(members, wait, backend, use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        return made
    name = _new_name(members, store)
    place = members.index(dist.get_rank())
    group, _ = make(
        len(members), place, members, backend, store, name, timeout=wait, device_id=device
    )
    assert isinstance(group, dist.ProcessGroup)
    known[group] = {member: place for place, member in enumerate(members)}
    return group


def _new_name(members: Sequence[int], store: Any) -> str:
    """A name that these ranks have not used yet, the same on each of them."""
    digest = hashlib.sha256(repr(members).encode()).hexdigest()[:16]
    count = store.add(f"xtune/{digest}/{dist.get_rank()}", 1)  # the store outlives this engine
    return f"xtune/{digest}/{count}"


def patience(group: dist.ProcessGroup) -> timedelta:
    """How long the model's own collectives wait for a rank; torch's default, if unknown."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return max(backend.options._timeout for backend in backends)
    except (AttributeError, RuntimeError, ValueError):  # a backend without options
        return dist.constants.default_pg_timeout

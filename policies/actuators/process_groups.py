"""Striping over torch process groups, one for each rail, that is, each network interface.

Buffers are cut by the shares that all ranks agreed on and travel over all rails at once. Nothing
is added up on the wire and a stripe lands where it belongs, so results have the same bits whatever
the shares. A rail that fails on any rank is given up by all of them before anything is released,
and its stripes are sent again over the others; the control group carries them if none is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor

from .base import Actuator, Refused, apportion, checked
from .rails import (
    LEAST_TIMEOUT_S,
    MOST_TIMEOUT_S,
    Meter,
    Rail,
    shares_by_speed,
    unusable,
)

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

RAIL_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 600.0
_CONTROL = -1

_Collective = Callable[[Any, Tensor, Tensor], Any]
_Stripe = tuple[int, int, int]  # rail, first and last but one column


class StripedGroups(Actuator):
    """Collectives over several rails by agreed shares. All ranks call all methods alike.

    Args:
        store: Reached by all ranks, for one opening only.
        rank: This one.
        world: How many.
        rails: This rank's ends, in the same order on all ranks.
        control: A network that is there whatever happens to the rails: where it begins, or a
            gloo group of the same ranks that nobody uses meanwhile.
        timeout_s: Of a transfer on a rail, from when all ranks have come to it; one that takes
            longer is dead. Must be longer than a slow rail needs for a large buffer.
        control_timeout_s: How late a rank may be; of no effect on a group that is there.
        alive: Rails that are known to be dead are not opened.
        meter: Shared with other groups over the same rails; one of its own by default.
        clock: Seconds, monotonic.

    Attributes:
        shares: Those in force, of sum 1.
        alive: Which rails still carry.
        meter: What this rank sent over each rail.

    Raises:
        ValueError: No rail, or a time that is none.
    """

    name: ClassVar[str] = "process groups"
    needs: ClassVar[tuple[str, ...]] = ("torch with gloo", "the rails' interfaces")
    collective: ClassVar[bool] = True

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        rails: Sequence[Rail],
        *,
        control: Rail | dist.ProcessGroup,
        timeout_s: float = RAIL_TIMEOUT_S,
        control_timeout_s: float = CONTROL_TIMEOUT_S,
        alive: Sequence[bool] | None = None,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not rails:
            raise ValueError("no rail")
        for wait_s in (timeout_s, control_timeout_s):
            if not LEAST_TIMEOUT_S <= wait_s <= MOST_TIMEOUT_S:
                raise ValueError(f"a timeout of {wait_s} s")
        self.path_count = len(rails)
        self._store, self._rank, self._world = store, rank, world
        self._rails, self._control = list(rails), control
        self._timeouts = (timeout_s, control_timeout_s)
        self._clock = clock
        self._groups: dict[int, Any] = {}
        self._threads: list[ThreadPoolExecutor] = []
        self._buffers: dict[int, Tensor] = {}  # by place among the stripes
        self._together = False
        self.shares = checked([1.0] * len(rails), len(rails))
        self.alive = [True] * len(rails) if alive is None else list(alive)
        self.meter = Meter(len(rails)) if meter is None else meter

    def check(self) -> str | None:
        """See `Actuator.check`."""
        if not dist.is_available() or not dist.is_gloo_available():
            return "needs torch with gloo"
        ends = [*self._rails, *([self._control] if isinstance(self._control, Rail) else [])]
        return unusable(ends)

    def __enter__(self) -> Self:
        super().__enter__()
        if isinstance(self._control, Rail):
            self._groups[_CONTROL] = self._open(_CONTROL, self._control, self._timeouts[1])
        else:
            self._groups[_CONTROL] = self._control
        for number, rail in enumerate(self._rails):
            # Nobody opens what another rank gave up, or waits while it gives up the rail before.
            self._agree_on_the_living(self.alive)
            try:
                if self.alive[number]:
                    self._groups[number] = self._open(number, rail, self._timeouts[0])
            except RuntimeError:  # of a network that is down
                self.alive[number] = False
        self._threads = [ThreadPoolExecutor(1, f"xtune-rail{n}") for n in range(len(self._rails))]
        self._agree_on_the_living(self.alive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for thread in self._threads:
            thread.shutdown()
        self._threads.clear()
        self._buffers.clear()
        self._groups.clear()

    def apply(self, shares: Sequence[float]) -> None:
        """Agree on a plan: of what the ranks propose for a rail, the least holds.

        Args:
            shares: What this rank proposes, such as `proposal`.

        Raises:
            Refused: The ranks' least shares leave no rail.
        """
        proposed = torch.tensor(checked(shares, len(self._rails)), dtype=torch.float64)
        least = self._gather(proposed).amin(0)
        plan = [float(s) if up else 0.0 for s, up in zip(least, self.alive, strict=True)]
        if any(self.alive):
            if not any(plan):
                raise Refused(f"{self.name}: the ranks' proposals leave no rail")
            self.shares = checked(plan, len(plan))
        self.meter.renew()

    def undo(self) -> None:
        """See `Actuator.undo`: equal shares, as at first."""
        self.shares = checked([1.0] * len(self._rails), len(self._rails))

    def proposal(self, wanted: Sequence[float] | None = None) -> list[float]:
        """Shares by what each rail was measured to carry; see `shares_by_speed`.

        Args:
            wanted: By a router; equal by default.

        Returns:
            Of sum 1. Where no living rail is wanted all of them are, and dead ones where none is.
        """
        speeds, anyway = self.meter.speeds(), [1.0] * len(self.alive)
        for chosen in (anyway if wanted is None else wanted, anyway):
            shares = shares_by_speed(speeds, self.alive, chosen)
            if any(shares):
                return shares
        return list(self.shares)

    def in_force(self) -> list[float]:
        """The plan's shares, of the rails that live; equal where it has none for any of them.

        Returns:
            Of sum 1; all 0 where no rail lives.
        """
        shares = [s if up else 0.0 for s, up in zip(self.shares, self.alive, strict=True)]
        if not any(shares):
            shares = [float(up) for up in self.alive]
        return checked(shares, len(shares)) if any(shares) else shares

    def meet(self) -> None:
        """All ranks have just met: the next collective need not wait for a late one."""
        self._together = True

    def all_to_all(self, received: Tensor, shares: Tensor) -> None:
        """Row ``r`` of ``shares`` goes to rank ``r``.

        Args:
            received: (world, n) or flat, filled with what the ranks sent, in rank order.
            shares: (world, n) or flat, of the same type.
        """

        def exchange(group: Any, out: Tensor, part: Tensor) -> Any:
            return group.alltoall_base(out.view(-1), part.view(-1), [], [])

        out, given = _rows(received, self._world), _rows(shares, self._world)
        self._carry(out, lambda a, b: given[:, a:b].contiguous(), exchange)

    def all_gather(self, out: Tensor, share: Tensor) -> None:
        """Everyone gets everyone's share.

        Args:
            out: (world, n) or flat, in rank order.
            share: (n,), of the same type.
        """

        def gather(group: Any, whole: Tensor, part: Tensor) -> Any:
            return group._allgather_base(whole.view(-1), part)

        given = share.view(-1).view(torch.uint8)
        self._carry(_rows(out, self._world), lambda a, b: given[a:b].contiguous(), gather)

    def broadcast(self, message: Tensor, source: int) -> None:
        """Everyone gets what one rank has.

        Args:
            message: (n,), overwritten on the other ranks.
            source: The rank that has it.
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0

        def tell(group: Any, into: Tensor, part: Tensor) -> Any:
            into.copy_(part)
            return group.broadcast([into], options)

        given = _rows(message, 1)
        self._carry(given, lambda a, b: given[:, a:b], tell)

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum over the ranks, each element added in rank order by the rank that owns it.

        Args:
            buffer: (n,), overwritten; the bits do not depend on the shares.
        """
        width = -(-buffer.numel() // self._world)
        whole = buffer
        if self._world * width > buffer.numel():
            whole = buffer.new_zeros(self._world * width)
            whole[: buffer.numel()] = buffer
        received = torch.empty_like(whole).view(self._world, width)
        self.all_to_all(received, whole)
        total = received[0]
        for part in received[1:]:
            total += part
        self.meet()  # a moment ago, at the end of the first half
        self.all_gather(whole, total)
        if whole is not buffer:
            buffer.copy_(whole[: buffer.numel()])

    def _carry(
        self, out: Tensor, part_of: Callable[[int, int], Tensor], collective: _Collective
    ) -> None:
        """Move all columns of bytes, giving up rails that fail on the way."""
        stripes = self._cut(0, out.shape[1])
        while stripes:
            # A late rank is waited for here, so that a rail's timeout is of its transfer alone.
            if not self._together:
                self._gather(torch.zeros(1))
            self._together = False
            buffers = [
                self._buffer(place, out.shape[0], b - a) for place, (_, a, b) in enumerate(stripes)
            ]
            jobs = []
            for (rail, a, b), into in zip(stripes, buffers, strict=True):
                if rail != _CONTROL:
                    thread = self._threads[rail]
                    jobs.append((rail, thread.submit(self._run, rail, collective, into,
                                                     part_of(a, b))))  # fmt: skip
                else:
                    collective(self._groups[rail], into, part_of(a, b)).wait()
            done = list(self.alive)
            for rail, job in jobs:
                done[rail] = job.result() and done[rail]
            self._agree_on_the_living(done)
            left: list[_Stripe] = []
            for place, ((rail, a, b), into) in enumerate(zip(stripes, buffers, strict=True)):
                if rail == _CONTROL or self.alive[rail]:
                    out[:, a:b] = into
                else:
                    del self._buffers[place]  # what was given up may still be written to
                    left += self._cut(a, b)
            stripes = left

    def _buffer(self, place: int, rows: int, width: int) -> Tensor:
        """Memory that a stripe arrives in, the same as before where it is large enough."""
        known = self._buffers.get(place)
        if known is None or known.numel() < rows * width:
            known = self._buffers[place] = torch.empty(rows * width, dtype=torch.uint8)
        return known[: rows * width].view(rows, width)

    def _run(
        self,
        rail: int,
        collective: _Collective,
        into: Tensor,
        part: Tensor,
    ) -> bool:
        """One stripe on the rail's own thread; whether it came through."""
        start = self._clock()
        try:
            collective(self._groups[rail], into, part).wait(timedelta(seconds=self._timeouts[0]))
        except RuntimeError:  # what gloo raises of a timeout, and of a connection that broke
            return False
        # A broadcast has one row, of which each rank's share of the sending is counted.
        sent = (self._world - 1) * into.nbytes // self._world
        self.meter.add(rail, sent, self._clock() - start)
        return True

    def _cut(self, first: int, last: int) -> list[_Stripe]:
        """Columns from ``first`` to ``last`` over the living rails, by their shares."""
        shares = self.in_force()
        if not any(shares):
            return [(_CONTROL, first, last)] if last > first else []
        stripes = []
        for rail, width in enumerate(apportion(shares, last - first)):
            if width:
                stripes.append((rail, first, first + width))
                first += width
        return stripes

    def _agree_on_the_living(self, mine: Sequence[bool]) -> None:
        flags = self._gather(torch.tensor(mine, dtype=torch.float64)).amin(0)
        self.alive = [bool(flag) for flag in flags]

    def _gather(self, values: Tensor) -> Tensor:
        """What each rank has, (world, n), over the control group."""
        everyone = values.new_empty((self._world, values.numel()))
        self._groups[_CONTROL]._allgather_base(everyone.view(-1), values).wait()
        return everyone

    def _open(self, number: int, rail: Rail, timeout_s: float) -> Any:
        # Built directly: `new_group` gives gloo neither a device nor options.
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

        device = {"interface": rail.interface} if rail.interface else {"hostname": rail.address}
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [ProcessGroupGloo.create_device(**device)]
        store = PrefixStore(f"xtune-rail-{number}", self._store)
        return ProcessGroupGloo(store, self._rank, self._world, options)


def _rows(values: Tensor, count: int) -> Tensor:
    """The bytes of a contiguous tensor in so many rows, which may be empty."""
    return values.view(count, values.numel() // count).view(torch.uint8)

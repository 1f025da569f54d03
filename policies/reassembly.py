"""Reassembly: units that come over several paths are released in the order they were sent in.

Every tensor of a stream has a sequence number, and so has every unit in it (founding document R4).
A window of tensors and a byte budget bound what is held (N3); two buffers take turns, one being
filled while the other is drained (N2). What cannot be held is refused, with a verdict that the
sender acts on, and never dropped in silence.

One thread owns a stream: it offers units and swaps the buffers. What a swap returned may be read
by any thread until the next swap. No lock, no clock, no thread of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

WINDOW_TENSORS = 16
UNIT_BYTES = 1_000_000
BUDGET_BYTES = 32 * UNIT_BYTES  # half of it holds 16 of the largest units
UNIT_COST_BYTES = (
    512  # charged for each unit beside its payload, so that tiny ones are bounded too
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A tensor, or a part of one that travels by itself.

    Attributes:
        epoch: Connection it was sent on; each reconnection has a larger one.
        tensor: Sequence number of its tensor in the epoch's stream, from 0.
        index: Which part of the tensor, from 0.
        count: Parts of that tensor.
        payload: Bytes; neither side may write to them any more.
    """

    epoch: int
    tensor: int
    index: int
    count: int
    payload: bytes | memoryview

    @property
    def cost_bytes(self) -> int:
        """What it is charged."""
        return memoryview(self.payload).nbytes + UNIT_COST_BYTES


class Verdict(Enum):
    """What became of an offered unit, and so what its sender has to do."""

    ADMITTED = "admitted"  # nothing more to do
    DUPLICATE = "duplicate"  # dropped: the same unit is held
    LATE = "late"  # dropped: the same unit was released, or its epoch is over
    BEYOND_WINDOW = "beyond window"  # refused: send again when earlier tensors are through
    OVER_BUDGET = "over budget"  # refused: send again when bytes have been drained
    NEWER_EPOCH = "newer epoch"  # refused: send again after the receiver has reconnected
    ABORTED = "aborted"  # refused for good: the stream is broken off
    INVALID = "invalid"  # refused for good: it contradicts itself or an earlier unit

    @property
    def again(self) -> bool:
        """Whether the sender must send the unit again later."""
        return self in _AGAIN


_AGAIN = (Verdict.BEYOND_WINDOW, Verdict.OVER_BUDGET, Verdict.NEWER_EPOCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A unit that is missing while later ones have come.

    Attributes:
        epoch, tensor, index: The missing unit.
        since_ns: From when on later units had come and this was the first that had not.
    """

    epoch: int
    tensor: int
    index: int
    since_ns: int


class Reassembly:
    """One stream at its receiver.

    Half of the budget holds units that wait for earlier ones; the two buffers have a quarter each.
    So the next unit in order never waits for room that later units take: after a swap it is
    admitted, whatever is held, and a stream whose consumer drains cannot lock up.

    Args:
        window: Tensors that may be under way at once, the next one to be released included.
        budget_bytes: Most bytes in all three places, `UNIT_COST_BYTES` a unit included.
        unit_bytes: Largest payload.

    Raises:
        ValueError: A budget in which not every unit fits into each place.
    """

    def __init__(
        self,
        *,
        window: int = WINDOW_TENSORS,
        budget_bytes: int = BUDGET_BYTES,
        unit_bytes: int = UNIT_BYTES,
    ) -> None:
        self._buffer_bytes = budget_bytes // 4
        if window < 1 or unit_bytes < 1 or self._buffer_bytes < unit_bytes + UNIT_COST_BYTES:
            raise ValueError(
                f"budget_bytes={budget_bytes} for window={window}, unit_bytes={unit_bytes}: must "
                f"be at least {4 * (max(1, unit_bytes) + UNIT_COST_BYTES)}, the window at least 1"
            )
        self.window = window
        self.budget_bytes = budget_bytes
        self.unit_bytes = unit_bytes
        self.epoch = 0
        self.aborted: str | None = None  # why
        self.verdicts: Counter[Verdict] = Counter()
        self.discarded = 0  # admitted units that a reconnection or an abort threw away
        self.depths = [0] * window  # admitted units by how many tensors they came too early
        self._hold_bytes = budget_bytes - 2 * self._buffer_bytes
        self._counts: dict[int, int] = {}  # parts of each tensor in the window
        self._held: dict[tuple[int, int], Unit] = {}
        self._held_cost = 0
        self._filling: list[Unit] = []
        self._filling_cost = 0
        self._draining_cost = 0
        self._next = (0, 0)  # to be released
        self._missing = (0, 0)  # to come: at or after it, where held units wait for a swap
        self._early = 0  # held units after the missing one
        self._gap_ns: int | None = None

    @property
    def resident_bytes(self) -> int:
        """Bytes charged now: held, being filled and being drained."""
        return self._held_cost + self._filling_cost + self._draining_cost

    @property
    def awaited(self) -> tuple[int, int]:
        """Tensor and index of the first unit that has not come."""
        return self._missing

    @property
    def released(self) -> tuple[int, int]:
        """Tensor and index of the first unit that is not released.

        Tensors before it are the sender's to forget: no reconnection asks for them again.
        """
        return self._next

    @property
    def gap(self) -> Gap | None:
        """The missing unit that later ones wait for; None where nothing waits."""
        if self._gap_ns is None:
            return None
        tensor, index = self._missing
        return Gap(epoch=self.epoch, tensor=tensor, index=index, since_ns=self._gap_ns)

    def offer(self, unit: Unit, at_ns: int) -> Verdict:
        """Take a unit that has come.

        Args:
            unit: The unit.
            at_ns: When, for the age of a gap.

        Returns:
            What became of it; each is counted in `verdicts`.
        """
        verdict = self._judge(unit)
        self.verdicts[verdict] += 1
        if verdict is Verdict.ADMITTED:
            self._admit(unit, at_ns)
        elif (
            verdict in (Verdict.BEYOND_WINDOW, Verdict.OVER_BUDGET)
            and self._gap_ns is None
            and (unit.tensor, unit.index) != self._missing
        ):
            self._gap_ns = at_ns
        return verdict

    def swap(self) -> list[Unit]:
        """Turn the buffers: what the last swap returned is drained, what was filled comes out.

        Returns:
            The next units in order, perhaps none; they count against the budget until the next
            swap.
        """
        out, self._filling = self._filling, []
        self._draining_cost, self._filling_cost = self._filling_cost, 0
        self._release()
        return out

    def reconnect(self, epoch: int, *, resume: bool = True) -> int:
        """Begin a new epoch; units of the old one are late from now on.

        What is held is discarded, and so is what was released of a tensor that is not complete:
        its consumer sees the new epoch and starts that tensor again. Released units of complete
        tensors stay to be drained.

        Args:
            epoch: Its number, larger than all before.
            resume: Go on with the first tensor that is not released whole; False, and any
                reconnection after an abort, begins the stream anew and discards all of it.

        Returns:
            The tensor from which on the sender sends again, whole.

        Raises:
            ValueError: Not a later epoch.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not later than {self.epoch}")
        first = self._next[0] if resume and self.aborted is None else 0
        self._discard(first)
        self._next = self._missing = (first, 0)
        self.epoch = epoch
        self.aborted = None
        return first

    def abort(self, reason: str) -> None:
        """Break the stream off: all that is not drained is discarded, all that comes is refused.

        Args:
            reason: Why, kept in `aborted`.
        """
        self._discard(0)
        self.aborted = reason

    def depth_quantile(self, share: float) -> int | None:
        """The depth that this share of the admitted units did not exceed.

        Args:
            share: 0..1.

        Returns:
            Tensors; None before the first unit.
        """
        total = sum(self.depths)
        seen = 0
        for depth, count in enumerate(self.depths):
            seen += count
            if total and seen >= share * total:
                return depth
        return None

    def _judge(self, unit: Unit) -> Verdict:
        cost = unit.cost_bytes
        if unit.epoch != self.epoch:
            return Verdict.LATE if unit.epoch < self.epoch else Verdict.NEWER_EPOCH
        if self.aborted is not None:
            return Verdict.ABORTED
        if (
            not 0 <= unit.index < unit.count
            or unit.tensor < 0
            or (cost > self.unit_bytes + UNIT_COST_BYTES)
        ):
            return Verdict.INVALID
        key = (unit.tensor, unit.index)
        if unit.tensor < self._next[0]:
            return Verdict.LATE
        if self._counts.get(unit.tensor, unit.count) != unit.count:
            return Verdict.INVALID
        if key < self._next:
            return Verdict.LATE
        if key in self._held:
            return Verdict.DUPLICATE
        if unit.tensor >= self._next[0] + self.window:
            return Verdict.BEYOND_WINDOW
        if key == self._next and self._filling_cost + cost <= self._buffer_bytes:
            return Verdict.ADMITTED
        fits = self._held_cost + cost <= self._hold_bytes
        return Verdict.ADMITTED if fits else Verdict.OVER_BUDGET

    def _admit(self, unit: Unit, at_ns: int) -> None:
        key = (unit.tensor, unit.index)
        self.depths[unit.tensor - self._missing[0]] += 1
        self._counts[unit.tensor] = unit.count
        self._held[key] = unit
        self._held_cost += unit.cost_bytes
        self._early += 1
        if key == self._missing:
            while self._missing in self._held:
                self._early -= 1
                self._missing = self._after(self._missing)
            self._gap_ns = at_ns if self._early else None
        elif self._gap_ns is None:
            self._gap_ns = at_ns
        self._release()

    def _release(self) -> None:
        """Move what is next in order to the buffer that is filled, as far as there is room."""
        while (unit := self._held.get(self._next)) is not None:
            cost = unit.cost_bytes
            if self._filling_cost + cost > self._buffer_bytes:
                return
            del self._held[self._next]
            self._held_cost -= cost
            self._filling.append(unit)
            self._filling_cost += cost
            after = self._after(self._next)
            if after[0] != self._next[0]:
                del self._counts[self._next[0]]
            self._next = after

    def _after(self, key: tuple[int, int]) -> tuple[int, int]:
        tensor, index = key
        return (tensor, index + 1) if index + 1 < self._counts[tensor] else (tensor + 1, 0)

    def _discard(self, keep: int) -> None:
        """Throw away what is held, and of what was released the tensors from ``keep`` on."""
        kept = [unit for unit in self._filling if unit.tensor < keep]
        self.discarded += len(self._held) + len(self._filling) - len(kept)
        self._filling = kept
        self._filling_cost = sum(unit.cost_bytes for unit in kept)
        self._held.clear()
        self._counts.clear()
        self._held_cost = self._early = 0
        self._gap_ns = None


def reorder_depths(arrivals: Iterable[tuple[int, int]], counts: dict[int, int]) -> list[int]:
    """How many tensors too early each unit came, as if all could be held.

    Args:
        arrivals: Tensor and index of each unit, in the order of arrival.
        counts: Parts of each tensor.

    Returns:
        For each arrival: its tensor minus the first tensor that was not complete then.
    """
    left = dict(counts)
    order = deque(sorted(counts))
    depths = []
    for tensor, _ in arrivals:
        depths.append(max(0, tensor - order[0]) if order else 0)
        left[tensor] -= 1
        while order and left[order[0]] == 0:
            order.popleft()
    return depths

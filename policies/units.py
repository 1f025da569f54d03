"""The sending end of a stream of tensors over several paths; `Reassembly` is the other end.

Each tensor is cut into units, each unit takes the path that the router has for it then (founding
document R3, R4), and is kept until the receiver has it: a path that dies loses time, never data.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol, TypeAlias

from .reassembly import WINDOW_TENSORS, Unit

Routed: TypeAlias = tuple[int, Unit]  # the path's index in the flow's set, and what goes there


class Chooser(Protocol):
    """What gives each unit its path: `Router.choose`."""

    def __call__(self, flow: tuple[str, str, object], /) -> int:
        """The path of the next unit."""


class UnitSender:
    """One stream at its sender. One thread owns it.

    Args:
        choose: Gives each unit its path.
        flow: As the router knows it: (src, dst, id).
        unit_bytes: Largest payload of a unit, the receiver's too.
        window: Tensors that may be under way at once, the receiver's too.

    Raises:
        ValueError: ``unit_bytes`` or ``window`` is below 1.
    """

    def __init__(
        self,
        choose: Chooser,
        flow: tuple[str, str, object],
        *,
        unit_bytes: int,
        window: int = WINDOW_TENSORS,
    ) -> None:
        if unit_bytes < 1 or window < 1:
            raise ValueError(f"unit_bytes={unit_bytes}, window={window}: must be at least 1")
        self.epoch = 0
        self._choose = choose
        self._flow = flow
        self._unit_bytes = unit_bytes
        self._window = window
        self._first = 0  # tensor that the receiver has not released
        self._kept: deque[list[Unit]] = deque()  # from that tensor on

    @property
    def room(self) -> bool:
        """Whether the receiver's window has room for another tensor."""
        return len(self._kept) < self._window

    @property
    def kept_bytes(self) -> int:
        """Payload of what the receiver may still ask for again."""
        return sum(memoryview(unit.payload).nbytes for units in self._kept for unit in units)

    def send(self, payload: bytes | memoryview) -> list[Routed]:
        """Cut the next tensor into units.

        Args:
            payload: Its bytes, which nobody may write to before the receiver has them.

        Returns:
            Each unit with its path, in order; an empty tensor is one empty unit.

        Raises:
            ValueError: There is no `room`.
        """
        if not self.room:
            raise ValueError(f"{self._window} tensors are under way: wait for the receiver")
        whole = memoryview(payload).cast("B")
        starts = range(0, max(1, whole.nbytes), self._unit_bytes)
        units = [
            Unit(
                epoch=self.epoch,
                tensor=self._first + len(self._kept),
                index=index,
                count=len(starts),
                payload=whole[start : start + self._unit_bytes],
            )
            for index, start in enumerate(starts)
        ]
        self._kept.append(units)
        return [self.again(unit) for unit in units]

    def again(self, unit: Unit) -> Routed:
        """A unit with the path that is best for it now, for one that was refused or lost."""
        return self._choose(self._flow), unit

    def confirm(self, released: tuple[int, int]) -> None:
        """Forget the tensors that the receiver will not ask for again.

        Args:
            released: Its `Reassembly.released`.

        Raises:
            ValueError: It has released what was not sent yet.
        """
        if released[0] > self._first + len(self._kept):
            raise ValueError(f"tensor {released[0] - 1} was not sent yet")
        while self._kept and self._first < released[0]:
            self._kept.popleft()
            self._first += 1

    def reconnect(self, epoch: int, first: int) -> list[Routed]:
        """Send again, under a new epoch, what the receiver has not.

        Args:
            epoch: The receiver's new epoch.
            first: What its `Reassembly.reconnect` returned.

        Returns:
            All units from that tensor on, each with a new path.

        Raises:
            ValueError: Not a later epoch; or a tensor that is not kept any more, or not sent yet.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not later than {self.epoch}")
        if not self._first <= first <= self._first + len(self._kept):
            raise ValueError(f"tensor {first} is not kept: {self._first} is the first")
        self.confirm((first, 0))
        self.epoch = epoch
        self._kept = deque([replace(unit, epoch=epoch) for unit in units] for units in self._kept)
        return [self.again(unit) for units in self._kept for unit in units]

"""The contract of an actuator: what carries out the shares that routing gives to paths.

    Unavailable   a check failed: the one line says what is missing
    Refused       the system did not take a choice: the one line says what it answered

An actuator changes something that others use as well, so it puts it back: when its ``with`` block
ends, and when its process is killed. `Actuator.after_kill` says who does the latter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from types import TracebackType
from typing import ClassVar, Self


class Unavailable(RuntimeError):
    """An actuator cannot work here; the text says what it lacks."""


class Refused(RuntimeError):
    """The system did not take a choice; the text says what it answered."""


class AfterKill(Enum):
    """Who undoes an actuator's changes when its process is killed."""

    NOTHING_LEFT = "nothing outlives the process"
    WATCHER = "a watcher process does, at once or when the lease expires"
    STAYS = "nobody: what was written stays until it is written again"


class Actuator(ABC):
    """Carries out shares of traffic, one for each of its paths.

    Not for several threads at once. `apply` may be called as often as wanted; use it in a ``with``
    block, which checks first and undoes at the end.

    Attributes:
        name: How logs call it.
        needs: What it needs, in words, each of which `check` looks at.
        after_kill: Who undoes its changes when the process is killed.
        lease_s: With a watcher: `renew` must be called more often than this, else it undoes.
        collective: `apply` waits for all ranks, so all must call it at the same place.
        path_count: How many paths it shares between; None where it does not know.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    after_kill: ClassVar[AfterKill] = AfterKill.NOTHING_LEFT
    collective: ClassVar[bool] = False
    lease_s: float | None = None
    path_count: int | None = None

    @abstractmethod
    def check(self) -> str | None:
        """Look whether all that it needs is there; changes nothing.

        Returns:
            None, or what is missing in one line.
        """

    @abstractmethod
    def apply(self, shares: Sequence[float]) -> None:
        """Give each path its share of the traffic.

        Args:
            shares: One for each path, not negative, in any unit; 0 takes a path out of use.

        Raises:
            ValueError: A wrong number of shares, a negative or unknown one, or none above 0.
            Refused: The system did not take it; what was applied before still holds, as far as
                `renew` says so.
        """

    @abstractmethod
    def undo(self) -> None:
        """Put back what was there before; does nothing the second time."""

    def renew(self) -> bool:
        """Keep the lease; cheap, to be called from the training loop.

        Returns:
            Whether what was applied still holds; where not, the lease had expired or the system
            dropped it, and `apply` sets it up again.
        """
        return True

    def __enter__(self) -> Self:
        missing = self.check()
        if missing is not None:
            raise Unavailable(f"{self.name}: {missing}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def checked(shares: Sequence[float], paths: int) -> list[float]:
    """Shares that add up to 1.

    Args:
        shares: As given to `Actuator.apply`.
        paths: How many are wanted.

    Returns:
        The same in proportion, of sum 1.

    Raises:
        ValueError: A wrong number of shares, a negative or unknown one, or none above 0.
    """
    if len(shares) != paths:
        raise ValueError(f"{len(shares)} shares for {paths} paths")
    try:
        values = [float(share) for share in shares]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"shares must be numbers: {list(shares)}") from None
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"shares must be finite and not negative: {list(shares)}")
    largest = max(values, default=0.0)
    if not largest:
        raise ValueError("no path has a share")
    parts = [value / largest for value in values]  # the sum of large ones may not be a number
    total = math.fsum(parts)
    return [part / total for part in parts]


def apportion(shares: Sequence[float], count: int) -> list[int]:
    """Whole numbers in proportion, by largest remainder; ties go to the earlier path.

    Args:
        shares: One for each path, of sum 1.
        count: What is dealt out.

    Returns:
        How many each path gets, ``count`` in all; each less than 1 from its exact share.
    """
    exact = [share * count for share in shares]
    whole = [math.floor(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: count - sum(whole)]:
        whole[i] += 1
    return whole

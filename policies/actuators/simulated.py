"""Shares as a simulator or a striping executor reads them: no system is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .base import Actuator, checked


class Simulated(Actuator):
    """Keeps the shares of the paths.

    Args:
        initial: Shares before the first choice, which `undo` puts back.

    Attributes:
        shares: Those in force, of sum 1.
    """

    name: ClassVar[str] = "simulated"

    def __init__(self, initial: Sequence[float]) -> None:
        self._initial = checked(initial, len(initial))
        self.shares = list(self._initial)
        self.path_count = len(self._initial)

    def check(self) -> str | None:
        """Nothing is needed."""
        return None

    def apply(self, shares: Sequence[float]) -> None:
        """See `Actuator.apply`."""
        self.shares = checked(shares, len(self._initial))

    def undo(self) -> None:
        """See `Actuator.undo`."""
        self.shares = list(self._initial)

"""Safety retreat (founding document L4): a rise that stalls the loss is taken back."""

from __future__ import annotations

import math
from typing import Any

from ._core import NAN, ewma_update
from .spec import Safety

TREND_GAIN = 0.02  # weight of the newest decrease in the trend: about 50 iterations of memory
MOST_TREND = 0.01  # per iteration, either way: one spike must not pass for a trend
MOST_RESERVE = 0.5  # routing is never asked to keep more than half of the bandwidth free


class SafetyWatch:
    """Watches the agreed loss for some iterations after each rise of the ratio.

    An iteration is bad if the smoothed loss fell by less than the gate, relative to its value,
    and by less than it used to fall before the rise: a training that had levelled off before is
    not held against compression. A loss that is not finite is bad; an unknown one counts neither
    way. It lies when the loss's noise lasts longer than the iterations that are asked for.

    Args:
        spec: The policy's safety parameters.
    """

    def __init__(self, spec: Safety) -> None:
        self._spec = spec
        self._smoothed = NAN
        self._trend = NAN
        self._last_step = -1
        self._watch_from = -1  # losses after this step show the effect of the rise
        self._watch_to = -1
        self.bad_in_row = 0

    def raised(self, step: int) -> None:
        """The ratio rose, in force from iteration ``step`` on.

        Args:
            step: Its first iteration; that iteration's own loss was computed before its effect.
        """
        self._watch_from = step
        self._watch_to = step + self._spec.watch_iterations
        self.bad_in_row = 0

    def lowered(self) -> None:
        """The ratio fell: nothing to watch any more."""
        self._watch_to = -1
        self.bad_in_row = 0

    def watching(self, step: int) -> bool:
        """Whether the loss of iteration ``step`` is watched."""
        return self._watch_from < step <= self._watch_to

    def observe(self, step: int, loss: float | None, finite: bool) -> bool:
        """Take the agreed mean loss of one iteration.

        Args:
            step: The iteration; a repeated or an older one is ignored.
            loss: Mean over the ranks, None if unknown.
            finite: Whether gradients and losses of all ranks were finite.

        Returns:
            True if the ratio must be taken back now.
        """
        if step <= self._last_step:
            return False
        self._last_step = step
        known = loss is not None and math.isfinite(loss)
        if loss is None and finite:
            return False
        decrease = -math.inf
        if known and loss is not None:
            before = self._smoothed
            self._smoothed = ewma_update(before, loss, self._spec.smoothing)
            # Not a number before the second loss: then no decrease is known.
            decrease = (before - self._smoothed) / max(abs(before), 1e-12)
            if not self.watching(step) and decrease == decrease:
                steady = min(MOST_TREND, max(-MOST_TREND, decrease))
                self._trend = ewma_update(self._trend, steady, TREND_GAIN)
        if not self.watching(step):
            return False
        gate = self._spec.gate if math.isnan(self._trend) else min(self._spec.gate, self._trend)
        bad = not finite or not known or decrease < gate
        self.bad_in_row = self.bad_in_row + 1 if bad else 0
        return self.bad_in_row >= self._spec.iterations

    def state_dict(self) -> dict[str, Any]:
        """All state, as plain numbers."""
        return {
            "smoothed": self._smoothed,
            "trend": self._trend,
            "last_step": self._last_step,
            "watch_from": self._watch_from,
            "watch_to": self._watch_to,
            "bad_in_row": self.bad_in_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self._smoothed = float(state["smoothed"])
        self._trend = float(state["trend"])
        self._last_step = int(state["last_step"])
        self._watch_from = int(state["watch_from"])
        self._watch_to = int(state["watch_to"])
        self.bad_in_row = int(state["bad_in_row"])

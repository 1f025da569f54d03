"""How much longer communication takes than on a clear fabric, from measured times."""

from __future__ import annotations

import math
from typing import Any

from ._core import NAN, ewma_update

# Without a model: share of the uncompressed time that does not shrink with the bytes (latency,
# launches, codec). An assumption, replaced by the measured best as soon as a rung was seen clear.
FIXED_SHARE = 0.25


class Slowdown:
    """Smoothed ratio of measured to modelled communication time of this rank.

    Without a model the fastest smoothed time seen so far stands for a clear fabric, for each rung
    by itself. That lies low while the fabric has never been clear.

    Args:
        gain: Weight of the newest iteration.
    """

    def __init__(self, gain: float) -> None:
        self._gain = gain
        self._ratio = NAN
        self._rung = -1
        self._smoothed_s = NAN
        self._best_s: dict[int, float] = {}

    @property
    def value(self) -> float | None:
        """The slowdown, None before the first measurement."""
        return None if math.isnan(self._ratio) else self._ratio

    def observe(
        self,
        rung: int,
        comm_s: float,
        modelled_s: float | None,
        wire_bytes: int,
        dense_bytes: int,
    ) -> None:
        """Take one iteration; a time that is not a positive number is left out.

        Args:
            rung: Rung of the plan in force.
            comm_s: Measured communication time.
            modelled_s: What the same bytes would take on a clear fabric, None if unknown.
            wire_bytes: Bytes sent.
            dense_bytes: Bytes the uncompressed collective would have sent.
        """
        if not (math.isfinite(comm_s) and comm_s > 0):
            return
        if modelled_s is not None and math.isfinite(modelled_s) and modelled_s > 0:
            reference = modelled_s
        else:
            reference = self._reference(rung, comm_s, wire_bytes, dense_bytes)
        self._ratio = ewma_update(self._ratio, comm_s / reference, self._gain)

    def _reference(self, rung: int, comm_s: float, wire_bytes: int, dense_bytes: int) -> float:
        if rung != self._rung:
            self._rung, self._smoothed_s = rung, NAN
        self._smoothed_s = ewma_update(self._smoothed_s, comm_s, self._gain)
        best = min(self._best_s.get(rung, math.inf), self._smoothed_s)
        self._best_s[rung] = best
        if rung > 0 and 0 in self._best_s and dense_bytes > 0:
            share = FIXED_SHARE + (1 - FIXED_SHARE) * wire_bytes / dense_bytes
            best = min(best, self._best_s[0] * share)
        return best

    def state_dict(self) -> dict[str, Any]:
        """All state, as plain numbers."""
        return {
            "ratio": self._ratio,
            "rung": self._rung,
            "smoothed_s": self._smoothed_s,
            "best_s": sorted(self._best_s.items()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self._ratio = float(state["ratio"])
        self._rung = int(state["rung"])
        self._smoothed_s = float(state["smoothed_s"])
        self._best_s = {int(rung): float(best) for rung, best in state["best_s"]}

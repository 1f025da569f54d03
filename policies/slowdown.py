"""How much longer communication takes than on a clear fabric, from measured times."""

from __future__ import annotations

import math
from typing import Any

from ._core import NAN, ewma_update

# Without a model: share of the uncompressed time that does not shrink with the bytes (latency,
# launches). An assumption; a rung that was faster than it allows is judged by its own best.
FIXED_SHARE = 0.25
# The best is the least mean of so many iterations: the least single one would be the luckiest.
BLOCK_ITERATIONS = 20


class Slowdown:
    """Smoothed ratio of measured to modelled communication time of this rank.

    Without a model the fastest stretch seen so far stands for a clear fabric, for each rung by
    itself, and no slower than the uncompressed one scaled to fewer bytes. That lies low while the
    fabric has never been clear.

    Args:
        gain: Weight of the newest iteration.
    """

    def __init__(self, gain: float) -> None:
        self._gain = gain
        self._ratio = NAN
        self._best_s: dict[int, float] = {}  # by rung
        self._block: dict[int, tuple[int, float]] = {}  # count and sum of the running stretch

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
        count, total = self._block.get(rung, (0, 0.0))
        count, total = count + 1, total + comm_s
        best = self._best_s.get(rung)
        if count >= BLOCK_ITERATIONS:
            best = total / count if best is None else min(best, total / count)
            self._best_s[rung] = best
            count, total = 0, 0.0
        self._block[rung] = (count, total)
        reference = total / count if best is None else best
        if rung > 0 and 0 in self._best_s and dense_bytes > 0:
            share = FIXED_SHARE + (1 - FIXED_SHARE) * wire_bytes / dense_bytes
            reference = min(reference, self._best_s[0] * share)
        return reference

    def state_dict(self) -> dict[str, Any]:
        """All state, as plain numbers."""
        return {
            "ratio": self._ratio,
            "best_s": sorted(self._best_s.items()),
            "block": sorted(self._block.items()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self._ratio = float(state["ratio"])
        self._best_s = {int(rung): float(best) for rung, best in state["best_s"]}
        self._block = {
            int(rung): (int(count), float(total)) for rung, (count, total) in state["block"]
        }

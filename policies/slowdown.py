"""How much longer communication takes than on a clear fabric, from measured times."""

from __future__ import annotations

import math
from typing import Any

from ._core import NAN, ewma_update

# A mean over so many iterations is a measure; the least single one would be the luckiest.
BLOCK_ITERATIONS = 20
# A model is corrected only where a rung's first stretch took longer by more than noise explains.
LEAST_EXCESS = 1.5


class Slowdown:
    """Smoothed ratio of measured to clear communication time of this rank.

    Each rung of the ladder has its own clear time, since fewer bytes do not save what latency and
    launches cost. Congestion does not change because the rung does, so a rung's first stretch is
    taken to be as slow as the stretch before it was; afterwards its fastest stretch counts.
    With a model of the clear time the first rung is measured by the model, and another by the
    model times what its first stretch took longer, if that is `LEAST_EXCESS` or more. Without
    one the ratio lies low while the fabric has never been clear, and in either case while
    congestion sets in within the `BLOCK_ITERATIONS` iterations after a rung was first used.

    Args:
        gain: Weight of the newest iteration.
    """

    def __init__(self, gain: float) -> None:
        self._gain = gain
        self._ratio = NAN
        self._entry: dict[int, float] = {}  # by rung: the ratio when it was first used
        self._clear: dict[int, float] = {}  # by rung: relative time on a clear fabric
        self._block: dict[int, tuple[int, float]] = {}  # count and sum of the running stretch

    @property
    def value(self) -> float | None:
        """The slowdown, None before the first measurement."""
        return None if math.isnan(self._ratio) else self._ratio

    def observe(self, rung: int, comm_s: float, modelled_s: float | None) -> None:
        """Take one iteration; a time that is not a positive number is left out.

        Args:
            rung: Rung of the plan in force.
            comm_s: Measured communication time.
            modelled_s: What the same bytes would take on a clear fabric, None if unknown.
        """
        if not (math.isfinite(comm_s) and comm_s > 0):
            return
        modelled = modelled_s is not None and math.isfinite(modelled_s) and modelled_s > 0
        relative = comm_s / modelled_s if modelled and modelled_s else comm_s
        clear = self._clear_time(rung, relative, modelled)
        self._ratio = ewma_update(self._ratio, relative / clear, self._gain)

    def _clear_time(self, rung: int, relative: float, modelled: bool) -> float:
        first = not self._entry
        entry = self._entry.setdefault(rung, 0.0 if first else max(1.0, self._ratio))
        count, total = self._block.get(rung, (0, 0.0))
        count, total = count + 1, total + relative
        mean = total / count
        if entry == 0.0:
            found = 1.0 if modelled else mean
        else:
            found = mean / entry
            if modelled and found < LEAST_EXCESS:
                found = 1.0
        known = self._clear.get(rung)
        if count >= BLOCK_ITERATIONS:
            if known is None:
                self._clear[rung] = found
            elif not modelled:
                self._clear[rung] = min(known, mean)
            count, total = 0, 0.0
        self._block[rung] = (count, total)
        return found if known is None else self._clear[rung]

    def state_dict(self) -> dict[str, Any]:
        """All state, as plain numbers."""
        return {
            "ratio": self._ratio,
            "entry": sorted(self._entry.items()),
            "clear": sorted(self._clear.items()),
            "block": sorted(self._block.items()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly where `state_dict` was taken."""
        self._ratio = float(state["ratio"])
        self._entry = {int(rung): float(value) for rung, value in state["entry"]}
        self._clear = {int(rung): float(value) for rung, value in state["clear"]}
        self._block = {
            int(rung): (int(count), float(total)) for rung, (count, total) in state["block"]
        }

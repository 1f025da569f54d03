"""How a study is run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xtune.errors import UsageError

LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 1000  # in a block: those of the trials, fresh ones, those of a search's own runs
MOST_ITERATIONS = 1_000_000  # a run draws its noise ahead: 100 bytes an iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a study is run; none of it but ``seed``, ``seeds`` and ``iterations`` changes a number.

    Attributes:
        seed: First seed; those of the trials are ``seed .. seed + seeds - 1``, and those that
            the best is compared with others by lie 1000 above.
        seeds: Seeds of a trial; of a search, of its finalists.
        iterations: Iterations that one run simulates.
        trials: Most completed trials in the study; ``None``: what the study says.
        timeout_s: Stop waiting after that long.
        storage: Optuna storage URL, or "" for a journal in the folder.
        fidelity: Whether the best's step times are compared with whole runs of the fabric.
    """

    seed: int = 0
    seeds: int = 5
    iterations: int = 3000
    trials: int | None = None
    timeout_s: float = math.inf
    storage: str = ""
    fidelity: bool = True

    def __post_init__(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            UsageError: A number is out of its range; the message names it.
        """
        for name, low, high in (
            ("seed", 0, LARGEST_SEED),
            ("seeds", 1, MOST_SEEDS),
            ("iterations", 1, MOST_ITERATIONS),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} = {value} is not within {low} .. {high}")

    def block(self, number: int, count: int) -> tuple[int, ...]:
        """Seeds of one use, which no other has."""
        first = self.seed + MOST_SEEDS * number
        return tuple(range(first, first + count))

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of every trial."""
        return self.block(0, self.seeds)

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """Seeds that nothing was picked by."""
        return self.block(1, self.seeds)

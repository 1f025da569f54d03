"""How much of a job's traffic leaves a leaf, by the collective's pattern.

In units of what one host sends. Hosts of a leaf stand next to each other in the job's order of
ranks, which is how the advice lists them.
"""

from __future__ import annotations

from collections.abc import Callable


def _ring(here: int, every: int) -> float:
    """One neighbour of the leaf's last host is elsewhere, whatever the number of hosts."""
    return 1.0


def _halving_doubling(here: int, every: int) -> float:
    """Nearest exchange first: half of the vector, then a quarter, and so on (Rabenseifner).

    A host sends 1 - 1/every of the vector in all and 1 - 1/here of it within the leaf, as far as
    both are powers of two.
    """
    return here * (1 / here - 1 / every) / (1 - 1 / every)


def _all_to_all(here: int, every: int) -> float:
    """Each host sends alike to each other one."""
    return here * (every - here) / (every - 1)


def _pipeline(here: int, every: int) -> float:
    """Activations from the last host onward, gradients from the first back: half of each's."""
    return 1.0


_LEAVING: dict[str, Callable[[int, int], float]] = {
    "ring": _ring,
    "halving-doubling": _halving_doubling,
    "all-to-all": _all_to_all,
    "pipeline": _pipeline,
}
PATTERNS = tuple(_LEAVING)


def leaving(pattern: str, here: int, every: int) -> float:
    """What leaves a leaf, in what one host sends; as much comes in.

    Args:
        pattern: One of `PATTERNS`.
        here: The job's hosts on the leaf, at least 1.
        every: The job's hosts.
    """
    return 0.0 if here == every else _LEAVING[pattern](here, every)

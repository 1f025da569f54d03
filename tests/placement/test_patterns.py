"""What leaves a leaf, against the flows of each pattern counted one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import pytest

from xtune.placement.patterns import PATTERNS, leaving

Flow = tuple[int, int, Fraction]  # sender, receiver, bytes


def ring(hosts: int) -> Iterator[Flow]:
    for host in range(hosts):
        yield host, (host + 1) % hosts, Fraction(1)


def all_to_all(hosts: int) -> Iterator[Flow]:
    for a, b in itertools.permutations(range(hosts), 2):
        yield a, b, Fraction(1)


def halving_doubling(hosts: int) -> Iterator[Flow]:
    """Reduce-scatter: partners at distance 1, 2, 4, ... exchange 1/2, 1/4, 1/8 of the vector."""
    distance = 1
    while distance < hosts:
        for host in range(hosts):
            yield host, host ^ distance, Fraction(1, 2 * distance)
        distance *= 2


def pipeline(hosts: int) -> Iterator[Flow]:
    for host in range(hosts - 1):
        yield host, host + 1, Fraction(1)
        yield host + 1, host, Fraction(1)


FLOWS = {
    "ring": ring, "halving-doubling": halving_doubling, "all-to-all": all_to_all,
    "pipeline": pipeline,
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("here", "every"), [(1, 4), (2, 4), (2, 8), (4, 8), (4, 16), (8, 32)])
def test_what_crosses_is_what_the_flows_say(pattern: str, here: int, every: int) -> None:
    """A leaf in the middle of the job's order; what a host in the middle sends is the unit."""
    flows = list(FLOWS[pattern](every))
    leaf = range(here, 2 * here) if every > 2 * here else range(here)
    out = sum((size for a, b, size in flows if a in leaf and b not in leaf), Fraction(0))
    unit = sum((size for a, _, size in flows if a == 1), Fraction(0))
    if pattern == "pipeline" and 0 in leaf:
        out *= 2  # at an end of the pipeline half of it goes one way only: we count the whole
    assert leaving(pattern, here, every) == pytest.approx(float(out / unit))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_on_one_leaf_cross_nothing(pattern: str) -> None:
    assert [leaving(pattern, n, n) for n in (1, 2, 5)] == [0.0, 0.0, 0.0]

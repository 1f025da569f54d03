"""Offsets over a graph of pairs, and steps of a clock, worked out another way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from xtune.pipelines._clock_graph import Edge, components
from xtune.pipelines._clock_steps import segments


def edge(host: str, hub: str, diff: int, half: int = 1, weight: float = 1.0) -> Edge:
    return Edge(
        host=host, hub=hub, diff_ns=diff, low_ns=diff - half, high_ns=diff + half, weight=weight
    )


@pytest.mark.parametrize("seed", range(10))
def test_offsets_are_those_of_a_linear_programme(seed: int) -> None:
    """The same sum of absolute misses as an interior-point solver finds on the dense problem."""
    rng = np.random.default_rng(seed)
    hosts = [f"h{i:02}" for i in range(12)]
    true = rng.integers(-(10**6), 10**6, 12)
    edges = []
    for _ in range(30):
        one, two = rng.choice(12, 2, replace=False)
        wrong = 10**6 if rng.random() < 0.2 else 0
        diff = int(true[one] - true[two] + rng.integers(-1000, 1000) + wrong)
        weight = float(rng.uniform(0.5, 2))
        edges.append(edge(hosts[one], hosts[two], diff, int(rng.integers(1, 100)), weight))
    for found in components(edges):
        own = [e for e in edges if e.host in found.offset_ns]
        names = sorted(found.offset_ns)
        misses = [
            e.weight * abs(e.diff_ns - found.offset_ns[e.host] + found.offset_ns[e.hub])
            for e in own
        ]
        matrix = np.zeros((len(own), len(names)))
        for row, e in enumerate(own):
            matrix[row, names.index(e.host)] += 1
            matrix[row, names.index(e.hub)] -= 1
        diffs, eye = np.array([e.diff_ns for e in own]), np.eye(len(own))
        best = linprog(
            np.r_[np.zeros(len(names)), [e.weight for e in own]],
            A_ub=np.block([[matrix, -eye], [-matrix, -eye]]),
            b_ub=np.r_[diffs, -diffs],
            bounds=[(0, 0)] + [(None, None)] * (len(names) - 1) + [(0, None)] * len(own),
            method="highs-ipm",
        )
        assert sum(misses) == pytest.approx(best.fun, rel=1e-6)


def test_one_wrong_pair_moves_nobody() -> None:
    """A square with a diagonal: the pair that is 40 s wrong is outvoted, the sums are exact."""
    edges = [
        edge("b", "a", 5), edge("c", "b", 7), edge("d", "c", -2), edge("d", "a", 10),
        edge("c", "a", 40_000_000_012),
    ]  # fmt: skip
    [found] = components(edges)
    assert dict(found.offset_ns) == {"a": 0, "b": 5, "c": 12, "d": 10}
    assert found.reference() == "b"
    assert found.relative_to("a")["d"] in ((10, 9, 11), (10, 7, 13))


def test_bounds_add_up_along_the_tree() -> None:
    [found] = components([edge("b", "a", 5, half=1), edge("c", "b", 7, half=2)])
    assert found.relative_to("a") == {"a": (0, 0, 0), "b": (5, 4, 6), "c": (12, 9, 15)}
    assert found.relative_to("c") == {"c": (0, 0, 0), "b": (-7, -9, -5), "a": (-12, -15, -9)}


def test_parts_without_a_pair_between_them() -> None:
    found = components([edge("b", "a", 1), edge("z", "y", 2), edge("c", "b", 3)])
    assert [dict(part.offset_ns) for part in found] == [{"a": 0, "b": 1, "c": 4}, {"y": 0, "z": 2}]


def test_a_steady_drift_and_an_outlier_are_no_step() -> None:
    assert len(segments({block: block * 10**8 for block in range(96)})) == 1
    assert len(segments({block: 5 * 10**9 * (block == 40) for block in range(96)})) == 1
    assert len(segments({0: 0, 1: 10**10})) == 1
    noise = np.random.default_rng(0).normal(0, 10**8, 96)
    assert len(segments({block: int(value) for block, value in enumerate(noise)})) == 1


def test_steps_are_found_on_a_drift() -> None:
    levels = {b: b * 10**6 + 10**9 * (b >= 20) - 3 * 10**8 * (b >= 70) for b in range(96)}
    found = segments(levels)
    assert [(part.first, part.last) for part in found] == [(0, 19), (20, 69), (70, 95)]

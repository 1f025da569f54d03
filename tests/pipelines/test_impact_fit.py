"""The median line over sizes, against a linear programme and scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from xtune.pipelines._impact_fit import Floats, fit_kinds, median_line


def typical(sizes: Floats, times: Floats) -> Floats:
    return np.array([np.median(times[sizes == size]) for size in sizes])


def loss(sizes: Floats, times: Floats, latency: float, slope: float) -> float:
    """Absolute deviations, relative to the median time at each size."""
    return float(np.sum(np.abs(times - latency - slope * sizes) / typical(sizes, times)))


def least_by_programme(sizes: Floats, times: Floats) -> float:
    """The least such loss of a line with neither part below zero, by a linear programme."""
    count, weights = len(sizes), 1 / typical(sizes, times)
    scale = sizes.max()
    line = np.c_[np.ones(count), sizes / scale]
    apart = np.c_[line, np.eye(count), -np.eye(count)]
    cost = np.r_[0, 0, weights, weights]
    found = linprog(cost, A_eq=apart, b_eq=times, bounds=(0, None), method="highs")
    return float(found.fun)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=2, max_size=40
    ).filter(lambda pairs: len({size for size, _ in pairs}) > 1)
)
@settings(max_examples=60, deadline=None)
def test_no_line_is_better(pairs: list[tuple[int, int]]) -> None:
    sizes, times = (np.array(column, float) for column in zip(*pairs, strict=True))
    line = median_line(sizes, times)
    assert line.latency_ns >= 0 and line.ns_per_byte >= 0
    found = loss(sizes, times, line.latency_ns, line.ns_per_byte)
    # The programme's own tolerance is what ours may be better by.
    assert found <= least_by_programme(sizes, times) * (1 + 1e-6) + 1e-6


def test_the_line_is_scikit_learns() -> None:
    from sklearn.linear_model import QuantileRegressor

    rng = np.random.default_rng(3)
    sizes = rng.integers(1 << 10, 1 << 28, 301).astype(float)
    times = 25_000 + sizes / 40 + rng.exponential(0.2, 301) * (25_000 + sizes / 40)
    line = median_line(sizes, times)
    scale = sizes.max()
    peer = QuantileRegressor(quantile=0.5, alpha=0, solver="highs")
    peer.fit(sizes[:, None] / scale, times, sample_weight=1 / times)
    assert line.ns_per_byte == pytest.approx(peer.coef_[0] / scale, rel=1e-3)
    assert line.latency_ns == pytest.approx(peer.intercept_, rel=1e-2, abs=50)


def test_a_few_wild_times_do_not_move_it() -> None:
    sizes = np.repeat(2.0 ** np.arange(10, 28, 2), 4)
    times = 20_000 + 0.025 * sizes
    times[::7] *= 50
    line = median_line(sizes, times)
    assert line.latency_ns == pytest.approx(20_000)
    assert line.ns_per_byte == pytest.approx(0.025)


def samples(pairs: list[tuple[int, int]], **kind: Any) -> pa.Table:
    told = {"own": True, "job": "j", "comm": "c", "op": "all_reduce", "comm_size": 8}
    told |= {"algorithm": None, "spread": None, **kind}
    rows = [{**told, "message_bytes": size, "transfer_ns": time} for size, time in pairs]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("why", "pairs", "expected"),
    [
        ("seven samples", [(size, 100 + size) for size in range(100, 800, 100)], None),
        ("two sizes", [(size, 100 + size) for size in [100, 800] * 4], None),
        ("a line", [(size, 100 + 2 * size) for size in range(100, 900, 100)], (100, 2, 100, 800)),
        ("one size", [(1000, 5), (1000, 7), (1000, 9), (1000, 9), (1050, 9)], (9, 0, 955, 1100)),
        ("four of one size", [(1000, 5)] * 4, None),
    ],
)
def test_what_makes_a_fit(
    why: str, pairs: list[tuple[int, int]], expected: tuple[int, int, int, int] | None
) -> None:
    rows = fit_kinds(samples(pairs)).to_pylist()
    if expected is None:
        assert rows == []
        return
    [row] = rows
    found = tuple(row[n] for n in ("latency_ns", "ns_per_byte", "low_bytes", "high_bytes"))
    assert found == pytest.approx(expected)
    assert (row["job"], row["comm"], row["samples"]) == ("j", "c", len(pairs))


def test_kinds_are_apart_and_the_order_of_rows_is_none() -> None:
    one = [(size, 100 + 2 * size) for size in range(100, 900, 100)]
    two = [(size, 50 + 3 * size) for size in range(100, 900, 100)]
    table = pa.concat_tables([samples(one), samples(two, comm="d")]).to_pylist()
    rng = np.random.default_rng(0)
    fits = []
    for _ in range(3):
        mixed = [table[i] for i in rng.permutation(len(table))]
        rows = fit_kinds(pa.Table.from_pylist(mixed)).to_pylist()
        fits.append(sorted(rows, key=lambda row: row["comm"]))
    assert fits[0] == fits[1] == fits[2]
    assert [round(row["ns_per_byte"], 9) for row in fits[0]] == [2.0, 3.0]


def test_nothing_to_fit() -> None:
    assert fit_kinds(samples([(1, 1)]).slice(0, 0)).num_rows == 0

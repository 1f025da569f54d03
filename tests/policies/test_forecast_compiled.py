"""The compiled table of forecasts: the same bits as numpy's and as one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xtune.policies.forecast import make_forecaster
from xtune.policies.forecast_batch import ForecastTable
from xtune.policies.schedule import BurstSchedule
from xtune.policies.spec import Routing

LINKS, STALE_NS = 50, 100_000
ROUTING = Routing(stale_ns=STALE_NS)


@pytest.mark.parametrize("alike", [True, False], ids=["one time", "a time each"])
def test_both_forms_give_the_same_bits_as_one_by_one(alike: bool) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(7)
    compiled = ForecastTable(LINKS, ROUTING, compiled=True)
    by_numpy = ForecastTable(LINKS, ROUTING)
    singles = [make_forecaster(ROUTING) for _ in range(LINKS)]
    at_ns = 0  # where an unknown link's time, 0, looks like a late reading's
    for _ in range(400):
        at_ns += int(rng.choice([0, 1, 777, 10_000, STALE_NS, STALE_NS + 1, -STALE_NS, -(10**6)]))
        missing = rng.random(LINKS) < rng.choice([0.0, 0.0, 0.2])
        readings = np.where(missing, math.nan, rng.random(LINKS))
        skew = rng.choice([0, 0, 700, -700, STALE_NS], LINKS)
        times = at_ns if alike else at_ns + skew
        compiled.update(readings, times)
        by_numpy.update(readings, times)
        for i, single in enumerate(singles):
            single.update(float(readings[i]), at_ns if alike else int(at_ns + skew[i]))
        peaks = [one.peak(200_000) for one in singles]
        for table in (compiled, by_numpy):
            np.testing.assert_array_equal(table.level, [one.level for one in singles])
            np.testing.assert_array_equal(table.slope, [one.slope for one in singles])
            np.testing.assert_array_equal(table.peak(200_000), peaks)
        known = ~np.isnan(compiled.level)
        np.testing.assert_array_equal(compiled.heard_ns[known], by_numpy.heard_ns[known])


def test_marks_and_a_schedule_are_heeded_by_a_compiled_table() -> None:
    pytest.importorskip("numba")
    tables = [ForecastTable(3, ROUTING, compiled=compiled) for compiled in (True, False)]
    readings, marks = np.array([0.1, 0.2, math.nan]), np.array([0.05, math.nan, 0.01])
    schedule = BurstSchedule()
    for table in tables:
        table.update(readings, 1000)
        table.update(readings, 2000, marks)
        table.update(readings, 3000)
    np.testing.assert_array_equal(tables[0].peak(100), tables[1].peak(100))
    assert tables[0].peak(100)[0] > 0.1
    for table in tables:
        table.expect(schedule)
        table.update(readings, 4000)
    np.testing.assert_array_equal(tables[0].peak(100), tables[1].peak(100))


@pytest.mark.parametrize(
    "times",
    [
        [60_000, 120_000, 180_000, 180_000 + STALE_NS + 1],  # as usual, but stale
        [10_000, 20_000, 30_000, 50_000, 57_000, 67_000],  # the usual time has become longer
        [(80_000, 0), (90_000, 40_000), (100_000, 80_000), 110_000, 121_000],  # links that differ
    ],
    ids=["stale", "longer", "apart"],
)
def test_even_readings_are_taken_as_each_link_takes_its_own(times: list[Any]) -> None:
    pytest.importorskip("numba")
    tables = [ForecastTable(2, ROUTING, compiled=compiled) for compiled in (True, False)]
    singles = [make_forecaster(ROUTING) for _ in range(2)]
    rng = np.random.default_rng(3)
    for at in times:
        readings = rng.random(2)
        each = (at, at) if isinstance(at, int) else at
        for table in tables:
            table.update(readings, at if isinstance(at, int) else np.array(at))
        for single, reading, at_ns in zip(singles, readings, each, strict=True):
            single.update(float(reading), at_ns)
    for table in tables:
        np.testing.assert_array_equal(table.level, [one.level for one in singles])
        np.testing.assert_array_equal(table.slope, [one.slope for one in singles])

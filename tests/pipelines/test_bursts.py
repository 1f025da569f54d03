"""Periods and duty cycles: planted ones come back, and noise gives none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.pipelines.docs import LISTED
from tests.pipelines.fabrics import down, nic, topology_rows, up
from tests.pipelines.lakes import at, counters, derived, new_lake, put
from xtune.pipelines import query, rebuild
from xtune.pipelines._periods import autocorrelation, event_period, load_periods

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator


def begins(rng: Rng, period: float, until: float, jitter: float = 0.0) -> Floats:
    """Beginnings of bursts; each step takes up to ``jitter`` of a period more or less."""
    steps = rng.uniform(1 - jitter, 1 + jitter, int(until / period * 1.3) + 5) * period
    times = np.cumsum(steps)
    return times[times < until]


def events(
    rng: Rng, period: float, duty: float, *, jitter: float, missing: float, parts: int
) -> tuple[Floats, Floats]:
    first = begins(rng, period, 300 * period, jitter)
    width = duty * period / parts
    starts = (first[:, None] + width * np.arange(parts)).ravel()
    kept: Floats = np.sort(starts[rng.random(starts.size) >= missing])
    return kept, np.asarray(kept + 0.9 * width, dtype=np.float64)


def load(
    rng: Rng, period: float, duty: float, interval: float, until: float, jitter: float = 0.0
) -> Floats:
    """Mean in each interval of a load that is 1 in bursts and else 0, exactly."""
    edges = np.arange(0, until + interval / 2, interval)
    first = begins(rng, period, until, jitter)
    at_edges = np.zeros(edges.size)
    for begin in first:
        at_edges += np.clip(edges - begin, 0, duty * period)
    return np.asarray(np.diff(at_edges) / interval, dtype=np.float64)


def middles(values: Floats, interval: float) -> Floats:
    return np.linspace(0.5, values.size - 0.5, values.size) * interval


@pytest.mark.parametrize("parts", [1, 12])
@pytest.mark.parametrize(("jitter", "missing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
@pytest.mark.parametrize(("period", "duty"), [(0.5, 0.1), (7.3, 0.4)])
def test_bursts_of_a_communicator(
    period: float, duty: float, jitter: float, missing: float, parts: int
) -> None:
    rng = np.random.default_rng(1)
    starts, ends = events(rng, period, duty, jitter=jitter, missing=missing, parts=parts)
    here = event_period(starts, ends)
    assert here is not None
    found = here[0]
    assert found.period_s == pytest.approx(period, rel=0.02)
    assert found.low_s <= found.period_s <= found.high_s
    assert found.duty == pytest.approx(duty - 0.1 * duty / parts, rel=0.05, abs=0.01)
    assert found.false_alarm < 1e-6


def test_steps_longer_than_jitter_are_told_from_their_parts() -> None:
    """Twelve collectives a step: the period is the step's, not that of its collectives."""
    rng = np.random.default_rng(2)
    starts, ends = events(rng, 10.0, 0.3, jitter=0.05, missing=0.0, parts=12)
    here = event_period(starts, ends)
    assert here is not None
    assert here[1].size == pytest.approx(300, abs=20)


def test_events_at_random_have_no_period() -> None:
    rng = np.random.default_rng(3)
    alarms = 0
    for turn in range(300):
        count = int(rng.integers(15, 400))
        intervals = (
            rng.exponential(1, count),
            rng.uniform(0, 2, count),
            rng.lognormal(0, 1, count),
        )[turn % 3]
        starts = np.cumsum(intervals)
        alarms += event_period(starts, starts + rng.exponential(0.05, count)) is not None
    assert alarms <= 1


def test_too_few_events_tell_nothing() -> None:
    times = np.arange(11.0)
    assert event_period(times, times + 0.1) is None


@pytest.mark.parametrize(("jitter", "missing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
@pytest.mark.parametrize(
    ("period", "duty", "interval", "until"),
    [(20, 0.3, 1, 3600), (60, 0.2, 1, 7200), (7, 0.4, 1, 3600), (300, 0.5, 10, 43200)],
)
def test_load_of_a_link(
    period: float, duty: float, interval: float, until: float, jitter: float, missing: float
) -> None:
    rng = np.random.default_rng(4)
    values = load(rng, period, duty, interval, until, jitter)
    values += rng.normal(0, 0.05, values.size)
    kept = rng.random(values.size) >= missing
    [found] = load_periods(middles(values, interval)[kept], values[kept], interval)
    assert found.period_s == pytest.approx(period, rel=0.03)
    assert found.duty == pytest.approx(duty, abs=0.04)


@pytest.mark.parametrize("jitter", [0.0, 0.05])
def test_two_jobs_on_one_link(jitter: float) -> None:
    rng = np.random.default_rng(5)
    values = load(rng, 20, 0.3, 1, 7200, jitter) + load(rng, 33, 0.2, 1, 7200, jitter)
    values += rng.normal(0, 0.05, values.size)
    found = load_periods(middles(values, 1), values, 1.0)
    assert [p.period_s for p in found] == pytest.approx([20, 33], rel=0.02)


def test_noise_with_and_without_memory_has_no_period() -> None:
    """White noise, a load that drifts, and jobs that come and go at random: 240 of them."""
    rng = np.random.default_rng(6)
    alarms = 0
    for turn in range(240):
        count = int(rng.integers(200, 3000))
        if turn % 3 == 0:
            values = rng.normal(0, 1, count)
        elif turn % 3 == 1:
            share, values = rng.uniform(0.3, 0.97), rng.normal(0, 1, count)
            for i in range(1, count):
                values[i] += share * values[i - 1]
        else:
            lengths = rng.geometric(0.1, count)
            values = np.repeat(np.arange(count) % 2, lengths)[:count].astype(np.float64)
        alarms += bool(load_periods(middles(values, 1), values, 1.0))
    assert alarms <= 2


@pytest.mark.parametrize("period", [3, 7, 9.9, 12, 14, 30])
def test_a_period_below_four_intervals_is_not_told(period: float) -> None:
    """Sampled every 10 s they would look like 30 s, 23 s, 990 s, 60 s, 35 s and 30 s."""
    values = load(np.random.default_rng(7), period, 0.3, 10, 86400)
    assert load_periods(middles(values, 10), values, 10.0) == []


def test_a_load_seen_twice_for_a_while_has_no_period() -> None:
    """Two hours of noise, half a day apart: what they have in common is chance."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        times = np.concatenate([np.arange(720), 9000 + np.arange(720)]) * 5 + 2.5
        jobs = np.repeat(rng.random(2000) < 0.5, rng.geometric(0.02, 2000))[: times.size]
        assert load_periods(times, rng.normal(0, 0.1, times.size) + jobs, 5.0) == []


def test_autocorrelation_is_that_of_the_known_pairs() -> None:
    rng = np.random.default_rng(8)
    values = rng.normal(3, 1, 50)
    known = rng.random(50) >= 0.3
    centred = values - values[known].mean()
    expected = []
    for lag in range(20):
        pairs = [
            centred[i] * centred[i + lag] for i in range(50 - lag) if known[i] and known[i + lag]
        ]
        expected.append(np.mean(pairs))
    found = autocorrelation(values, known, 20)
    assert found == pytest.approx(np.array(expected) / expected[0])


def collectives(rng: Rng, job: str, hosts: list[str], period: float, duty: float) -> Any:
    rows = []
    for n, begin in enumerate(begins(rng, period, 1800)):
        for rank, host in enumerate(hosts):
            rows.append(
                {
                    "start_ts": at(begin), "duration_ns": round(duty * period * 1e9), "job": job,
                    "host": host, "rank": rank, "comm": "pg:0", "seq": n, "op": "all_reduce",
                }
            )  # fmt: skip
    return rows


def sent(link: str, values: Floats) -> list[dict[str, Any]]:
    words = np.concatenate([[0], np.cumsum(np.rint(values * 12.5e9))])
    return counters(range(len(words)), link, port_xmit_data=[int(w) for w in words])


def test_jobs_that_beat_together_on_an_uplink(tmp_path: Path) -> None:
    """Two jobs span leaves 0 and 1, one stays below leaf 0; all beat on their hosts' ports."""
    rng = np.random.default_rng(9)
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    jobs = {"a": (["node00", "node10"], 20.0, 0.3), "b": (["node01", "node11"], 20.0, 0.2),
            "c": (["node02", "node03"], 33.0, 0.2)}  # fmt: skip
    for job, (hosts, period, duty) in jobs.items():
        put(lake, "collectives", collectives(rng, job, hosts, period, duty), source=job * 12)
    a, b, c = (load(rng, period, duty, 1, 1800) for _, period, duty in jobs.values())
    for link, values in ((up(0, 0), a + b), (nic(0, 0), a), (nic(0, 2), c), (down(0, 1), b)):
        put(lake, "link_counters", sent(link, values / 2), source=link[-4:].zfill(12))
    rebuild(lake)
    bursts = {(r["kind"], r["job"], r["subject"]): r for r in derived(lake, "bursts")}
    for job, (_, period, duty) in jobs.items():
        row = bursts["communicator", job, "pg:0"]
        assert (row["period_s"], row["duty"]) == pytest.approx((period, duty), rel=0.01)
    assert bursts["link", None, up(0, 0)]["period_s"] == pytest.approx(20, rel=0.01)
    assert bursts["link", None, nic(0, 2)]["period_s"] == pytest.approx(33, rel=0.01)
    beats = {(r["link"], r["job"]): r for r in derived(lake, "link_beats")}
    assert beats.keys() == {
        (up(0, 0), "a"), (up(0, 0), "b"), (nic(0, 0), "a"), (nic(0, 2), "c"), (down(0, 1), "b"),
    }  # fmt: skip
    both = beats[up(0, 0), "a"]
    assert both["other_job"] == "b"
    # The bursts begin together every 20 s; those of b are two thirds as long.
    assert both["overlap"] == pytest.approx(2 / 3, rel=0.02)
    assert beats[up(0, 0), "b"]["overlap"] == pytest.approx(1.0, rel=0.02)
    assert min(both["phase"], 1 - both["phase"]) < 0.01
    assert beats[nic(0, 0), "a"]["other_job"] is None
    # The page's own queries.
    page = LISTED.page.read_text()
    pairs, groups = re.findall(r'xtune query "(SELECT [^"]* FROM link_beats [^"]*)"', page)
    [pair] = query(lake, pairs).to_pylist()
    assert (pair["link"], pair["job"], pair["other_job"]) == (up(0, 0), "a", "b")
    [group] = query(lake, groups).to_pylist()
    assert (group["link"], group["jobs"]) == (up(0, 0), ["a", "b"])


def test_a_link_without_a_certain_period_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", sent(nic(0, 0), rng.uniform(0, 1, 400)))
    rebuild(lake)
    [row] = derived(lake, "bursts")
    assert (row["subject"], row["period_s"], row["samples"]) == (nic(0, 0), None, 400)
    assert "4 intervals" in row["note"]

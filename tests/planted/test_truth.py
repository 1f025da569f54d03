"""The truth and the score themselves: by hand, and that they tell right from wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.pipelines.lakes import new_lake, put
from tests.planted import Planted, generate, score
from tests.planted.scores import Score
from tests.planted.truth import TrueStretch, cut, likeness, reported
from xtune.lake import Lake
from xtune.pipelines import EpisodeRules

RULES = EpisodeRules()


def by_rules(means: list[float], step_s: float = 1.0) -> list[tuple[float, float]]:
    times = np.arange(len(means) + 1) * step_s
    signal = np.array(means), RULES.enter_wait[1], RULES.exit_wait[1]
    return reported(times, np.ones(len(means), bool), [signal], RULES)


@pytest.mark.parametrize(
    ("means", "spans"),
    [
        ([0, 0.2, 0.2, 0], [(1, 3)]),
        ([0, 0.2, 0, 0], []),  # one interval alone
        ([0, 0.14, 0.14, 0.14], []),
        ([0, 0.2, 0.12, 0.12, 0.05], [(1, 4)]),  # stays until it is below the lower threshold
        ([0.2, 0.2, *[0] * 10, 0.2, 0.2], [(0, 14)]),
        ([0.2, 0.2, *[0] * 11, 0.2, 0.2], [(0, 2), (13, 15)]),
    ],
)
def test_rules_by_hand(means: list[float], spans: list[tuple[float, float]]) -> None:
    assert by_rules(means) == spans


def test_likeness_and_cuts() -> None:
    assert likeness((0, 10), (5, 10)) == 0.5
    assert likeness((0, 10), (20, 30)) == 0.0
    assert cut([(0, 10)], [(2, 4), (9, 20)]) == [(0, 2), (4, 9)]
    assert cut([(3, 4)], [(2, 4)]) == []


@pytest.fixture(scope="module")
def planted() -> Planted:
    return generate(2, length_s=500.0)


def found(lake: Lake, planted: Planted, stretches: list[TrueStretch]) -> Score:
    """Score of derived tables that hold these stretches, and each true episode."""
    t0 = planted.truth.t0_ns
    links: list[dict[str, Any]] = [
        {
            "link_episode_id": str(i),
            "episode_id": "e",
            "link": s.link,
            "start_ts": t0 + round(s.start_s * 1e9),
            "end_ts": t0 + round(s.end_s * 1e9),
        }
        for i, s in enumerate(stretches)
    ]
    episodes = [
        {
            "episode_id": str(e.number),
            "start_ts": t0 + round(e.start_s * 1e9),
            "end_ts": t0 + round(e.end_s * 1e9),
            "links": sorted(e.links),
            "root_link": min(e.roots),
            "cause": e.cause,
            "idle_gpu_hours": e.gpu_hours,
        }
        for e in planted.truth.episodes
        if e.required
    ]
    for name, rows in (("link_episodes", links), ("episodes", episodes)):
        put(lake, f"derived/{name}", rows)
    return score(lake, planted.truth)


def test_what_is_true_scores_full(tmp_path: Path, planted: Planted) -> None:
    result = found(new_lake(tmp_path / "lake"), planted, planted.truth.stretches)
    assert (result.recall, result.precision, result.root_right) == (1.0, 1.0, 1.0)
    assert result.bound_error == pytest.approx(0.0, abs=1e-6)
    assert result.gpu_hours_error == pytest.approx(0.0, abs=0.01)


def test_each_stretch_counts_once(tmp_path: Path, planted: Planted) -> None:
    """Two thirds of the stretches, one on another link, one moved by more than half of it."""
    stretches = planted.truth.stretches[::3] + planted.truth.stretches[1::3]
    first, second = stretches[0], stretches[1]
    length = second.end_s - second.start_s
    stretches[0] = replace(first, link="0x00000000000000aa/1")
    stretches[1] = replace(second, start_s=second.start_s + length, end_s=second.end_s + length)
    result = found(new_lake(tmp_path / "lake"), planted, stretches)
    required = sum(s.required for s in planted.truth.stretches)
    right = sum(s.required for s in stretches[2:])
    assert result.recall == pytest.approx(right / required)
    assert len(result.false) == 2


def test_the_same_seed_gives_the_same(planted: Planted) -> None:
    again = generate(2, length_s=500.0)
    assert again.truth == planted.truth
    for name, batches in planted.tables.items():
        for one, other in zip(batches, again.tables[name], strict=True):
            assert one.equals(other)


def test_mess_changes_no_truth_of_what_happened() -> None:
    clean, messy = generate(3, length_s=400.0), generate(3, length_s=400.0, mess=True)
    assert [e.start_s for e in clean.truth.episodes] == [e.start_s for e in messy.truth.episodes]
    assert [e.gpu_hours for e in clean.truth.episodes] == [
        e.gpu_hours for e in messy.truth.episodes
    ]


def test_counters_rise_by_what_was_sent(planted: Planted) -> None:
    """Words a port sent and its peer received agree, but for the moments of the samples."""
    rows = pa.concat_tables(planted.tables["link_counters"])
    fabric = planted.history.plan.fabric
    links = np.array(rows["link"].to_pylist())
    total: dict[str, dict[str, int]] = {"port_xmit_data": {}, "port_rcv_data": {}}
    for name, of in total.items():
        values = rows[name].to_numpy()
        for port in fabric.ports[:60]:
            mine = values[links == port.link]
            of[port.link] = int(mine[-1]) - int(mine[0])
    for port in fabric.ports[:60]:
        if port.peer in total["port_rcv_data"]:
            sent = total["port_xmit_data"][port.link]
            assert total["port_rcv_data"][port.peer] == pytest.approx(sent, rel=0.02, abs=2e9)

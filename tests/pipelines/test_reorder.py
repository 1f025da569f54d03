"""Reorder depth and layer statistics against twins in plain Python."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.lakes import SECOND, at, derived, new_lake, put, rows_of
from xtune.pipelines import rebuild
from xtune.pipelines._engine import connect, empty_relation
from xtune.tables import TABLES

_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=60)


@settings(max_examples=25, deadline=None)
@given(ranks=st.lists(_SPANS, min_size=1, max_size=3))
def test_depth_is_what_was_still_under_way(ranks: list[list[tuple[int, int]]]) -> None:
    depths: Counter[int] = Counter()
    rows = []
    for rank, spans in enumerate(ranks):
        for seq, (start, length) in enumerate(spans):
            end = start + length
            depths[sum(s < end < s + n for s, n in spans[:seq])] += 1
            rows.append(
                {
                    "start_ts": at(start), "duration_ns": length * SECOND, "job": "j",
                    "rank": rank, "comm": "c", "seq": seq, "op": "all_reduce",
                }
            )  # fmt: skip
    with connect(threads=1) as session:
        session.table("decisions", f"FROM {empty_relation(TABLES['decisions'])}")
        given_rows = rows_of("collectives", rows)
        session.load("few", given_rows)
        session.table(
            "collectives",
            f"FROM few UNION ALL BY NAME FROM {empty_relation(TABLES['collectives'])}",
        )
        session.create("reorder_depth")
        found = session.rows("SELECT depth, tensors, buffer_tensors FROM reorder_depth")
    assert {depth: count for depth, count, _ in found} == dict(depths)
    total, covered, least = sum(depths.values()), 0, None
    for depth in sorted(depths):
        covered += depths[depth]
        if least is None and covered >= 0.995 * total:
            least = depth + 1
    assert {buffer for _, _, buffer in found} == {least}


def test_layers_of_a_small_run(tmp_path: Path) -> None:
    """Norms by window and layer, shares of the squares, and a layer that grows."""
    rng = np.random.default_rng(1)
    layers = {"embed": (0.0, 1000), "block": (0.5, 400), "head": (1.0, 50)}
    norms = {
        name: rng.lognormal(0, 0.2, 1500) * (np.linspace(1, 3, 1500) if name == "head" else 1)
        for name in layers
    }
    lake = new_lake(tmp_path / "lake")
    put(
        lake,
        "layer_gradients",
        [
            {
                "ts": at(step), "job": "j", "run": "r", "step": step, "layer": name,
                "depth": depth, "elements": elements, "norm": float(norms[name][step]),
                "density": 0.5,
            }
            for name, (depth, elements) in layers.items()
            for step in range(1500)
        ],
    )  # fmt: skip
    rebuild(lake)
    rows = {(r["layer"], r["first_step"]): r for r in derived(lake, "layer_statistics")}
    for name, (_, elements) in layers.items():
        for first, of in ((0, slice(0, 1000)), (1000, slice(1000, 1500))):
            row, own = rows[name, first], norms[name][of]
            assert row["steps"] == len(own)
            assert math.isclose(row["norm_median"], statistics.median(own))
            assert math.isclose(row["norm_p90"], float(np.quantile(own, 0.9)))
            assert math.isclose(
                row["norm_per_element"], statistics.median(own) / math.sqrt(elements)
            )
            squares = sum(np.square(n[of]) for n in norms.values())
            assert math.isclose(row["share"], float(np.median(np.square(own) / squares)))
            half = len(own) // 2
            trend = float(np.median(own[half:]) / np.median(own[:half])) - 1
            assert math.isclose(row["trend"], trend, rel_tol=1e-9)
    assert rows["head", 0]["trend"] > 0.3 > abs(rows["block", 0]["trend"])

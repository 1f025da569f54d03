"""Concurrency: how links fare with the number of jobs that run at once, and whether it has a knee.

Three tables: minutes of a day, numbers of jobs of a day, and the knee over all days.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xtune.pipelines._engine import empty_relation
from xtune.pipelines._knee import find_knee
from xtune.pipelines._tables import DayInput, DayTable
from xtune.tables import LINK_RATES

# A job that shows neither step nor collective for longer did not run.
JOB_GAP_S = 900.0
# Minutes of one block are not independent of each other.
_BLOCK_NS = 1_800_000_000_000
# Signal -> column that says how much it is known.
_SIGNALS = {
    "discard_rate": "discard_link_s",
    "retransmit_rate": "retransmit_link_s",
    "wait_fraction": "wait_link_s",
}
_KNEES = pa.schema(
    [
        ("first_ns", pa.int64()),
        ("signal", pa.string()),
        ("verdict", pa.string()),
        ("knee_jobs", pa.float64()),
        ("low_jobs", pa.float64()),
        ("high_jobs", pa.float64()),
        ("p_value", pa.float64()),
        ("samples", pa.int64()),
    ]
)


def prepare_minutes(given: DayInput) -> list[str]:
    """Make ``job_runs`` of a day; without jobs, no rate needs to be read."""
    given.session.set_variables({"job_gap_s": JOB_GAP_S})
    given.session.create("job_runs")
    if not given.session.rows("FROM job_runs LIMIT 1"):
        given.session.view("link_rates", f"FROM {empty_relation(LINK_RATES)}")
    return []


def prepare_knee(given: DayInput) -> list[str]:
    """Make ``knees``: for each signal, what all minutes of the lake say."""
    minutes = given.session.arrow("FROM concurrency_minutes ORDER BY ts")
    rows = []
    ts = minutes["ts"].cast(pa.int64()).to_numpy()
    jobs = minutes["jobs"].to_numpy().astype(np.float64)
    for signal, weighed in _SIGNALS.items() if len(ts) else ():
        values = minutes[signal].to_numpy(zero_copy_only=False).astype(np.float64)
        weight = minutes[weighed].to_numpy(zero_copy_only=False).astype(np.float64)
        known = np.isfinite(values) & (weight > 0)
        row = {"first_ns": int(ts[0]), "signal": signal, "verdict": "no counter", "samples": 0}
        if known.any():
            found = find_knee(jobs[known], values[known], weight[known], ts[known] // _BLOCK_NS)
            row |= {
                "verdict": found.verdict,
                "knee_jobs": found.knee,
                "low_jobs": found.low,
                "high_jobs": found.high,
                "p_value": found.p_value,
                "samples": found.blocks,
            }
        rows.append(row)
    given.session.load("knees", pa.Table.from_pylist(rows, schema=_KNEES))
    return []


TABLES = (
    DayTable(
        name="concurrency_minutes",
        inputs=("collectives", "steps", "link_rates"),
        prepare=prepare_minutes,
        rests_on=(),
    ),
    DayTable(name="concurrency", inputs=("concurrency_minutes",), rests_on=()),
    DayTable(
        name="concurrency_knee",
        inputs=("concurrency_minutes",),
        span="lake",
        prepare=prepare_knee,
        rests_on=(),
    ),
)

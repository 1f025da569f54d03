"""A lake with known truth: one job on a small fabric, with episodes at known times.

Nothing of the simulator is used: steps are laid out one after the other, with bucket ``i`` of
``n`` sent when a third and ``(i + 1) / n`` of the remaining compute have passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xtune.lake import Lake
from xtune.tables import TABLES

T0 = 1_772_445_600_000_000_000  # a day in 2026
HOSTS, LEAVES, SPINES = 8, 4, 2

Rows = dict[str, list[dict[str, Any]]]  # of each table


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the telemetry was made of."""

    seed: int = 1
    hours: float = 2.0
    compute_s: float = 1.0
    buckets: int = 4
    bucket_bytes: int = 1_000_000_000
    bucket_s: float = 0.05
    rate_per_h: float = 15.0
    length_s: float = 50.0
    slowdown: float = 2.0
    noise: float = 0.02
    floor: float = 2.0
    scale: float = 6.0
    exponent: float = 0.3


def episodes_of(truth: Truth) -> list[tuple[float, float]]:
    """Start and end of each episode in seconds: even gaps, lengths that average as asked."""
    count = round(truth.rate_per_h * truth.hours)
    lengths = truth.length_s * np.linspace(0.4, 1.6, count)
    gap = (truth.hours * 3600 - lengths.sum()) / (count + 1)
    starts = gap * np.arange(1, count + 1) + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return [(float(a), float(a + b)) for a, b in zip(starts, lengths, strict=True)]


def ns(seconds: float) -> int:
    """Absolute time of a time since the start."""
    return T0 + round(seconds * 1e9)


def rows_of(truth: Truth) -> Rows:
    """Rows of every table."""
    random = np.random.default_rng(truth.seed)
    episodes = episodes_of(truth)
    rows: Rows = {name: [] for name in TABLES}
    now, step, seq = 0.0, 0, 0
    while True:
        slow = [truth.slowdown for a, b in episodes if a <= now < b]
        factor = slow[0] if slow else 1.0
        starts = [
            now + truth.compute_s * (1 / 3 + 2 / 3 * (i + 1) / truth.buckets)
            for i in range(truth.buckets)
        ]
        noise = np.exp(random.normal(0.0, truth.noise, truth.buckets))
        takes = truth.bucket_s * factor * noise
        end = starts[-1] + takes[-1]
        if end > truth.hours * 3600:
            break
        for start, took in zip(starts, takes, strict=True):
            common = {"job": "train", "comm": "c0", "seq": seq, "op": "all_reduce",
                      "message_bytes": truth.bucket_bytes, "duration_ns": round(took * 1e9),
                      "start_ts": ns(start)}  # fmt: skip
            for rank in (0, HOSTS - 1):
                rows["collectives"].append(
                    {**common, "host": f"node{rank}", "rank": rank, "comm_rank": rank,
                     "comm_size": HOSTS, "dtype": "bf16"}
                )  # fmt: skip
                rows["derived/collective_impact"].append(
                    {**common, "rank": rank, "comm_rank": rank,
                     "expected_ns": round(truth.bucket_s * 1e9),
                     "episode_id": "e" if factor > 1 else None}
                )  # fmt: skip
            seq += 1
        # A control message, which must not count as a bucket.
        rows["collectives"].append(
            {"job": "train", "comm": "c0", "seq": 10_000_000 + seq, "op": "all_reduce",
             "message_bytes": 8, "duration_ns": 20_000, "start_ts": ns(end), "comm_size": HOSTS,
             "host": "node0", "rank": 0, "comm_rank": 0, "dtype": "fp32"}
        )  # fmt: skip
        loss = truth.floor + truth.scale * (step + 1.0) ** -truth.exponent
        rows["steps"].append(
            {"ts": ns(end), "job": "train", "run": "r", "step": step, "split": "train",
             "loss": loss + float(random.normal(0.0, 0.02)), "grad_norm": 1.0 + 0.1 * (step % 2),
             "step_time_s": end - now}
        )  # fmt: skip
        now, step = end, step + 1
    for index, (start, stop) in enumerate(episodes):
        rows["derived/episodes"].append(
            {"episode_id": f"e{index}", "start_ts": ns(start), "end_ts": ns(stop),
             "links": ["0xleaf0/3"], "root_link": "0xleaf0/3", "cause": "uplink_collision",
             "evidence": "{}", "slowdown": truth.slowdown, "jobs": ["train"]}
        )  # fmt: skip
    for at in np.arange(10.0, truth.hours * 3600 + 1, 10.0):
        rows["derived/link_rates"].append(
            {"ts": ns(float(at)), "interval_s": 10.0, "link": "0xleaf0/3", "tx_gbps": 60.0}
        )
    rows["topology_links"] = topology()
    return rows


def topology() -> list[dict[str, Any]]:
    """Two hosts a leaf, two spines, both directions of every link."""
    pairs = []
    for host in range(HOSTS):
        leaf = host // (HOSTS // LEAVES)
        pairs.append((f"0xhost{host}", f"node{host} mlx5_0", f"0xleaf{leaf}", f"leaf{leaf}", 0))
    for leaf in range(LEAVES):
        for spine in range(SPINES):
            pairs.append((f"0xleaf{leaf}", f"leaf{leaf}", f"0xspine{spine}", f"spine{spine}", 1))
    links = []
    for index, (a, a_name, b, b_name, tier) in enumerate(pairs):
        for src, src_name, dst, dst_name in ((a, a_name, b, b_name), (b, b_name, a, a_name)):
            links.append(
                {"src_guid": src, "src_name": src_name, "src_port": index, "dst_guid": dst,
                 "dst_name": dst_name, "dst_port": index, "rate_gbps": 400.0, "tier": tier}
            )  # fmt: skip
    return links


def arrow(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows in the table's own types; a column that no row has is left out."""
    schema = TABLES[table].schema
    names = [name for name in schema.names if any(name in row for row in rows)]
    return pa.table(
        {n: pa.array([row.get(n) for row in rows], schema.field(n).type) for n in names}
    )


def fill(root: Path, rows: Rows) -> Lake:
    """A lake of these rows; a table without any is left out."""
    lake = Lake.open(root, create=True)
    with lake.begin() as transaction:
        for name, some in rows.items():
            if some:
                transaction.write(name, arrow(name, some))
        transaction.commit()
    return lake


def make_lake(root: Path, truth: Truth, *, without: tuple[str, ...] = ()) -> Lake:
    """A lake of that truth, but for some tables."""
    rows = rows_of(truth)
    return fill(root, {name: some for name, some in rows.items() if name not in without})

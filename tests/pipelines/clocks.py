"""Collectives and counters stamped by clocks that are off, for the tests of clock repair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.pipelines.fabrics import down, nic
from tests.pipelines.lakes import SECOND, T0, at, rows_of
from xtune.lake import Lake
from xtune.pipelines._clocks import Offset, estimate
from xtune.pipelines._engine import connect, empty_relation
from xtune.pipelines._identity import identify
from xtune.pipelines._tables import DayInput
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules
from xtune.tables import TABLES

DAY = T0 // (86400 * SECOND) * 86400 * SECOND
DAY_END = DAY + 86400 * SECOND
Rows = list[dict[str, Any]]
Clock = Callable[[float], float]  # true seconds after T0 -> seconds ahead


def fixed(offset: float) -> Clock:
    return lambda _: offset


def collectives(
    clocks: Mapping[str, Clock],
    *,
    count: int = 300,
    every: float = 2.0,
    start: float = 0.0,
    noise: float = 20e-6,
    comm: str = "pg:0",
    ranks: int = 1,
    seed: int = 0,
    **columns: Any,
) -> Rows:
    """All-reduces that all ranks finish together, up to ``noise``; each begins when it likes."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    for seq in range(count):
        end = start + seq * every + 1.0
        for place, (host, clock) in enumerate(clocks.items()):
            for local in range(ranks):
                length = round(rng.uniform(1e-3, 0.9) * SECOND)
                shown = at(end + clock(end)) + round(rng.exponential(noise) * SECOND)
                row = {
                    "start_ts": shown - length, "duration_ns": length, "job": "j", "host": host,
                    "comm": comm, "comm_rank": place * ranks + local, "seq": seq,
                    "op": "all_reduce",
                }  # fmt: skip
                rows.append({**row, **columns})
    return rows


def offsets(
    lake: Lake,
    given: Rows,
    counters: Rows | None = None,
    topology: Rows | None = None,
    day: int = DAY,
) -> tuple[dict[str, list[Offset]], list[str]]:
    """Estimates of one day, by host, and notes."""
    counters, topology = counters or [], topology or []
    hosts = {row["host"] for row in [*given, *counters] if row.get("host")}
    identity = identify([], topology, hosts, {row["link"] for row in counters})
    with connect(threads=1) as session:
        for table, rows in (("collectives", given), ("link_counters", counters)):
            session.table(table, f"FROM {empty_relation(TABLES[table])}")
            if rows:
                session.load("given", rows_of(table, rows))
                session.execute(f"INSERT INTO {table} BY NAME FROM given")
        estimates, notes = estimate(
            DayInput(
                lake=lake, session=session, date="2026-03-02", start_ns=day,
                end_ns=day + 86400 * SECOND, identity=identity,
                topology=Topology.build(topology, identity), rules=EpisodeRules(),
            )
        )  # fmt: skip
    by_host: dict[str, list[Offset]] = {}
    for offset in estimates:
        by_host.setdefault(offset.host, []).append(offset)
    return by_host, notes


def only(found: dict[str, list[Offset]], host: str) -> Offset:
    [offset] = found[host]
    return offset


def traffic(kind: str, length: int, seed: int = 0) -> NDArray[np.float64]:
    """Bytes sent by the end of each tenth of a second."""
    rng = np.random.default_rng(seed)
    time = np.arange(0, length, 0.1)
    rate = np.full(len(time), 1e9)
    if kind == "bursts":
        at_s = 0.0
        while at_s < length:
            at_s += rng.uniform(5, 12)
            burst = (time >= at_s) & (time < at_s + rng.uniform(2, 6))
            rate[burst] = rng.uniform(2e9, 5e9)
    elif kind == "noise":
        rate = rng.uniform(0, 5e9, length)[np.minimum(time.astype(int), length - 1)]
    elif kind == "periodic":
        rate = 4e9 * (time % 20 < 10)
    sent: NDArray[np.float64] = np.cumsum(rate * 0.1)
    return sent


def both_ends(
    sent: NDArray[np.float64],
    clock: float,
    step: float,
    slot: int = 0,
) -> Rows:
    """What a host sends by its own counters, and its leaf receives by the fabric's."""
    rng = np.random.default_rng(slot)
    time = np.arange(len(sent)) / 10
    own, other = nic(0, slot), down(0, slot)
    rows: Rows = []
    for link, host, column, shift in (
        (own, f"node0{slot}", "port_xmit_data", clock), (other, None, "port_rcv_data", 0.0)
    ):  # fmt: skip
        moments = np.arange(rng.uniform(0, step), time[-1], step)
        moments += rng.uniform(-0.02, 0.02, len(moments))
        values = np.interp(moments, time, sent)
        rows += [
            {
                "ts": at(float(when) + shift), "link": link, "host": host, column: int(value) // 4
            }
            for when, value in zip(moments, values, strict=True)
        ]  # fmt: skip
    return rows

"""Counters of an InfiniBand fabric, hour by hour, as compacted files of a lake; for benchmarks.

Traffic comes in bursts of a training job, a little waiting is everywhere, one link in sixteen is
congested for a minute or two now and then; resets, errors and discards are rare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines._engine import connect
from xtune.tables import LINK_COUNTERS

T0_S = 1_772_409_600  # 2026-03-02T00:00:00Z
LINE_BYTES_S = 50e9  # 400 Gb/s
TICK = 8.0
COUNTERS = (
    "port_xmit_data", "port_rcv_data", "port_xmit_wait", "port_xmit_discards", "port_rcv_errors",
    "symbol_error",
)  # fmt: skip
_CONSTANT = {"rate_gbps": 400.0, "xmit_wait_tick": TICK, "data_unit_bytes": 4}


class Fabric:
    """Some links, sampled every ``step_s`` seconds."""

    def __init__(self, links: int, step_s: int = 1, seed: int = 1) -> None:
        self.names = [f"{0x248A_0703_0000_0000 + 64 * i:#018x}/1" for i in range(links)]
        self._per_hour = 3600 // step_s
        self._step_s = step_s
        self._rng = np.random.default_rng(seed)
        self._base = self._rng.integers(0, 2**40, size=(len(COUNTERS), links, 1))

    @property
    def rows_an_hour(self) -> int:
        """Rows of one hour."""
        return self._per_hour * len(self.names)

    def hour(self, number: int) -> pa.Table:
        """Rows of one hour, sorted by (link, ts); hours are asked for in order."""
        links, count, rng = len(self.names), self._per_hour, self._rng
        shape = (links, count)
        second = number * 3600 + np.arange(count) * self._step_s
        jitter = rng.integers(0, 4_000_000, size=shape)
        times = (T0_S + second) * 10**9 + jitter
        period = 8 + np.arange(links) % 9
        sending = second % period[:, None] < period[:, None] / 2
        used = np.where(sending, 0.55, 0.05) + rng.random(shape) * 0.05
        wait = rng.random(shape) * 0.004
        for link in range(3, links, 16):
            length = int(rng.integers(20, 120)) // min(self._step_s, 10)
            start = int(rng.integers(0, count - length))
            if (number + link) % 3 == 0:
                wait[link, start : start + length] = 0.3 + rng.random(length) * 0.4
                used[link, start : start + length] = 0.95
        rises = (
            used * LINE_BYTES_S / 4,
            np.roll(used, 1, axis=0) * LINE_BYTES_S / 4,
            wait * LINE_BYTES_S / TICK,
            rng.random(shape) < 0.0002,
            rng.random(shape) < 0.0001,
            rng.random(shape) < 0.0001,
        )
        columns: dict[str, Any] = {}
        scale = self._step_s
        for index, (name, rise) in enumerate(zip(COUNTERS, rises, strict=True)):
            whole = (rise * scale).astype(np.int64)
            values = self._base[index] + np.cumsum(whole, axis=1)
            columns[name] = values
            self._base[index] = values[:, -1:]
        # Somebody clears the counters of a few ports in the middle of the hour.
        for link in rng.choice(links, size=max(1, links // 128), replace=False):
            for index, name in enumerate(COUNTERS):
                columns[name][link, count // 2 :] -= columns[name][link, count // 2]
                self._base[index][link] = columns[name][link, -1]
        return self._table(times, columns)

    def _table(self, times: Any, columns: dict[str, Any]) -> pa.Table:
        rows = times.size
        codes = np.repeat(np.arange(len(self.names), dtype=np.int32), self._per_hour)
        arrays = []
        for field in LINK_COUNTERS.schema:
            if field.name == "ts":
                array = pa.array(times.ravel()).cast(field.type)
            elif field.name == "link":
                array = pa.array(self.names).take(pa.array(codes))
            elif field.name in columns:
                array = pa.array(columns[field.name].ravel()).cast(field.type)
            elif field.name in _CONSTANT:
                array = pa.repeat(pa.scalar(_CONSTANT[field.name], field.type), rows)
            elif field.name == "source":
                array = pa.repeat(pa.scalar("0" * 12, field.type), rows)
            else:
                array = pa.nulls(rows, field.type)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=LINK_COUNTERS.schema)


def date_of(hour: int) -> str:
    """Date of an hour."""
    return str(np.datetime64(T0_S + hour * 3600, "s").astype("datetime64[D]"))


def put_hour(lake: Lake, fabric: Fabric, hour: int) -> None:
    """Add an hour to a lake as compaction leaves it."""
    path = lake.scratch("link_counters") / f"{hour}.parquet.tmp"
    with connect(threads=2) as session:
        session.load("raw", fabric.hour(hour))
        session.copy("FROM raw", path, lake.metadata("link_counters"))
    with lake.begin() as transaction:
        transaction.adopt("link_counters", path, date=date_of(hour), compacted=True)
        transaction.commit()


def raw_files(lake: Lake) -> list[Path]:
    """Files of counters in the order of time."""
    files = sorted(lake.files("link_counters"), key=lambda file: file.min_ts_ns or 0)
    return [file.path for file in files]

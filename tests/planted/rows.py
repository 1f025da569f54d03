"""Rows of the lake's tables, as collectors would write them, from what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.planted.fabric import Fabric
from tests.planted.run import History
from tests.planted.tallies import Tallies
from tests.planted.truth import GPUS, Watched
from xtune.tables import TABLES

TICK_BYTES = 8.0  # Quantum and ConnectX-7: PortSamplesControl tick 7
PACKET_BYTES = 4146  # MTU 4096 and headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Where the scenario stands in the world: its beginning."""

    t0_ns: int

    def ns(self, seconds: np.ndarray) -> np.ndarray:
        """Nanoseconds since the epoch of seconds after the beginning."""
        return np.asarray(self.t0_ns + np.round(seconds * 1e9).astype(np.int64))


def table(name: str, columns: Mapping[str, Sequence[object] | np.ndarray]) -> pa.Table:
    """Rows of a table from columns; times are nanoseconds since the epoch."""
    schema = TABLES[name].schema
    arrays = []
    for column, values in columns.items():
        kind = schema.field(column).type
        if pa.types.is_timestamp(kind):
            arrays.append(pa.array(values, pa.int64()).cast(kind))
        else:
            arrays.append(pa.array(values).cast(kind))
    return pa.table(arrays, names=list(columns))


def counter_rows(
    tallies: Tallies, watched: Mapping[int, Watched], frame: Frame, rng: np.random.Generator
) -> pa.Table:
    """``link_counters``: 64-bit InfiniBand counters from random beginnings."""
    fabric = tallies.history.plan.fabric
    parts = []
    for index, view in sorted(watched.items()):
        port, times = fabric.ports[index], view.times
        starts = rng.integers(0, 2**48, 5)
        sent = tallies.at("sent", index, times) * fabric.line_bytes_s
        received = tallies.at("received", index, times) * fabric.line_bytes_s
        waited = tallies.at("wait", index, times) * fabric.line_bytes_s / TICK_BYTES
        errors = tallies.at("errors", index, times)
        count = len(times)
        parts.append(
            table(
                "link_counters",
                {
                    "ts": frame.ns(times),
                    "link": [port.link] * count,
                    "host": pa.array([port.host] * count, pa.string()),
                    "device": pa.array([port.device] * count, pa.string()),
                    "port": np.full(count, port.number),
                    "node_guid": [port.guid] * count,
                    "rate_gbps": np.full(count, fabric.gbps),
                    "port_xmit_data": starts[0] + (sent / 4).astype(np.int64),
                    "port_rcv_data": starts[1] + (received / 4).astype(np.int64),
                    "port_xmit_packets": starts[2] + (sent / PACKET_BYTES).astype(np.int64),
                    "port_xmit_wait": starts[3] + waited.astype(np.int64),
                    "symbol_error": starts[4] % 1000 + errors.astype(np.int64),
                },
            )
        )
    return pa.concat_tables(parts)


def port_rows(fabric: Fabric, frame: Frame, *, layer: str = "InfiniBand") -> pa.Table:
    """``ports``: adapters and switch ports."""
    count = len(fabric.ports)
    return table(
        "ports",
        {
            "ts": [frame.t0_ns] * count,
            "host": [p.host for p in fabric.ports],
            "device": [p.device for p in fabric.ports],
            "port": [p.number for p in fabric.ports],
            "node_guid": [p.guid for p in fabric.ports],
            "node_description": [p.name for p in fabric.ports],
            "rate_gbps": [fabric.gbps] * count,
            "width": ["4X"] * count,
            "link_layer": [layer] * count,
            "device_family": ["ConnectX-7" if p.host else "Quantum-2" for p in fabric.ports],
            "link": [p.link for p in fabric.ports],
            "state": ["ACTIVE"] * count,
        },
    )


def topology_rows(fabric: Fabric, frame: Frame) -> pa.Table:
    """``topology_links``: both directions of every cable."""
    count = len(fabric.ports)
    return table(
        "topology_links",
        {
            "ts": [frame.t0_ns] * count,
            "src_guid": [p.guid for p in fabric.ports],
            "src_name": [p.name for p in fabric.ports],
            "src_port": [p.number for p in fabric.ports],
            "dst_guid": [p.peer_guid for p in fabric.ports],
            "dst_name": [p.peer_name for p in fabric.ports],
            "dst_port": [p.peer_number for p in fabric.ports],
            "rate_gbps": [fabric.gbps] * count,
            "tier": [p.tier for p in fabric.ports],
        },
    )


def collective_rows(history: History, frame: Frame, rng: np.random.Generator) -> pa.Table:
    """``collectives``: the first rank of each host; ranks start unevenly and end together."""
    columns: dict[str, list[np.ndarray]] = {}
    names: dict[str, list[str]] = {"job": [], "host": [], "comm": []}
    fabric = history.plan.fabric
    for index, job in enumerate(history.plan.jobs):
        steps = [s for s in history.steps if s.job == index]
        size = len(job.hosts) * GPUS
        sent = job.transfer_s * fabric.line_bytes_s * fabric.rails
        message = round(sent * size / 2 / (size - 1))
        begun = frame.ns(np.array([s.transfer_s for s in steps]))
        ended = frame.ns(np.array([s.end_s for s in steps]))
        for place, host in enumerate(job.hosts):
            count = len(steps)
            start = begun - rng.integers(0, 300_000, count)
            end = ended + rng.integers(0, 40_000, count)
            for name, values in {
                "start_ts": start,
                "duration_ns": end - start,
                "rank": np.full(count, place * GPUS),
                "comm_rank": np.full(count, place * GPUS),
                "comm_size": np.full(count, size),
                "seq": np.array([s.number for s in steps]),
                "message_bytes": np.full(count, message),
            }.items():
                columns.setdefault(name, []).append(values)
            names["job"] += [job.name] * count
            names["host"] += [fabric.host_name(host)] * count
            names["comm"] += [f"0x{0xC0FFEE00 + index:x}"] * count
    flat: dict[str, Sequence[object] | np.ndarray] = {
        name: np.concatenate(parts) for name, parts in columns.items()
    }
    total = len(names["job"])
    return table(
        "collectives",
        {
            **flat,
            **names,
            "op": ["all_reduce"] * total,
            "dtype": ["bf16"] * total,
            "algorithm": ["RING"] * total,
            "state": ["completed"] * total,
        },
    )


def step_rows(history: History, frame: Frame) -> pa.Table:
    """``steps``: one row a step of each job, logged at its end."""
    steps = sorted(history.steps, key=lambda s: (s.job, s.number))
    return table(
        "steps",
        {
            "ts": frame.ns(np.array([s.end_s for s in steps])),
            "job": [history.plan.jobs[s.job].name for s in steps],
            "run": ["1"] * len(steps),
            "step": [s.number for s in steps],
            "split": ["train"] * len(steps),
            "loss": [2.0 + 5.0 * s.number**-0.4 for s in steps],
            "step_time_s": [s.end_s - s.start_s for s in steps],
        },
    )

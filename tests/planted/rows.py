"""Rows of the lake's tables, as collectors would write them, from what happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.planted.fabric import Fabric
from tests.planted.feeds import Feed
from tests.planted.run import History
from tests.planted.tallies import NOTIFIED, Tallies
from tests.planted.truth import GPUS
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


# What a port's counters hold before anything happens: never so little that a reset goes unseen.
_LEAST, _MOST = 2**36, 2**48
_U32 = 2**32 - 1


def counter_rows(
    tallies: Tallies, feeds: Sequence[Feed], frame: Frame, rng: np.random.Generator, kind: str
) -> list[pa.Table]:
    """``link_counters``: one batch a feed, counters of 64 bits from random beginnings."""
    starts: dict[int, list[int]] = {}
    batches = []
    for feed in feeds:
        if feed.port not in starts:
            starts[feed.port] = [int(v) for v in rng.integers(_LEAST, _MOST, 12)]
        batches.append(_feed_rows(tallies, feed, frame, starts[feed.port], kind))
    return batches


def _feed_rows(
    tallies: Tallies, feed: Feed, frame: Frame, starts: Sequence[int], kind: str
) -> pa.Table:
    fabric = tallies.history.plan.fabric
    port, count = fabric.ports[feed.port], len(feed.times)

    def counter(place: int, signal: str, factor: float, small: bool = False) -> np.ndarray:
        """A counter at the times of the samples; from 0 again after each reset."""
        last = np.zeros(count)
        for reset in feed.resets:
            last[feed.times > reset] = reset
        moments = np.concatenate((feed.times, last))
        now, then = np.split(tallies.at(signal, feed.port, moments) * factor, 2)
        start = np.where(last > 0, 0, starts[place] % 1000 if small else starts[place])
        return np.asarray(np.floor(now).astype(np.int64) - np.floor(then).astype(np.int64) + start)

    line, packets = fabric.line_bytes_s, fabric.line_bytes_s / 4096
    columns: dict[str, Sequence[object] | np.ndarray] = {
        "port_xmit_data": counter(0, "sent", line / 4),
        "port_rcv_data": counter(1, "received", line / 4),
        "port_xmit_packets": counter(2, "sent", line / PACKET_BYTES),
        "symbol_error": counter(3, "errors", 1.0, small=True),
    }
    if kind == "ib":
        columns["port_xmit_wait"] = counter(4, "wait", line / TICK_BYTES)
        if feed.stuck:
            columns["port_xmit_wait"] = np.full(count, _U32)
    else:
        columns["port_xmit_discards"] = counter(5, "drops", 1.0, small=True)
        if kind == "roce":
            columns["rx_pause_duration"] = counter(6, "wait", 1e6)
            columns["tx_pause_duration"] = counter(7, "held", 1e6)
        if port.host is not None:
            columns["np_ecn_marked_roce_packets"] = counter(8, "marked", packets)
            columns["np_cnp_sent"] = counter(9, "marked", packets * NOTIFIED)
            columns["rp_cnp_handled"] = counter(10, "cnp", packets)
            columns["packet_seq_err"] = counter(11, "resent", 1.0, small=True)
    link = f"{feed.host}/{port.device}/{port.number}" if feed.by_name else port.link
    text = pa.string()
    return table(
        "link_counters",
        {
            "ts": frame.ns(feed.times + feed.offset_s),
            "link": pa.array([link] * count, text),
            "host": pa.array([feed.host] * count, text),
            "device": pa.array([port.device if feed.host else None] * count, text),
            "port": np.full(count, port.number),
            "node_guid": pa.array([None if feed.by_name else port.guid] * count, text),
            "rate_gbps": np.full(count, fabric.gbps),
            **columns,
        },
    )


def port_rows(
    fabric: Fabric, frame: Frame, named: Collection[str] = (), layer: str = "InfiniBand"
) -> pa.Table:
    """``ports``: adapters and switch ports.

    Args:
        fabric: Whose.
        frame: When they were seen.
        named: Hosts whose adapters were seen by a fabric tool only: no host, no device.
        layer: InfiniBand or Ethernet.
    """
    count = len(fabric.ports)
    text = pa.string()
    return table(
        "ports",
        {
            "ts": [frame.t0_ns] * count,
            "host": pa.array([None if p.host in named else p.host for p in fabric.ports], text),
            "device": pa.array(
                [None if p.host in named else p.device for p in fabric.ports], text
            ),
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


def spare_rows(fabric: Fabric, frame: Frame, length_s: float) -> pa.Table:
    """``link_counters`` of ports that are down: they have a rate, and nothing changes."""
    times = np.arange(0.0, length_s, 5.0)
    names = [f"{fabric.host_name(h)}/mlx5_9/1" for h in range(0, fabric.hosts, 4)]
    count = len(times) * len(names)
    return table(
        "link_counters",
        {
            "ts": np.tile(frame.ns(times), len(names)),
            "link": np.repeat(names, len(times)),
            "host": [name.split("/")[0] for name in np.repeat(names, len(times))],
            "device": ["mlx5_9"] * count,
            "port": [1] * count,
            "rate_gbps": np.full(count, fabric.gbps),
            "port_xmit_data": [123_456] * count,
            "port_rcv_data": [0] * count,
            "port_xmit_wait": [7_000_000_000] * count,
            "symbol_error": [65_535] * count,
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


def collective_rows(
    history: History, frame: Frame, rng: np.random.Generator, offsets_s: Mapping[str, float]
) -> pa.Table:
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
            ahead = round(offsets_s.get(fabric.host_name(host), 0.0) * 1e9)
            start = begun - rng.integers(0, 300_000, count)
            end = ended + rng.integers(0, 40_000, count)
            for name, values in {
                "start_ts": start + ahead,
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

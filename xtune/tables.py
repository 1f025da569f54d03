"""Every table of the lake: schema, grain, unit and meaning of each column.

This module is the contract between collectors (which fill raw tables), pipelines (which read raw
tables and fill derived ones), calibration and reports. A raw table also has ``source`` (the
ledger's id of the input a row came from), ``labels`` and ``extra``. Unknown is null, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from xtune.counters import COUNTERS as COUNTERS

SCHEMA_VERSION = 1

TS = pa.timestamp("ns", tz="UTC")
STR = pa.string()
I32 = pa.int32()
I64 = pa.int64()
U64 = pa.uint64()
F64 = pa.float64()
BOOL = pa.bool_()


def list_of(kind: pa.DataType) -> pa.DataType:
    """List type whose element field is called ``element``, as Parquet writes it back."""
    return pa.list_(pa.field("element", kind))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type, unit ("" where none) and meaning in one line."""

    name: str
    type: pa.DataType
    unit: str = ""
    meaning: str = ""
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One table of the lake.

    Attributes:
        name: ``link_counters``, or ``derived/link_rates`` for a derived table.
        grain: What one row is.
        time: The column that gives a row its ``date=`` partition.
        sort: Columns that compaction sorts by.
        key: Columns that together identify a row of a derived table (audited after each rebuild).
    """

    name: str
    grain: str
    time: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    extra_type: pa.DataType = field(default_factory=lambda: pa.map_(STR, STR))

    @property
    def derived(self) -> bool:
        """Whether a pipeline, not a collector, fills this table."""
        return self.name.startswith("derived/")

    @property
    def bare_name(self) -> str:
        """The name by which ``xtune query`` knows the table."""
        return self.name.removeprefix("derived/")

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema; each field carries its unit and meaning as metadata."""
        columns = self.columns
        if not self.derived:
            columns += (
                Column("source", STR, "", "ledger id of the input this row came from"),
                Column("labels", pa.map_(STR, STR), "", "labels the source or the user gave"),
                Column("extra", self.extra_type, "", "what the source says and no column holds"),
            )
        fields = [
            pa.field(c.name, c.type, c.nullable, {"unit": c.unit, "meaning": c.meaning})
            for c in columns
        ]
        metadata = {"xtune.table": self.name, "xtune.schema": str(SCHEMA_VERSION)}
        return pa.schema(fields, metadata=metadata)


PORTS = Table(
    "ports",
    "one port as seen by one source",
    "ts",
    (
        Column("ts", TS, "", "when it was seen; null for a snapshot without time"),
        Column("host", STR, "", "host as read, lower case"),
        Column("device", STR, "", "device name on the host, e.g. mlx5_0"),
        Column("port", I32, "", "port number, from 1"),
        Column("node_guid", STR, "", "0x and 16 lower-case hex digits"),
        Column("port_guid", STR, "", "0x and 16 lower-case hex digits"),
        Column("pci", STR, "", "PCI address"),
        Column("netdev", STR, "", "network interface"),
        Column("node_description", STR, "", "as the subnet manager has it"),
        Column("rate_gbps", F64, "1e9 bit/s", "the port's own rate, signalling as printed"),
        Column("width", STR, "", "lanes, e.g. 4X"),
        Column("link_layer", STR, "", "InfiniBand or Ethernet"),
        Column("device_family", STR, "", "e.g. ConnectX-7, Quantum-2; decides the wait tick"),
        Column("link", STR, "", "the directed port's link id"),
        Column("state", STR, "", "ACTIVE, DOWN, ..."),
    ),
    sort=("link", "ts"),
)

LINK_COUNTERS = Table(
    "link_counters",
    "one port at one instant, raw",
    "ts",
    (
        Column("ts", TS, "", "when the counters were read"),
        Column("link", STR, "", "directed port: <node_guid>/<port> or <host>/<device>/<port>"),
        Column("host", STR, "", "host as read, lower case"),
        Column("device", STR, "", "device name on the host"),
        Column("port", I32, "", "port number"),
        Column("node_guid", STR, "", "0x and 16 lower-case hex digits"),
        Column("rate_gbps", F64, "1e9 bit/s", "the port's own rate"),
        *(Column(name, U64, unit, meaning) for name, (unit, meaning) in COUNTERS.items()),
        Column("xmit_wait_tick", F64, "byte times", "byte times on the whole port per wait tick"),
        Column("data_unit_bytes", I32, "bytes", "4, or 1 where the source had multiplied"),
        Column("saturated", list_of(STR), "", "counters that sit at their maximum: unknown"),
        Column("interval_s", F64, "s", "length of the interval where values are deltas"),
    ),
    sort=("link", "ts"),
    extra_type=pa.map_(STR, U64),
)

LINK_SIGNAL = Table(
    "link_signal",
    "one port's signal reading",
    "ts",
    (
        Column("ts", TS, "", "when it was read"),
        Column("link", STR, "", "directed port"),
        Column("lane", I32, "", "lane, or null for the whole port"),
        Column("raw_ber", F64, "errors/bit", "bit error rate before correction"),
        Column("effective_ber", F64, "errors/bit", "bit error rate after correction"),
        Column("fec_bins", list_of(U64), "codewords", "codewords by corrected symbols"),
        Column("eye", F64, "", "eye opening as the tool prints it"),
        Column("snr", F64, "dB", "signal to noise"),
        Column("temperature", F64, "degrees Celsius", "module temperature"),
    ),
    sort=("link", "ts"),
)

LINK_PROBES = Table(
    "link_probes",
    "one probe",
    "ts",
    (
        Column("ts", TS, "", "when it was sent"),
        Column("src", STR, "", "sending host"),
        Column("dst", STR, "", "reflecting host"),
        Column("path", I32, "", "index of the path in its set"),
        Column("link", STR, "", "directed port, where one probe measures one link"),
        Column("rtt_ns", I64, "ns", "round trip"),
        Column("occupancy", F64, "0..1", "buffer occupancy"),
        Column("error_rate", F64, "errors/packet", "packet error rate"),
        Column("signal_margin", F64, "", "signal (retimer) margin"),
        Column("lost", BOOL, "", "no answer in time"),
    ),
    sort=("link", "ts"),
)

TOPOLOGY_LINKS = Table(
    "topology_links",
    "one directed link",
    "ts",
    (
        Column("ts", TS, "", "when the fabric was discovered; null where the file does not say"),
        Column("src_guid", STR, "", "node GUID of the sending end"),
        Column("src_name", STR, "", "node description of the sending end"),
        Column("src_port", I32, "", "port of the sending end"),
        Column("dst_guid", STR, "", "node GUID of the receiving end"),
        Column("dst_name", STR, "", "node description of the receiving end"),
        Column("dst_port", I32, "", "port of the receiving end"),
        Column("width", STR, "", "lanes, e.g. 4X"),
        Column("rate_gbps", F64, "1e9 bit/s", "width times lane rate, signalling as named"),
        Column("tier", I32, "", "0 where an end is a host, 1 between leaf and spine, ..."),
    ),
    sort=("src_guid", "src_port"),
)

COLLECTIVES = Table(
    "collectives",
    "one collective on one rank",
    "start_ts",
    (
        Column("start_ts", TS, "", "start; null where only other times are known"),
        Column("enqueue_ts", TS, "", "when the host enqueued it"),
        Column("duration_ns", I64, "ns", "from start to end on this rank"),
        Column("job", STR, "", "job"),
        Column("host", STR, "", "host as read, lower case"),
        Column("rank", I32, "", "global rank, else null"),
        Column("comm_rank", I32, "", "rank in the communicator"),
        Column("comm", STR, "", "communicator, equal on all its ranks"),
        Column("comm_size", I32, "", "ranks in the communicator"),
        Column("seq", I64, "", "number of the operation in its communicator"),
        Column("op", STR, "", "all_reduce, all_gather, reduce_scatter, all_to_all, ..."),
        Column("dtype", STR, "", "element type, e.g. bf16"),
        Column("message_bytes", I64, "bytes", "size as nccl-tests defines it"),
        Column("algorithm", STR, "", "RING, TREE, ..."),
        Column("protocol", STR, "", "LL, LL128, SIMPLE"),
        Column("algbw_gigabytes_s", F64, "1e9 byte/s", "algorithm bandwidth"),
        Column("busbw_gigabytes_s", F64, "1e9 byte/s", "bus bandwidth"),
        Column("state", STR, "", "scheduled, started, completed"),
    ),
    sort=("comm", "seq", "comm_rank"),
)

STEPS = Table(
    "steps",
    "one training step",
    "ts",
    (
        Column("ts", TS, "", "when the step was logged"),
        Column("job", STR, "", "job"),
        Column("run", STR, "", "run of the job"),
        Column("step", I64, "", "iteration: one optimizer step"),
        Column("split", STR, "", "train or validation"),
        Column("loss", F64, "nat", "loss as logged"),
        Column("grad_norm", F64, "", "global gradient norm"),
        Column("learning_rate", F64, "", "learning rate"),
        Column("tokens", I64, "tokens", "tokens seen in this step"),
        Column("step_time_s", F64, "s", "wall time of the step"),
        Column("skipped", I64, "steps", "steps skipped since the last row"),
    ),
    sort=("job", "run", "step"),
)

LAYER_GRADIENTS = Table(
    "layer_gradients",
    "one layer at one step",
    "ts",
    (
        Column("ts", TS, "", "when it was logged"),
        Column("job", STR, "", "job"),
        Column("run", STR, "", "run of the job"),
        Column("step", I64, "", "iteration"),
        Column("layer", STR, "", "parameter name"),
        Column("depth", F64, "0..1", "0 at the input, 1 at the head"),
        Column("elements", I64, "elements", "number of elements"),
        Column("norm", F64, "", "L2 norm of the gradient"),
        Column("density", F64, "0..1", "share of elements that are not zero"),
    ),
    sort=("job", "run", "step", "depth"),
)

GPU_SAMPLES = Table(
    "gpu_samples",
    "one GPU at one instant",
    "ts",
    (
        Column("ts", TS, "", "when it was read"),
        Column("host", STR, "", "host as read, lower case"),
        Column("gpu", STR, "", "index or UUID"),
        Column("utilization", F64, "0..1", "share of time a kernel ran"),
        Column("sm_active", F64, "0..1", "share of multiprocessors active"),
        Column("memory_used_bytes", I64, "bytes", "memory in use"),
        Column("power_w", F64, "W", "power"),
        Column("nvlink_tx_bytes", U64, "bytes", "NVLink bytes sent"),
        Column("nvlink_rx_bytes", U64, "bytes", "NVLink bytes received"),
    ),
    sort=("host", "gpu", "ts"),
)

DECISIONS = Table(
    "decisions",
    "one change a running policy made",
    "ts",
    (
        Column("ts", TS, "", "when it was decided"),
        Column("job", STR, "", "job"),
        Column("rank", I32, "", "global rank"),
        Column("step", I64, "", "iteration"),
        Column("kind", STR, "", "level, ratio, bits, path, retreat, reserve, blacklist, ..."),
        Column("before", STR, "", "value before"),
        Column("after", STR, "", "value after"),
        Column("reason", STR, "", "why"),
    ),
    sort=("job", "rank", "step"),
)

LINK_RATES = Table(
    "derived/link_rates",
    "one port, one interval",
    "ts",
    (
        Column("ts", TS, "", "end of the interval", False),
        Column("interval_s", F64, "s", "length of the interval", False),
        Column("link", STR, "", "directed port", False),
        Column("tx_gbps", F64, "1e9 bit/s", "sent"),
        Column("rx_gbps", F64, "1e9 bit/s", "received"),
        Column("utilization", F64, "0..1", "sent over the data rate of the port"),
        Column("wait_fraction", F64, "0..1", "share of time with data that could not be sent"),
        Column("ecn_rate", F64, "packets/s", "ECN-marked packets and CNPs"),
        Column("discard_rate", F64, "packets/s", "packets dropped"),
        Column("retransmit_rate", F64, "events/s", "retransmissions and sequence errors"),
        Column("error_rate", F64, "errors/s", "symbol and receive errors, retrains"),
        Column("level", I32, "", "0 clear, 1 rising, 2 congested, 3 severe; null unknown"),
    ),
    sort=("link", "ts"),
    key=("link", "ts"),
)

LINK_EPISODES = Table(
    "derived/link_episodes",
    "one congested stretch of one link within one episode",
    "start_ts",
    (
        Column("link_episode_id", STR, "", "deterministic id", False),
        Column("episode_id", STR, "", "the episode it belongs to", False),
        Column("link", STR, "", "directed port", False),
        Column("start_ts", TS, "", "start of the first congested interval", False),
        Column("end_ts", TS, "", "end of the last congested interval", False),
        Column("peak_level", I32, "", "highest level reached"),
        Column("mean_wait_fraction", F64, "0..1", "time-weighted mean"),
        Column("peak_utilization", F64, "0..1", "highest utilization"),
        Column("bytes", I64, "bytes", "sent in the stretch"),
        Column("role", STR, "", "root, victim or unknown"),
        Column("cause", STR, "", "cause of the episode"),
        Column("evidence", STR, "", "JSON object: what the verdict rests on"),
    ),
    sort=("link", "start_ts"),
    key=("link_episode_id", "episode_id"),
)

EPISODES = Table(
    "derived/episodes",
    "link episodes that belong together",
    "start_ts",
    (
        Column("episode_id", STR, "", "deterministic id", False),
        Column("start_ts", TS, "", "earliest start", False),
        Column("end_ts", TS, "", "latest end", False),
        Column("links", list_of(STR), "", "links, sorted"),
        Column("root_link", STR, "", "the port beyond which nothing waits"),
        Column(
            "cause",
            STR,
            "",
            "incast, uplink_collision, sick_link, slow_receiver, overload, unknown",
        ),
        Column("evidence", STR, "", "JSON object: what the verdict rests on"),
        Column("jobs", list_of(STR), "", "jobs whose steps or collectives it overlaps"),
        Column("collectives", I64, "collectives", "collectives it overlaps"),
        Column("slowdown", F64, ">= 1", "median slowdown of those collectives"),
        Column("idle_gpu_hours", F64, "GPU hours", "accelerator time lost to it"),
        Column("steps_affected", I64, "steps", "training steps it overlaps"),
    ),
    sort=("start_ts",),
    key=("episode_id",),
)

COLLECTIVE_IMPACT = Table(
    "derived/collective_impact",
    "one collective on one rank",
    "start_ts",
    (
        Column("start_ts", TS, "", "start on the reference clock"),
        Column("job", STR, "", "job"),
        Column("comm", STR, "", "communicator"),
        Column("seq", I64, "", "number of the operation in its communicator"),
        Column("rank", I32, "", "global rank"),
        Column("comm_rank", I32, "", "rank in the communicator"),
        Column("op", STR, "", "operation"),
        Column("message_bytes", I64, "bytes", "size as nccl-tests defines it"),
        Column("duration_ns", I64, "ns", "as measured"),
        Column("expected_ns", I64, "ns", "what it takes outside episodes"),
        Column("slowdown", F64, "", "duration over expectation"),
        Column("episode_id", STR, "", "the episode it overlaps longest"),
        Column("exposed_ns", I64, "ns", "time beyond the expectation"),
    ),
    sort=("job", "comm", "seq", "comm_rank"),
    key=("job", "comm", "seq", "comm_rank", "op"),
)

CONCURRENCY = Table(
    "derived/concurrency",
    "one number of concurrent jobs",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("jobs", I64, "jobs", "concurrent jobs", False),
        Column("seconds", F64, "s", "time observed at that number"),
        Column("retransmit_rate", F64, "events/s", "mean over links"),
        Column("discard_rate", F64, "packets/s", "mean over links"),
        Column("wait_fraction", F64, "0..1", "mean over links"),
    ),
    sort=("jobs",),
    key=("ts", "jobs"),
)

DESYNC = Table(
    "derived/desync",
    "one disagreement of ranks",
    "ts",
    (
        Column("ts", TS, "", "earliest time known of it"),
        Column("job", STR, "", "job"),
        Column("comm", STR, "", "communicator"),
        Column("seq", I64, "", "number of the operation"),
        Column("kind", STR, "", "order, type, size, missing, empty_dump"),
        Column("ranks", list_of(I32), "", "ranks that disagree with the majority"),
        Column("views", STR, "", "JSON object: each view and its ranks"),
    ),
    sort=("job", "comm", "seq"),
)

BURSTS = Table(
    "derived/bursts",
    "one communicator or link",
    "ts",
    (
        Column("ts", TS, "", "start of the window"),
        Column("subject", STR, "", "communicator or link"),
        Column("kind", STR, "", "communicator or link"),
        Column("period_s", F64, "s", "time between bursts"),
        Column("duty", F64, "0..1", "share of the period in which it bursts"),
    ),
    sort=("subject", "ts"),
)

CLOCK_OFFSETS = Table(
    "derived/clock_offsets",
    "one host over one stretch",
    "from_ts",
    (
        Column("host", STR, "", "host", False),
        Column("from_ts", TS, "", "start of validity"),
        Column("to_ts", TS, "", "end of validity"),
        Column("offset_ns", I64, "ns", "host clock minus reference clock"),
        Column("low_ns", I64, "ns", "lower bound"),
        Column("high_ns", I64, "ns", "upper bound"),
        Column("source", STR, "", "collectives or counters"),
    ),
    sort=("host", "from_ts"),
)

REORDER_DEPTH = Table(
    "derived/reorder_depth",
    "one depth",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("job", STR, "", "job"),
        Column("depth", I64, "tensors", "how far out of order"),
        Column("tensors", I64, "tensors", "tensors that arrived at that depth"),
    ),
    sort=("job", "depth"),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        PORTS,
        LINK_COUNTERS,
        LINK_SIGNAL,
        LINK_PROBES,
        TOPOLOGY_LINKS,
        COLLECTIVES,
        STEPS,
        LAYER_GRADIENTS,
        GPU_SAMPLES,
        DECISIONS,
        LINK_RATES,
        LINK_EPISODES,
        EPISODES,
        COLLECTIVE_IMPACT,
        CONCURRENCY,
        DESYNC,
        BURSTS,
        CLOCK_OFFSETS,
        REORDER_DEPTH,
    )
}
RAW_TABLES = tuple(name for name, table in TABLES.items() if not table.derived)
DERIVED_TABLES = tuple(name for name, table in TABLES.items() if table.derived)

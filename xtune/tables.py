"""Every table of the lake: schema, grain, unit and meaning of each column.

This module is the contract between collectors (which fill raw tables), pipelines (which read raw
tables and fill derived ones), calibration and reports. A raw table also has ``source`` (the
ledger's id of the input a row came from), ``labels`` and ``extra``. Unknown is null, never zero.
"""

from __future__ import annotations

import pyarrow as pa

from xtune._derived_tables import DERIVED
from xtune._derived_tables import LINK_RATES as LINK_RATES
from xtune._table import BOOL, F64, I32, I64, U64
from xtune._table import SCHEMA_VERSION as SCHEMA_VERSION
from xtune._table import STR as STR
from xtune._table import TS as TS
from xtune._table import Column as Column
from xtune._table import Table as Table
from xtune._table import list_of as list_of
from xtune.counters import COUNTERS as COUNTERS

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

GPU_BUSY = Table(
    "gpu_busy",
    "one stretch of one rank's device in a profiler trace",
    "start_ts",
    (
        Column("start_ts", TS, "", "start"),
        Column("end_ts", TS, "", "end"),
        Column("job", STR, "", "job"),
        Column("host", STR, "", "host as read, lower case"),
        Column("rank", I32, "", "global rank, else null"),
        Column("kind", STR, "", "compute: kernels ran; traced: the trace watched the device"),
    ),
    sort=("job", "rank", "start_ts"),
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
        GPU_BUSY,
        DECISIONS,
        *DERIVED,
    )
}
RAW_TABLES = tuple(name for name, table in TABLES.items() if not table.derived)
DERIVED_TABLES = tuple(name for name, table in TABLES.items() if table.derived)

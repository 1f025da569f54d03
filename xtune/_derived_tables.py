"""Derived tables: what ``xtune rebuild`` fills. Their contract is in :mod:`xtune.tables`."""

from __future__ import annotations

from xtune._table import BOOL, F64, I32, I64, STR, TS, Column, Table, list_of

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
        Column("tx_pause_fraction", F64, "0..1", "share of time it paused the network (PFC)"),
        Column("ecn_rate", F64, "packets/s", "ECN-marked packets and CNPs"),
        Column("cnp_rate", F64, "packets/s", "of them, CNPs that throttled this sender"),
        Column("discard_rate", F64, "packets/s", "packets dropped"),
        Column("retransmit_rate", F64, "events/s", "retransmissions and sequence errors"),
        Column("error_rate", F64, "errors/s", "symbol and receive errors, retrains"),
        Column("symbol_error_rate", F64, "errors/s", "of them, symbol errors"),
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
        Column("skipped", I64, "steps", "of them, steps whose update was skipped"),
        Column("loss_before", F64, "nat", "median of five steps before, of the job hit most"),
        Column("loss_after", F64, "nat", "median of five steps after"),
    ),
    sort=("start_ts",),
    key=("episode_id",),
)

EPISODE_COSTS = Table(
    "derived/episode_costs",
    "what one episode cost one job on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day", False),
        Column("episode_id", STR, "", "the episode", False),
        Column("job", STR, "", "job"),
        Column("certain", BOOL, "", "ports of the job's own hosts were held up; else: may be"),
        Column("ranks", I64, "ranks", "largest communicator of the job, or ranks seen if more"),
        Column("steps_affected", I64, "steps", "training steps it overlaps; null without a log"),
        Column("skipped", I64, "steps", "of them, steps whose update was skipped"),
        Column("collectives", I64, "collectives", "collectives it overlaps"),
        Column("slowdowns", list_of(F64), "", "of those; 100 quantiles where there are more"),
        Column("idle_gpu_hours", F64, "GPU hours", "lost; in full where episodes share steps"),
        Column("unshared_gpu_hours", F64, "GPU hours", "its part where each step counts once"),
        Column("cost_from", STR, "", "steps or collectives"),
        Column("straggler_gpu_hours", F64, "GPU hours", "ranks waited for the one that came last"),
        Column("loss_before", F64, "nat", "median of five steps before it began"),
        Column("loss_after", F64, "nat", "median of five steps after it ended"),
    ),
    sort=("ts", "episode_id", "job"),
    key=("ts", "episode_id", "job"),
)

IMPACT_BY = Table(
    "derived/impact_by",
    "one link, one job, or the whole lake, on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day", False),
        Column("kind", STR, "", "link (as the root of episodes), job or all", False),
        Column("name", STR, "", "link or job"),
        Column("episodes", I64, "episodes", "episodes that a job ran into"),
        Column("steps_affected", I64, "steps", "training steps, each once; null without a log"),
        Column("collectives", I64, "collectives", "collectives, each once; null where none"),
        Column("idle_gpu_hours", F64, "GPU hours", "lost; nothing counted twice"),
    ),
    sort=("ts", "kind", "name"),
    key=("ts", "kind", "name"),
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
        Column("slowdown", F64, "", "shortest rank's duration over expectation"),
        Column("episode_id", STR, "", "the episode it overlaps longest"),
        Column(
            "exposed_ns",
            I64,
            "ns",
            "what no compute kernel overlaps, by a trace; else time beyond the expectation",
        ),
        Column("lost_ns", I64, "ns", "of the time beyond the expectation, what is exposed"),
        Column("wait_ns", I64, "ns", "longer in its kernel than the rank that came last"),
        Column("straggler_rank", I32, "", "rank (else comm_rank) that the others waited for"),
    ),
    sort=("job", "comm", "seq", "comm_rank", "start_ts"),
    key=("job", "comm", "seq", "comm_rank", "op", "start_ts"),
)

CONCURRENCY = Table(
    "derived/concurrency",
    "one number of concurrent jobs on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("jobs", I64, "jobs", "concurrent jobs", False),
        Column("seconds", F64, "s", "time observed at that number"),
        Column("retransmit_rate", F64, "events/s", "mean over links and time; null unknown"),
        Column("discard_rate", F64, "packets/s", "mean over links and time; null unknown"),
        Column("wait_fraction", F64, "0..1", "mean over links and time; null unknown"),
    ),
    sort=("jobs",),
    key=("ts", "jobs"),
)

CONCURRENCY_MINUTES = Table(
    "derived/concurrency_minutes",
    "one minute",
    "ts",
    (
        Column("ts", TS, "", "start of the minute", False),
        Column("jobs", I64, "jobs", "jobs that ran in it, the mean, rounded", False),
        Column("seconds", F64, "s", "time that the link sampled best was sampled for"),
        Column("links", I64, "links", "links sampled"),
        Column("retransmit_rate", F64, "events/s", "mean over links and time; null unknown"),
        Column("retransmit_link_s", F64, "s", "time it is known for, summed over links"),
        Column("discard_rate", F64, "packets/s", "mean over links and time; null unknown"),
        Column("discard_link_s", F64, "s", "time it is known for, summed over links"),
        Column("wait_fraction", F64, "0..1", "mean over links and time; null unknown"),
        Column("wait_link_s", F64, "s", "time it is known for, summed over links"),
    ),
    sort=("ts",),
    key=("ts",),
)

CONCURRENCY_KNEE = Table(
    "derived/concurrency_knee",
    "one signal, over all days",
    "ts",
    (
        Column("ts", TS, "", "start of the first day"),
        Column("signal", STR, "", "retransmit_rate, discard_rate or wait_fraction", False),
        Column("verdict", STR, "", "knee, no knee, too few or no counter", False),
        Column("knee_jobs", F64, "jobs", "where the signal begins to rise faster; null without"),
        Column("low_jobs", F64, "jobs", "lower bound, 95 %"),
        Column("high_jobs", F64, "jobs", "upper bound, 95 %"),
        Column("p_value", F64, "0..1", "chance of as clear a knee in data without one"),
        Column("samples", I64, "blocks", "independent stretches of time it rests on"),
    ),
    sort=("signal",),
    key=("signal",),
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
        Column("incident", STR, "", "hang whose dumps show it; null for other sources"),
    ),
    sort=("job", "comm", "seq"),
)

DESYNC_VERDICT = Table(
    "derived/desync_verdict",
    "one hang of a job, as its Flight Recorder dumps show it",
    "ts",
    (
        Column("ts", TS, "", "when the operation that waits longest was enqueued"),
        Column("incident", STR, "", "deterministic id", False),
        Column("job", STR, "", "job"),
        Column("culprits", list_of(I32), "", "ranks it comes from; empty where none differs"),
        Column(
            "cause",
            STR,
            "",
            "host, device, unanswered, absent, order, type, size, circle or transfer",
        ),
        Column("confidence", STR, "", "high, medium or low"),
        Column("waiting", I64, "ranks", "other ranks with an operation under way"),
        Column("explained", I64, "ranks", "those that wait for a culprit, also through others"),
        Column("comm", STR, "", "communicator of the operation that waits longest"),
        Column("seq", I64, "", "its number"),
        Column("op", STR, "", "what it is"),
        Column("absent", list_of(I32), "", "ranks of the job without a dump"),
        Column("dumps", I64, "dumps", "dumps it rests on, one a rank"),
        Column("reasons", STR, "", "JSON object: why, for each culprit"),
    ),
    sort=("job", "ts", "incident"),
    key=("incident",),
)

BURSTS = Table(
    "derived/bursts",
    "one period of one communicator or link on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("subject", STR, "", "communicator or link"),
        Column("kind", STR, "", "communicator or link"),
        Column("period_s", F64, "s", "time between bursts; null where none is certain"),
        Column("duty", F64, "0..1", "share of the period in which it bursts"),
        Column("job", STR, "", "job of the communicator"),
        Column("low_s", F64, "s", "95 % interval of the period, lower bound"),
        Column("high_s", F64, "s", "upper bound"),
        Column("strength", F64, "0..1", "1 where it is as regular as a clock"),
        Column("false_alarm", F64, "0..1", "how often noise looks as periodic"),
        Column("samples", I64, "", "bursts of the communicator, or samples of the link"),
        Column("interval_s", F64, "s", "between samples of the link: hides periods below 4 of it"),
        Column("note", STR, "", "why there is no period"),
    ),
    sort=("kind", "subject", "ts"),
    key=("ts", "kind", "job", "subject", "period_s"),
)

LINK_BEATS = Table(
    "derived/link_beats",
    "one communicator that crosses a link in its period, alone or with another one",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("link", STR, "", "directed port"),
        Column("job", STR, "", "job"),
        Column("comm", STR, "", "communicator"),
        Column("period_s", F64, "s", "its period"),
        Column("link_period_s", F64, "s", "the link's period that it is"),
        Column("other_job", STR, "", "job of another one that beats there; null if none does"),
        Column("other_comm", STR, "", "that communicator"),
        Column("other_period_s", F64, "s", "its period"),
        Column("overlap", F64, "0..1", "share of own burst time in which the other bursts too"),
        Column("phase", F64, "0..1", "how much of the period the other begins later, if equal"),
    ),
    sort=("link", "ts", "job", "comm"),
    key=("ts", "link", "job", "comm", "other_job", "other_comm"),
)

CLOCK_OFFSETS = Table(
    "derived/clock_offsets",
    "one host over one stretch",
    "from_ts",
    (
        Column("host", STR, "", "host", False),
        Column("from_ts", TS, "", "start of validity, by the host's own clock"),
        Column("to_ts", TS, "", "end of validity, by the host's own clock"),
        Column("offset_ns", I64, "ns", "host clock minus reference clock"),
        Column("low_ns", I64, "ns", "lower bound"),
        Column("high_ns", I64, "ns", "upper bound"),
        Column("source", STR, "", "collectives or counters"),
        Column("reference", STR, "", "fabric, or the host of median clock among those compared"),
        Column("samples", I64, "samples", "collectives, or intervals of counters, behind it"),
        Column("applied", BOOL, "", "whether derived times are repaired by it"),
    ),
    sort=("host", "from_ts"),
    key=("host", "from_ts"),
)

REORDER_DEPTH = Table(
    "derived/reorder_depth",
    "one depth of one job on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("job", STR, "", "job"),
        Column("depth", I64, "tensors", "how far out of order; 64 stands for 64 and more"),
        Column("tensors", I64, "tensors", "tensors that arrived at that depth"),
        Column("covered", F64, "0..1", "share of tensors up to that depth"),
        Column("buffer_tensors", I64, "tensors", "least buffer that covers 99.5 % of the day's"),
        Column("path_moves", I64, "moves", "flows moved to another path; null without a log"),
    ),
    sort=("job", "ts", "depth"),
    key=("ts", "job", "depth"),
)

LAYER_STATISTICS = Table(
    "derived/layer_statistics",
    "one layer, or one tenth of the depth, in 1000 steps of one run on one UTC day",
    "ts",
    (
        Column("ts", TS, "", "start of the day"),
        Column("job", STR, "", "job"),
        Column("run", STR, "", "run of the job"),
        Column("kind", STR, "", "layer or depth"),
        Column("layer", STR, "", "parameter name; null for a tenth of the depth"),
        Column("depth", F64, "0..1", "of the layer, or where the tenth begins"),
        Column("first_step", I64, "", "the window's first step, a multiple of 1000"),
        Column("steps", I64, "steps", "steps that were logged"),
        Column("elements", I64, "elements", "number of elements"),
        Column("norm_median", F64, "", "L2 norm of the gradient, median over the steps"),
        Column("norm_p10", F64, "", "its 10 % quantile"),
        Column("norm_p90", F64, "", "its 90 % quantile"),
        Column("norm_per_element", F64, "", "root mean square of an element, median"),
        Column("share", F64, "0..1", "share of the squared norm of all layers, median"),
        Column("density", F64, "0..1", "share of elements that are not zero, median"),
        Column("trend", F64, "", "later half of the window over its earlier half, less one"),
        Column("not_finite", I64, "steps", "steps whose norm is no finite number"),
    ),
    sort=("job", "run", "first_step", "kind", "depth", "layer"),
    key=("ts", "job", "run", "kind", "layer", "depth", "first_step"),
)

LINK_TOTALS = Table(
    "derived/link_totals",
    "one port, as of its last absolute reading",
    "ts",
    (
        Column("ts", TS, "", "when it was read; null where its source gives no time"),
        Column("link", STR, "", "directed port", False),
        Column("sent_bytes", I64, "bytes", "sent since the counters were cleared"),
        Column("received_bytes", I64, "bytes", "received since then"),
        Column("lost_bytes", I64, "bytes", "what it could have sent while it waited"),
        Column("lost_to_sent", F64, "", "lost over sent: ranks ports, is no fraction of time"),
        Column("paused_s", F64, "s", "paused by its neighbour (PFC)"),
        Column("errors", I64, "errors", "symbol and receive errors, retrains"),
        Column("discards", I64, "packets", "dropped on sending"),
    ),
    sort=("link",),
    key=("link",),
)

SIGNAL_MARGIN = Table(
    "derived/signal_margin",
    "one port at one reading of its signal",
    "ts",
    (
        Column("ts", TS, "", "when it was read", False),
        Column("link", STR, "", "directed port", False),
        Column("raw_ber", F64, "errors/bit", "before correction, worst lane"),
        Column("effective_ber", F64, "errors/bit", "after correction, worst lane"),
        Column("margin_decades", F64, "", "raw rate below what RS(544,514) corrects; log10"),
        Column("rise_decades", F64, "", "raw rate over the lowest of the day so far; log10"),
        Column("bin_margin", F64, "0..1", "correctable symbols left in the worst codeword"),
        Column("snr", F64, "dB", "signal to noise, worst lane"),
        Column("temperature", F64, "degrees Celsius", "module temperature"),
    ),
    sort=("link", "ts"),
    key=("ts", "link"),
)

#: In the order in which they are listed.
DERIVED = (
    LINK_RATES,
    LINK_EPISODES,
    EPISODES,
    COLLECTIVE_IMPACT,
    EPISODE_COSTS,
    IMPACT_BY,
    CONCURRENCY,
    CONCURRENCY_KNEE,
    CONCURRENCY_MINUTES,
    DESYNC,
    DESYNC_VERDICT,
    BURSTS,
    LINK_BEATS,
    SIGNAL_MARGIN,
    CLOCK_OFFSETS,
    REORDER_DEPTH,
    LAYER_STATISTICS,
    LINK_TOTALS,
)

-- name: clock_offsets
-- grain: one host over one stretch of its own clock
-- inputs: clock_estimates
-- audits: key(host, from_ts); not_null(host, from_ts, to_ts, offset_ns, low_ns, high_ns)
--
-- Offset: the host's clock minus the reference's. `applied` where the interval excludes 0, the
-- reference is the fabric's clock or that of most hosts, and the offset is larger than half a
-- second or half a sampling interval: only then are derived times repaired by it.
SELECT
    host,
    make_timestamp_ns(from_ns)::TIMESTAMPTZ_NS AS from_ts,
    make_timestamp_ns(to_ns)::TIMESTAMPTZ_NS AS to_ts,
    offset_ns,
    low_ns,
    high_ns,
    source,
    reference,
    samples,
    applied
FROM clock_estimates
ORDER BY host, from_ns

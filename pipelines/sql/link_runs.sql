-- name: link_runs
-- grain: one unbroken stretch of one port within one chunk, by kind
-- inputs: rates, carry, port_facts
-- audits: not_null(kind, link, start_ns, end_ns)
--
-- Kinds: `wait` (at the reported level or above), `busy` (saturated), `received` (receiving at line
-- rate: the port at the other end is saturated), `errors` (receiving errors), and `lost`: nothing was known for longer than the maximum gap after a congested interval that
-- ended at end_ns. `rates` is sorted by (link, ts); windows stream. Stretches that continue over
-- the edge of a chunk are joined by link_stretches.
WITH known AS (
    SELECT
        *,
        epoch_ns(ts) AS end_ns,
        epoch_ns(ts) - (interval_s * 1e9)::BIGINT AS start_ns,
        coalesce(lag(link) OVER () = link, false) AS follows,
        lag(level) OVER () AS p_level,
        lag(epoch_ns(ts)) OVER () AS p_end_ns
    FROM rates
    WHERE level IS NOT NULL
),
-- Only what is congested, follows it, or begins a chunk matters from here on.
near AS (
    SELECT
        known.* EXCLUDE (p_level, p_end_ns),
        CASE WHEN follows THEN p_level ELSE carry.level END AS p_level,
        CASE WHEN follows THEN p_end_ns ELSE carry.known_end_ns END AS p_end_ns
    FROM (
        FROM known
        WHERE NOT follows
            OR level >= getvariable('report_level') OR p_level >= getvariable('report_level')
    ) AS known
    LEFT JOIN carry ON NOT known.follows AND carry.link = known.link
),
lost AS (
    SELECT link, p_end_ns AS end_ns
    FROM near
    WHERE p_level >= getvariable('report_level') AND start_ns - p_end_ns > held_ns(interval_s)
),
flagged AS (
    SELECT
        'wait' AS kind,
        * EXCLUDE (follows, p_level, p_end_ns),
        p_level < getvariable('report_level') AS clear_before
    FROM near
    WHERE level >= getvariable('report_level')
    UNION ALL BY NAME
    SELECT
        'busy' AS kind,
        *,
        epoch_ns(ts) AS end_ns,
        epoch_ns(ts) - (interval_s * 1e9)::BIGINT AS start_ns
    FROM rates
    WHERE utilization >= getvariable('busy_utilization')
    UNION ALL BY NAME
    SELECT
        'received' AS kind,
        * REPLACE (
            at_most(rx_gbps / line_gbps, 1.0) AS utilization,
            rx_gbps AS tx_gbps,
            NULL AS wait_fraction,
            NULL AS level
        ),
        epoch_ns(ts) AS end_ns,
        epoch_ns(ts) - (interval_s * 1e9)::BIGINT AS start_ns
    FROM (
        SELECT rates.*, lines.line_gbps
        FROM rates JOIN (
            SELECT link, max(data_gbps(rate_gbps, ethernet)) AS line_gbps
            FROM port_facts GROUP BY link
        ) AS lines ON lines.link = rates.link
    )
    WHERE rx_gbps >= getvariable('busy_utilization') * line_gbps
    UNION ALL BY NAME
    SELECT
        'errors' AS kind,
        *,
        epoch_ns(ts) AS end_ns,
        epoch_ns(ts) - (interval_s * 1e9)::BIGINT AS start_ns
    FROM rates
    WHERE error_rate > 0
),
linked AS (
    SELECT
        *,
        start_ns - lag(end_ns) OVER same AS gap_ns
    FROM flagged
    WINDOW same AS (PARTITION BY kind, link ORDER BY ts)
),
numbered AS (
    SELECT
        *,
        sum(joins(gap_ns, interval_s, clear_before)::INTEGER) OVER same AS joined,
        row_number() OVER same AS position
    FROM linked
    WINDOW same AS (PARTITION BY kind, link ORDER BY ts ROWS UNBOUNDED PRECEDING)
)
SELECT
    kind,
    link,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    count(*) AS samples,
    arg_min(interval_s, ts) AS first_interval_s,
    arg_min_null(clear_before, ts) AS clear_before,
    max(level) AS peak_level,
    sum(wait_fraction * interval_s) AS wait_s,
    sum(interval_s) FILTER (WHERE wait_fraction IS NOT NULL) AS wait_known_s,
    max(utilization) AS peak_utilization,
    sum(utilization * interval_s) AS utilization_s,
    sum(interval_s) FILTER (WHERE utilization IS NOT NULL) AS utilization_known_s,
    sum(tx_gbps * interval_s * 1e9 / 8) AS bytes,
    sum(error_rate * interval_s) AS errors,
    sum(interval_s) AS seconds
FROM numbered
GROUP BY kind, link, position - joined
UNION ALL BY NAME
SELECT 'lost' AS kind, link, end_ns AS start_ns, end_ns FROM lost

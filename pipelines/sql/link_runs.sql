-- name: link_runs
-- grain: one unbroken stretch of one port within one chunk, by kind
-- inputs: link_levels
-- audits: not_null(kind, link, start_ns, end_ns)
--
-- Kinds: `wait` (at the reported level or above, by any signal), `busy` (saturated), `received`
-- (receiving at line rate: the port at the other end is saturated), `errors` (receiving errors),
-- `pauses` (pausing the network: what receives here is slow), `stuck` (its wait counter stands at
-- its maximum: unknown), and `lost`: nothing was known for longer than the maximum gap after a
-- congested interval that ended at end_ns. A run of `wait` holds no interval known to be clear;
-- runs of other kinds last over gaps up to the maximum. Runs of several chunks, and waits with
-- short gaps between them, are joined by link_stretches.
--
-- Sums are whole numbers, so that their order does not matter.
WITH flagged AS (
    SELECT 'wait' AS kind, *, p_level < getvariable('report_level') AS clear_before
    FROM link_levels
    WHERE level >= getvariable('report_level')
    UNION ALL BY NAME
    SELECT 'busy' AS kind, * FROM link_levels
    WHERE utilization >= getvariable('busy_utilization')
    UNION ALL BY NAME
    SELECT
        'received' AS kind,
        * REPLACE (received_share AS utilization, rx_gbps AS tx_gbps, NULL AS wait_fraction,
            NULL AS level)
    FROM link_levels
    WHERE received_share >= getvariable('busy_utilization')
    UNION ALL BY NAME
    SELECT 'errors' AS kind, * FROM link_levels WHERE error_rate > 0
    UNION ALL BY NAME
    SELECT 'pauses' AS kind, * REPLACE (tx_pause_fraction AS wait_fraction, NULL AS level)
    FROM link_levels
    WHERE tx_pause_fraction >= getvariable('enter_wait')[1]
    UNION ALL BY NAME
    SELECT 'stuck' AS kind, * FROM link_levels WHERE stuck
),
gaps AS (
    SELECT *, start_ns - lag(end_ns) OVER same AS gap_ns
    FROM flagged
    WINDOW same AS (PARTITION BY kind, link ORDER BY end_ns)
),
numbered AS (
    SELECT
        *,
        sum((CASE
            WHEN kind = 'wait' THEN coalesce(clear_before OR hole, true) OR gap_ns IS NULL
            ELSE NOT joins(gap_ns, interval_s, true)
        END)::INTEGER) OVER same AS run
    FROM gaps
    WINDOW same AS (PARTITION BY kind, link ORDER BY end_ns ROWS UNBOUNDED PRECEDING)
),
measured AS (
    SELECT
        *,
        end_ns - start_ns AS span_ns,
        (wait_fraction * (end_ns - start_ns))::BIGINT AS wait_ns,
        (utilization * (end_ns - start_ns))::BIGINT AS utilization_ns,
        (tx_gbps * interval_s * 1e9 / 8)::BIGINT AS sent,
        (error_rate * interval_s)::BIGINT AS failed,
        (ecn_rate * interval_s)::BIGINT AS marked,
        (discard_rate * interval_s)::BIGINT AS dropped
    FROM numbered
)
SELECT
    kind,
    link,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    count(*) AS samples,
    arg_min(interval_s, end_ns) AS first_interval_s,
    arg_min_null(clear_before, end_ns) AS clear_before,
    max(level) AS peak_level,
    sum(wait_ns)::BIGINT AS wait_ns,
    sum(span_ns) FILTER (WHERE wait_ns IS NOT NULL)::BIGINT AS wait_known_ns,
    max(utilization) AS peak_utilization,
    sum(utilization_ns)::BIGINT AS utilization_ns,
    sum(span_ns) FILTER (WHERE utilization_ns IS NOT NULL)::BIGINT AS utilization_known_ns,
    sum(sent)::BIGINT AS bytes,
    sum(failed)::BIGINT AS errors,
    sum(marked)::BIGINT AS marks,
    sum(span_ns) FILTER (WHERE marked IS NOT NULL)::BIGINT AS marks_known_ns,
    sum(dropped)::BIGINT AS discards,
    sum(span_ns) FILTER (WHERE dropped IS NOT NULL)::BIGINT AS discards_known_ns,
    -- Intervals in which a signal alone would have held the reported level, and the first of them.
    count(*) FILTER (WHERE wait_down >= getvariable('report_level')) AS by_wait,
    count(*) FILTER (WHERE pause_down >= getvariable('report_level')) AS by_pause,
    count(*) FILTER (WHERE mark_down >= getvariable('report_level')) AS by_marks,
    count(*) FILTER (WHERE discard_down >= getvariable('report_level')) AS by_discards,
    min(start_ns) FILTER (
        WHERE greatest(wait_down, pause_down) >= getvariable('report_level')
    ) AS wait_from_ns,
    min(start_ns) FILTER (WHERE mark_down >= getvariable('report_level')) AS marks_from_ns
FROM measured
GROUP BY kind, link, run
UNION ALL BY NAME
SELECT 'lost' AS kind, link, p_known_end_ns AS start_ns, p_known_end_ns AS end_ns
FROM link_levels
WHERE hole AND p_level >= getvariable('report_level')

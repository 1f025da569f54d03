-- name: link_stretches
-- grain: one stretch of one port, by kind
-- inputs: runs, last_known
-- audits: key(kind, link, start_ns); not_null(end_ns)
--
-- Runs of all chunks, joined over the edges of chunks by the rule that joined them within one.
WITH linked AS (
    SELECT *, start_ns - lag(end_ns) OVER same AS gap_ns
    FROM runs
    WHERE kind <> 'lost'
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns)
),
numbered AS (
    SELECT
        *,
        sum(joins(gap_ns, first_interval_s, clear_before)::INTEGER) OVER same AS joined,
        row_number() OVER same AS position
    FROM linked
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns ROWS UNBOUNDED PRECEDING)
),
stretches AS (
    SELECT
        kind,
        link,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        sum(samples)::BIGINT AS samples,
        max(peak_level) AS peak_level,
        sum(wait_s) / sum(wait_known_s) AS mean_wait_fraction,
        max(peak_utilization) AS peak_utilization,
        sum(utilization_s) / sum(utilization_known_s) AS mean_utilization,
        sum(bytes) AS bytes,
        sum(errors) AS errors
    FROM numbered
    GROUP BY kind, link, position - joined
)
SELECT
    stretches.*,
    kind = 'wait' AND (
        EXISTS (
            FROM runs
            WHERE runs.kind = 'lost'
                AND runs.link = stretches.link AND runs.end_ns = stretches.end_ns
        )
        OR EXISTS (
            FROM last_known
            WHERE last_known.link = stretches.link AND last_known.known_end_ns = stretches.end_ns
        )
    ) AS end_unknown
FROM stretches
WHERE kind <> 'wait'
    OR (
        samples >= getvariable('min_samples')
        AND end_ns - start_ns >= getvariable('min_length_s') * 1e9
    )
ORDER BY kind, link, start_ns

-- name: job_runs
-- grain: one job, one stretch of time in which it ran
-- inputs: collectives, steps
-- audits: key(job, start_ns); not_null(job, start_ns, end_ns)
--
-- A job runs from its first step or collective to its last; where it shows neither for longer
-- than job_gap_s it did not run in between. Looked at by the minute, so that a day of collectives
-- needs no sort.
WITH shown AS (
    SELECT
        job,
        epoch_ns(coalesce(start_ts, enqueue_ts)) AS start_ns,
        epoch_ns(coalesce(start_ts, enqueue_ts)) + coalesce(duration_ns, 0) AS end_ns
    FROM collectives
    WHERE job IS NOT NULL AND coalesce(start_ts, enqueue_ts) IS NOT NULL
    UNION ALL
    SELECT
        job,
        epoch_ns(ts) - (coalesce(step_time_s, 0) * 1e9)::BIGINT,
        epoch_ns(ts)
    FROM steps
    WHERE job IS NOT NULL AND ts IS NOT NULL
),
minutes AS (
    SELECT job, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM shown
    GROUP BY job, start_ns // 60000000000
),
gaps AS (
    SELECT
        *,
        start_ns - max(end_ns) OVER (
            PARTITION BY job ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) > getvariable('job_gap_s') * 1e9 AS apart
    FROM minutes
),
numbered AS (
    SELECT
        *,
        count(*) FILTER (WHERE apart) OVER (
            PARTITION BY job ORDER BY start_ns ROWS UNBOUNDED PRECEDING
        ) AS run
    FROM gaps
)
SELECT job, min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM numbered
GROUP BY job, run
ORDER BY job, start_ns

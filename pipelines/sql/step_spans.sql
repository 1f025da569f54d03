-- name: step_spans
-- grain: one row of a training log: one step, or the steps since the row before it
-- inputs: steps
-- audits: key(job, run, attempt, step); not_null(start_ns, end_ns); range(steps, 1, ..)
--
-- A step lasts from its time stamp back by its step time. A log that prints one step in k gives
-- their mean time: its row stands for k steps where k times that mean fills the time since the row
-- before (to a tenth). After a restart the same steps come again: each attempt is a time of its
-- own. A step without a step time is a moment.
WITH told AS (
    SELECT
        job,
        coalesce(run, '') AS run,
        coalesce(extra['attempt'], '') AS attempt,
        step,
        max(step_time_s) FILTER (WHERE step_time_s > 0) AS step_time_s,
        max(epoch_ns(ts)) AS end_ns,
        median(loss) AS loss,
        max(skipped) AS skipped
    FROM steps
    WHERE ts IS NOT NULL AND step IS NOT NULL AND coalesce(split, 'train') = 'train'
    GROUP BY ALL
),
followed AS (
    SELECT
        *,
        step - lag(step) OVER log AS since_steps,
        (end_ns - lag(end_ns) OVER log) / 1e9 AS since_s
    FROM told
    WHERE end_ns >= getvariable('impact_from_ns') - 86_400_000_000_000
        AND end_ns < getvariable('impact_to_ns') + 3_600_000_000_000
    WINDOW log AS (PARTITION BY job, run, attempt ORDER BY step)
),
weighed AS (
    SELECT
        *,
        CASE
            WHEN since_steps > 1 AND since_steps * step_time_s BETWEEN 0.9 * since_s AND 1.1 * since_s
                THEN since_steps
            ELSE 1
        END AS steps
    FROM followed
)
SELECT
    * EXCLUDE (since_steps, since_s),
    end_ns - coalesce(round(steps * step_time_s * 1e9)::BIGINT, 0) AS start_ns,
    hash(job, run, attempt, step) AS id,
    -- What the loss was around a moment: of five rows up to this one, and from this one on.
    median(loss) OVER (
        PARTITION BY job, run, attempt ORDER BY step ROWS BETWEEN 4 PRECEDING AND CURRENT ROW
    ) AS loss_until,
    median(loss) OVER (
        PARTITION BY job, run, attempt ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING
    ) AS loss_from
FROM weighed

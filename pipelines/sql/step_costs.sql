-- name: step_costs
-- grain: one row of a training log, of the window, that an episode hits
-- inputs: step_spans, step_episodes, job_sizes
-- audits: key(id); range(expected_s, 0, ..)
--
-- gpu_hours: step time beyond the expectation times all ranks, once whatever the number of episodes
-- that hit it. The expectation is the median step of the run outside episodes, in the window and
-- the 24 hours before it; null where there is none. A step that was faster than the spread of the
-- others explains (3 sigma, by their median deviation) was not slowed and costs nothing: it must
-- not make up for another's loss. Within the spread, noise of both signs is kept and cancels out.
WITH usual AS (
    SELECT job, run, median(step_time_s) AS expected_s, mad(step_time_s) AS deviation_s
    FROM step_spans
    WHERE step_time_s IS NOT NULL
        AND end_ns < getvariable('impact_to_ns')
        AND id NOT IN (SELECT id FROM step_episodes)
    GROUP BY job, run
),
touched AS (
    SELECT id, sum(hit) AS hit
    FROM step_episodes
    WHERE end_ns >= getvariable('impact_from_ns') AND end_ns < getvariable('impact_to_ns')
    GROUP BY id
),
beyond AS (
    SELECT
        spans.id,
        spans.job,
        spans.run,
        spans.attempt,
        spans.step,
        spans.steps,
        spans.skipped,
        least(touched.hit, spans.steps)::BIGINT AS hit,
        usual.expected_s,
        spans.step_time_s - usual.expected_s AS beyond_s,
        3 * 1.4826 * usual.deviation_s AS spread_s
    FROM step_spans AS spans
    JOIN touched ON touched.id = spans.id
    LEFT JOIN usual ON usual.job IS NOT DISTINCT FROM spans.job AND usual.run = spans.run
)
SELECT
    beyond.* EXCLUDE (beyond_s, spread_s),
    CASE WHEN beyond_s < -spread_s THEN 0 ELSE beyond_s END * steps * job_sizes.ranks / 3600
        AS gpu_hours
FROM beyond
LEFT JOIN job_sizes ON job_sizes.job IS NOT DISTINCT FROM beyond.job

-- name: episodes
-- grain: one episode: link episodes that belong together
-- inputs: episode_heads, episode_spans, episode_jobs, collective_samples, collective_episodes, collective_impact, steps
-- audits: key(episode_id); not_null(start_ts, end_ts); range(slowdown, 1, ..)
-- audits: range(idle_gpu_hours, 0, ..)
--
-- Cost of each episode. A step lasts from its time stamp back by its step time. With steps, idle
-- GPU hours are the step time beyond the median step outside episodes, times all ranks of the job;
-- without, the exposed time of its collectives times the ranks of their communicator. Episodes
-- that share a step each carry all of it (evidence: shares_victims_with).
WITH ranks AS (
    SELECT job, greatest(max(comm_size), count(DISTINCT rank)) AS ranks
    FROM collective_samples
    GROUP BY job
),
timed AS (
    SELECT
        job,
        coalesce(run, '') AS run,
        step,
        -- After a restart the same steps come again: each time is a time of its own.
        coalesce(extra['attempt'], '') AS attempt,
        max(step_time_s) AS step_time_s,
        epoch_ns(max(ts)) AS end_ns
    FROM steps
    WHERE ts IS NOT NULL AND step_time_s IS NOT NULL AND coalesce(split, 'train') = 'train'
    GROUP BY job, coalesce(run, ''), step, attempt
),
spanned AS (
    SELECT *, end_ns - (step_time_s * 1e9)::BIGINT AS start_ns FROM timed
),
hit AS (
    SELECT spans.episode_id, spanned.*
    FROM spanned JOIN episode_spans AS spans
        ON spanned.start_ns < spans.end_ns AND spanned.end_ns > spans.start_ns
    WHERE NOT EXISTS (
        FROM episode_jobs
        WHERE episode_jobs.episode_id = spans.episode_id AND episode_jobs.job = spanned.job
    )
),
usual AS (
    SELECT spanned.job, spanned.run, median(spanned.step_time_s) AS expected_s
    FROM spanned ANTI JOIN hit
        ON hit.job IS NOT DISTINCT FROM spanned.job
        AND hit.run = spanned.run
        AND hit.step IS NOT DISTINCT FROM spanned.step
        AND hit.attempt = spanned.attempt
    GROUP BY spanned.job, spanned.run
),
step_cost AS (
    SELECT
        hit.episode_id,
        hit.job,
        count(*) AS steps_affected,
        steady_sum(list((hit.step_time_s - usual.expected_s) * ranks.ranks)) / 3600
            AS idle_gpu_hours
    FROM hit
    LEFT JOIN usual ON usual.job IS NOT DISTINCT FROM hit.job AND usual.run = hit.run
    LEFT JOIN ranks ON ranks.job IS NOT DISTINCT FROM hit.job
    GROUP BY hit.episode_id, hit.job
),
touched AS (
    SELECT DISTINCT episode_id, job, comm, seq, op, collective FROM collective_episodes
),
impact AS (
    SELECT
        job, comm, seq, op,
        any_value(slowdown) AS slowdown, any_value(exposed_ns) AS exposed_ns
    FROM collective_impact
    WHERE seq IS NOT NULL
    GROUP BY job, comm, seq, op
),
sizes AS (
    SELECT job, comm, greatest(max(comm_size), count(DISTINCT member)) AS size
    FROM collective_samples
    GROUP BY job, comm
),
collective_cost AS (
    SELECT
        touched.episode_id,
        touched.job,
        count(*) AS collectives,
        list(impact.slowdown) FILTER (WHERE impact.slowdown IS NOT NULL) AS slowdowns,
        steady_sum(list(impact.exposed_ns * sizes.size)) / 3.6e12 AS exposed_gpu_hours
    FROM touched
    LEFT JOIN impact
        ON impact.job IS NOT DISTINCT FROM touched.job
        AND impact.comm IS NOT DISTINCT FROM touched.comm
        AND impact.seq = touched.seq AND impact.op = touched.op
    LEFT JOIN sizes
        ON sizes.job IS NOT DISTINCT FROM touched.job
        AND sizes.comm IS NOT DISTINCT FROM touched.comm
    GROUP BY touched.episode_id, touched.job
),
stepped_jobs AS (SELECT DISTINCT job FROM spanned),
per_job AS (
    SELECT
        coalesce(step_cost.episode_id, collective_cost.episode_id) AS episode_id,
        coalesce(step_cost.job, collective_cost.job) AS job,
        collective_cost.collectives,
        collective_cost.slowdowns,
        step_cost.steps_affected,
        CASE
            WHEN step_cost.episode_id IS NOT NULL THEN step_cost.idle_gpu_hours
            WHEN collective_cost.job NOT IN (SELECT job FROM stepped_jobs WHERE job IS NOT NULL)
                OR collective_cost.job IS NULL
                THEN collective_cost.exposed_gpu_hours
            ELSE 0
        END AS idle_gpu_hours
    FROM step_cost FULL JOIN collective_cost
        ON step_cost.episode_id = collective_cost.episode_id
        AND step_cost.job IS NOT DISTINCT FROM collective_cost.job
),
cost AS (
    SELECT
        episode_id,
        list(DISTINCT job ORDER BY job) FILTER (WHERE job IS NOT NULL) AS jobs,
        sum(collectives)::BIGINT AS collectives,
        at_least(list_median(flatten(list(slowdowns) FILTER (WHERE slowdowns IS NOT NULL))), 1)
            AS slowdown,
        at_least(steady_sum(list(idle_gpu_hours)), 0) AS idle_gpu_hours,
        sum(steps_affected)::BIGINT AS steps_affected
    FROM per_job
    GROUP BY episode_id
)
SELECT
    heads.episode_id,
    make_timestamp_ns(heads.start_ns)::TIMESTAMPTZ_NS AS start_ts,
    make_timestamp_ns(heads.end_ns)::TIMESTAMPTZ_NS AS end_ts,
    heads.links,
    heads.root_link,
    heads.cause,
    heads.evidence,
    coalesce(cost.jobs, []) AS jobs,
    coalesce(cost.collectives, 0)::BIGINT AS collectives,
    cost.slowdown::DOUBLE AS slowdown,
    CASE
        WHEN cost.episode_id IS NOT NULL THEN cost.idle_gpu_hours
        -- No job ran into it; without any record of jobs that is not known.
        WHEN EXISTS (FROM spanned) OR EXISTS (FROM collective_samples) THEN 0
    END::DOUBLE AS idle_gpu_hours,
    coalesce(cost.steps_affected, 0)::BIGINT AS steps_affected
FROM episode_heads AS heads LEFT JOIN cost ON cost.episode_id = heads.episode_id
ORDER BY start_ts, heads.episode_id

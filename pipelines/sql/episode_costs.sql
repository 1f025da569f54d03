-- name: episode_costs
-- grain: what one episode cost one job on one UTC day
-- inputs: hit_jobs, step_spans, step_episodes, step_costs, collective_episodes, collective_expected, rank_losses, job_sizes
-- audits: key(episode_id, job); range(idle_gpu_hours, 0, ..); range(unshared_gpu_hours, 0, ..)
--
-- idle_gpu_hours: with steps, their gpu_hours summed; without (or where no step has an expectation
-- or the job's size is not known), what its ranks lost in collectives. Episodes that share steps
-- each carry all of it. unshared_gpu_hours counts each step, or each moment of a rank, once: the
-- job's loss of the day is divided among its episodes in proportion to their idle_gpu_hours.
WITH per_steps AS (
    SELECT
        hits.episode_id,
        hits.job,
        sum(hits.hit)::BIGINT AS steps_affected,
        sum(costs.skipped)::BIGINT AS skipped,
        at_least(steady_sum(list(costs.gpu_hours)), 0) AS gpu_hours
    FROM step_episodes AS hits JOIN step_costs AS costs ON costs.id = hits.id
    GROUP BY hits.episode_id, hits.job
),
per_collectives AS (
    SELECT
        touched.episode_id,
        touched.job,
        count(*) AS collectives,
        list_sort(list(priced.transfer_ns / priced.expected_ns)
            FILTER (WHERE priced.expected_ns IS NOT NULL)) AS slowdowns
    FROM collective_episodes AS touched
    JOIN collective_expected AS priced ON priced.collective = touched.collective
    WHERE touched.start_ns >= getvariable('impact_from_ns')
        AND touched.start_ns < getvariable('impact_to_ns')
    GROUP BY touched.episode_id, touched.job
),
bases AS (
    -- What the cost of a job is told from. No step hit costs nothing, where steps are timed.
    SELECT
        timed.job,
        bool_or(costs.gpu_hours IS NOT NULL) FILTER (WHERE costs.id IS NOT NULL) IS NOT false
            AS by_steps,
        at_least(steady_sum(list(costs.gpu_hours)), 0) AS gpu_hours
    FROM (
        SELECT job FROM step_spans WHERE step_time_s IS NOT NULL GROUP BY job
    ) AS timed
    LEFT JOIN step_costs AS costs ON costs.job IS NOT DISTINCT FROM timed.job
    GROUP BY timed.job
),
logged AS (SELECT DISTINCT job FROM step_spans),
traced AS (SELECT DISTINCT job FROM collective_episodes),
per_job AS (
    SELECT
        pairs.episode_id,
        pairs.job,
        pairs.certain,
        pairs.start_ns,
        pairs.end_ns,
        job_sizes.ranks,
        CASE WHEN EXISTS (FROM logged WHERE logged.job IS NOT DISTINCT FROM pairs.job)
            THEN coalesce(per_steps.steps_affected, 0)
        END AS steps_affected,
        per_steps.skipped,
        per_collectives.collectives,
        per_collectives.slowdowns,
        coalesce(bases.by_steps, false) AS by_steps,
        CASE
            WHEN NOT coalesce(bases.by_steps, false) THEN lost.gpu_hours
            WHEN per_steps.episode_id IS NULL THEN 0
            ELSE per_steps.gpu_hours
        END AS gpu_hours,
        waited.gpu_hours AS straggler_gpu_hours,
        CASE WHEN coalesce(bases.by_steps, false) THEN bases.gpu_hours ELSE total.gpu_hours END
            AS job_gpu_hours
    FROM hit_jobs AS pairs
    LEFT JOIN per_steps
        ON per_steps.episode_id = pairs.episode_id
        AND per_steps.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN per_collectives
        ON per_collectives.episode_id = pairs.episode_id
        AND per_collectives.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN bases ON bases.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN job_sizes ON job_sizes.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN (FROM rank_losses WHERE kind = 'lost') AS lost
        ON lost.episode_id = pairs.episode_id AND lost.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN (FROM rank_losses WHERE kind = 'straggler') AS waited
        ON waited.episode_id = pairs.episode_id AND waited.job IS NOT DISTINCT FROM pairs.job
    LEFT JOIN (FROM rank_losses WHERE kind = 'lost' AND episode_id IS NULL) AS total
        ON total.job IS NOT DISTINCT FROM pairs.job
    WHERE per_steps.episode_id IS NOT NULL OR per_collectives.episode_id IS NOT NULL
),
shared AS (
    SELECT job, steady_sum(list(gpu_hours)) AS gpu_hours FROM per_job GROUP BY job
),
-- The log that the episode hit most, for the loss around it.
logs AS (
    SELECT episode_id, job, hash(job, run, attempt) AS log
    FROM step_episodes
    GROUP BY episode_id, job, run, attempt
    QUALIFY row_number() OVER (
        PARTITION BY episode_id, job ORDER BY sum(hit) DESC, run, attempt
    ) = 1
),
losses AS (
    SELECT hash(job, run, attempt) AS log, start_ns, end_ns, loss_until, loss_from FROM step_spans
),
before AS (
    SELECT here.*, losses.loss_until AS loss_before
    FROM (
        SELECT per_job.*, logs.log
        FROM per_job
        LEFT JOIN logs
            ON logs.episode_id = per_job.episode_id AND logs.job IS NOT DISTINCT FROM per_job.job
    ) AS here
    ASOF LEFT JOIN losses ON losses.log = here.log AND losses.end_ns <= here.start_ns
),
around AS (
    SELECT before.*, losses.loss_from AS loss_after
    FROM before ASOF LEFT JOIN losses ON losses.log = before.log AND losses.start_ns >= before.end_ns
)
SELECT
    make_timestamp_ns(getvariable('impact_from_ns')::BIGINT)::TIMESTAMPTZ_NS AS ts,
    around.episode_id,
    around.job,
    around.certain,
    around.ranks,
    around.steps_affected,
    around.skipped,
    around.collectives,
    -- All of them, or as many quantiles where there are more.
    CASE
        WHEN len(around.slowdowns) > 100
            THEN list_transform(range(100), lambda i: around.slowdowns[
                ((2 * i + 1) * len(around.slowdowns)) // 200 + 1
            ])
        ELSE around.slowdowns
    END AS slowdowns,
    around.gpu_hours::DOUBLE AS idle_gpu_hours,
    CASE
        WHEN around.gpu_hours = 0 THEN 0
        ELSE around.gpu_hours * least(1, around.job_gpu_hours / shared.gpu_hours)
    END::DOUBLE AS unshared_gpu_hours,
    CASE WHEN around.by_steps THEN 'steps' ELSE 'collectives' END AS cost_from,
    around.straggler_gpu_hours::DOUBLE AS straggler_gpu_hours,
    CASE WHEN around.start_ns >= getvariable('impact_from_ns') THEN around.loss_before END
        AS loss_before,
    CASE WHEN around.end_ns < getvariable('impact_to_ns') THEN around.loss_after END AS loss_after
FROM around LEFT JOIN shared ON shared.job IS NOT DISTINCT FROM around.job

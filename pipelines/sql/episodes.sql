-- name: episodes
-- grain: one episode: link episodes that belong together
-- inputs: episode_heads, episode_costs, impact_by
-- audits: key(episode_id); not_null(start_ts, end_ts); range(slowdown, 1, ..)
-- audits: range(idle_gpu_hours, 0, ..)
--
-- What an episode cost over all of its days. Episodes that share steps each carry all of it
-- (evidence: shares_victims_with; impact_by counts each step once). Null is what nobody recorded on
-- any of its days (impact_by has a row of kind all for a day with steps or collectives).
WITH recorded AS (
    SELECT
        heads.episode_id,
        count(days.steps_affected) > 0 AS steps,
        count(days.collectives) > 0 AS collectives
    FROM episode_heads AS heads
    JOIN (FROM impact_by WHERE kind = 'all') AS days
        ON epoch_ns(days.ts) < heads.end_ns
        AND epoch_ns(days.ts) + 86_400_000_000_000 > heads.start_ns
    GROUP BY heads.episode_id
),
slowed AS (
    SELECT
        episode_id,
        unnest(slowdowns) AS slowdown,
        CASE WHEN len(slowdowns) < 100 THEN 1 ELSE collectives / 100 END AS weight
    FROM episode_costs
),
ranked AS (
    SELECT
        *,
        sum(weight) OVER (
            PARTITION BY episode_id ORDER BY slowdown, weight
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS reached,
        sum(weight) OVER (PARTITION BY episode_id) AS total
    FROM slowed
),
medians AS (
    -- The value in the middle, or the mean of the two there.
    SELECT
        episode_id,
        (min(slowdown) + max(slowdown)) / 2 AS slowdown
    FROM ranked
    WHERE reached >= total / 2 AND reached - weight <= total / 2
    GROUP BY episode_id
),
cost AS (
    SELECT
        episode_id,
        list(DISTINCT job ORDER BY job) FILTER (WHERE job IS NOT NULL) AS jobs,
        sum(collectives)::BIGINT AS collectives,
        sum(steps_affected)::BIGINT AS steps_affected,
        sum(skipped)::BIGINT AS skipped,
        steady_sum(list(idle_gpu_hours)) AS idle_gpu_hours
    FROM episode_costs
    GROUP BY episode_id
),
-- The job whose most steps were hit tells the loss around it.
hardest AS (
    SELECT episode_id, max(loss_before) AS loss_before, max(loss_after) AS loss_after
    FROM episode_costs
    GROUP BY episode_id, job
    QUALIFY row_number() OVER (
        PARTITION BY episode_id ORDER BY sum(steps_affected) DESC NULLS LAST, job
    ) = 1
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
    CASE WHEN recorded.collectives THEN coalesce(cost.collectives, 0) END AS collectives,
    at_least(medians.slowdown, 1)::DOUBLE AS slowdown,
    CASE
        WHEN cost.episode_id IS NOT NULL THEN cost.idle_gpu_hours
        -- No job ran into it.
        WHEN recorded.steps OR recorded.collectives THEN 0
    END::DOUBLE AS idle_gpu_hours,
    CASE WHEN recorded.steps THEN coalesce(cost.steps_affected, 0) END AS steps_affected,
    cost.skipped,
    hardest.loss_before,
    hardest.loss_after
FROM episode_heads AS heads
LEFT JOIN recorded ON recorded.episode_id = heads.episode_id
LEFT JOIN cost ON cost.episode_id = heads.episode_id
LEFT JOIN medians ON medians.episode_id = heads.episode_id
LEFT JOIN hardest ON hardest.episode_id = heads.episode_id
ORDER BY start_ts, heads.episode_id

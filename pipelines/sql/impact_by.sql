-- name: impact_by
-- grain: one link, one job, or the whole lake, on one UTC day
-- inputs: episode_costs, episode_heads, step_episodes, step_costs, collective_episodes, step_spans, collective_tails
-- audits: key(kind, name); range(idle_gpu_hours, 0, ..)
--
-- Hours lost, nothing counted twice: sums of unshared_gpu_hours, so that a step hit by two episodes
-- counts once. A job's is its own loss. A link's is that of the episodes whose root it is; an
-- episode without a known root is divided evenly among its links. The sums over links, over jobs and
-- of kind all are the same.
WITH links AS (
    SELECT episode_id, root_link AS link, 1.0::DOUBLE AS part
    FROM episode_heads WHERE root_link IS NOT NULL
    UNION ALL
    SELECT episode_id, unnest(links), 1.0::DOUBLE / len(links)
    FROM episode_heads WHERE root_link IS NULL
),
-- What a subject's episodes are, and what they share of each.
subjects AS (
    SELECT 'link' AS kind, links.link AS name, costs.*, links.part
    FROM episode_costs AS costs JOIN links ON links.episode_id = costs.episode_id
    UNION ALL
    SELECT 'job', job, *, 1.0::DOUBLE FROM episode_costs
    UNION ALL
    SELECT 'all', NULL, *, 1.0::DOUBLE FROM episode_costs
),
hours AS (
    SELECT
        kind,
        name,
        count(DISTINCT episode_id) AS episodes,
        steady_sum(list(unshared_gpu_hours * part)) AS idle_gpu_hours
    FROM subjects
    GROUP BY kind, name
),
steps AS (
    SELECT kind, name, sum(hit)::BIGINT AS steps_affected
    FROM (
        SELECT DISTINCT subjects.kind, subjects.name, costs.id, costs.hit
        FROM step_episodes AS hits
        JOIN step_costs AS costs ON costs.id = hits.id
        JOIN subjects
            ON subjects.episode_id = hits.episode_id
            AND subjects.job IS NOT DISTINCT FROM hits.job
    )
    GROUP BY kind, name
),
operations AS (
    SELECT subjects.kind, subjects.name, count(DISTINCT touched.collective) AS collectives
    FROM collective_episodes AS touched
    JOIN subjects
        ON subjects.episode_id = touched.episode_id
        AND subjects.job IS NOT DISTINCT FROM touched.job
    WHERE touched.start_ns >= getvariable('impact_from_ns')
        AND touched.start_ns < getvariable('impact_to_ns')
    GROUP BY subjects.kind, subjects.name
),
recorded AS (
    SELECT
        EXISTS (FROM step_spans) AS steps,
        EXISTS (FROM collective_tails) AS collectives
),
-- The whole lake has a row also where no episode cost anything: it says what was recorded.
named AS (
    SELECT kind, name, episodes, idle_gpu_hours FROM hours
    UNION ALL
    SELECT 'all', NULL, 0, 0.0 FROM recorded
    WHERE (steps OR collectives) AND NOT EXISTS (FROM hours)
)
SELECT
    make_timestamp_ns(getvariable('impact_from_ns')::BIGINT)::TIMESTAMPTZ_NS AS ts,
    named.kind,
    named.name,
    named.episodes,
    CASE WHEN recorded.steps THEN coalesce(steps.steps_affected, 0) END AS steps_affected,
    CASE WHEN recorded.collectives THEN coalesce(operations.collectives, 0) END AS collectives,
    named.idle_gpu_hours
FROM named
CROSS JOIN recorded
LEFT JOIN steps ON steps.kind = named.kind AND steps.name IS NOT DISTINCT FROM named.name
LEFT JOIN operations
    ON operations.kind = named.kind AND operations.name IS NOT DISTINCT FROM named.name

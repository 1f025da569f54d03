-- name: collective_episodes
-- grain: one collective and one episode it overlaps
-- inputs: collective_groups, episode_jobs, job_waits
-- audits: key(collective, episode_id); range(shared_ns, 1, ..)
--
-- Cut into minutes, so that only what is near in time is compared; a pair counts in the first
-- minute that it shares.
--
-- Of the episodes at the time, the nearest count (macro nearness).
WITH pieces AS (
    SELECT
        *,
        unnest(range(start_ns // 60_000_000_000, (end_ns - 1) // 60_000_000_000 + 1)) AS minute
    FROM collective_groups
),
spans AS (
    SELECT
        *,
        unnest(range(start_ns // 60_000_000_000, (end_ns - 1) // 60_000_000_000 + 1)) AS minute
    FROM episode_jobs
    WHERE end_ns > start_ns
),
waits AS (
    SELECT
        *,
        unnest(range(start_ns // 60_000_000_000, (end_ns - 1) // 60_000_000_000 + 1)) AS minute
    FROM job_waits
),
held AS (
    SELECT pieces.collective, waits.episode_id, bool_or(waits.sure) AS sure
    FROM pieces
    JOIN waits ON waits.minute = pieces.minute AND waits.job IS NOT DISTINCT FROM pieces.job
    WHERE pieces.start_ns < waits.end_ns AND pieces.end_ns > waits.start_ns
    GROUP BY pieces.collective, waits.episode_id
),
pairs AS (
    SELECT
        pieces.collective,
        pieces.job,
        pieces.start_ns,
        pieces.end_ns,
        spans.episode_id,
        spans.certain,
        least(pieces.end_ns, spans.end_ns) - greatest(pieces.start_ns, spans.start_ns) AS shared_ns
    FROM pieces
    JOIN spans ON spans.minute = pieces.minute AND spans.job IS NOT DISTINCT FROM pieces.job
    WHERE pieces.start_ns < spans.end_ns
        AND pieces.end_ns > spans.start_ns
        AND pieces.minute = greatest(pieces.start_ns, spans.start_ns) // 60_000_000_000
),
ranked AS (
    SELECT
        pairs.*,
        nearness(held.sure, certain, held.episode_id IS NOT NULL) AS distance
    FROM pairs
    LEFT JOIN held
        ON held.collective = pairs.collective AND held.episode_id = pairs.episode_id
)
SELECT * EXCLUDE (certain, distance)
FROM ranked
QUALIFY distance = min(distance) OVER (PARTITION BY collective)

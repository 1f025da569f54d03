-- name: step_candidates
-- grain: one row of a training log and one episode that may have slowed it
-- inputs: step_spans, hit_jobs, job_waits
-- audits: key(id, episode_id); range(hit, 1, ..)
--
-- Cut into minutes, so that only what is near in time is compared; a pair counts in the first
-- minute that it shares. hit: of a row that stands for several steps, those in the episode. whole:
-- it lies within the time in which the episode held the job's ports, or, of a job of which no port
-- was held for certain, within the episode.
--
-- Of the episodes at the time, the nearest count (macro nearness).
WITH pieces AS (
    SELECT *, unnest(range(first_ns // 60_000_000_000, last_ns // 60_000_000_000 + 1)) AS minute
    FROM (
        -- The nanoseconds it has: (start, end], and the end alone where its length is not known.
        SELECT *, least(start_ns + 1, end_ns) AS first_ns, end_ns AS last_ns FROM step_spans
    )
),
spans AS (
    SELECT *, unnest(range((start_ns + 1) // 60_000_000_000, end_ns // 60_000_000_000 + 1)) AS minute
    FROM hit_jobs
),
waits AS (
    SELECT *, unnest(range((start_ns + 1) // 60_000_000_000, end_ns // 60_000_000_000 + 1)) AS minute
    FROM job_waits
),
held AS (
    SELECT
        pieces.id,
        waits.episode_id,
        bool_or(waits.sure) AS sure,
        bool_or(waits.start_ns <= pieces.start_ns AND waits.end_ns >= pieces.end_ns) AS whole
    FROM pieces
    JOIN waits ON waits.minute = pieces.minute AND waits.job IS NOT DISTINCT FROM pieces.job
    WHERE pieces.first_ns <= waits.end_ns AND pieces.last_ns > waits.start_ns
    GROUP BY pieces.id, waits.episode_id
),
pairs AS (
    SELECT
        pieces.id,
        pieces.job,
        pieces.run,
        pieces.attempt,
        pieces.end_ns,
        spans.episode_id,
        spans.certain,
        spans.start_ns <= pieces.start_ns AND spans.end_ns >= pieces.end_ns AS inside,
        CASE
            WHEN steps = 1 THEN 1
            ELSE least(steps, greatest(1, ceil(
                (least(last_ns, spans.end_ns) - greatest(pieces.start_ns, spans.start_ns))
                    * steps / (last_ns - pieces.start_ns)
            )))
        END::BIGINT AS hit
    FROM pieces
    JOIN spans ON spans.minute = pieces.minute AND spans.job IS NOT DISTINCT FROM pieces.job
    WHERE pieces.first_ns <= spans.end_ns
        AND pieces.last_ns > spans.start_ns
        AND pieces.minute = greatest(first_ns, spans.start_ns + 1) // 60_000_000_000
),
ranked AS (
    SELECT
        pairs.*,
        coalesce(held.whole, inside AND NOT certain) AS whole,
        nearness(held.sure, certain, held.episode_id IS NOT NULL) AS distance
    FROM pairs LEFT JOIN held ON held.id = pairs.id AND held.episode_id = pairs.episode_id
)
SELECT * EXCLUDE (certain, inside, distance)
FROM ranked
QUALIFY distance = min(distance) OVER (PARTITION BY id)

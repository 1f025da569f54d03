-- name: step_episodes
-- grain: one row of a training log and one episode it overlaps
-- inputs: step_spans, episode_jobs
-- audits: key(id, episode_id); range(hit, 1, ..)
--
-- Cut into minutes, so that only what is near in time is compared; a pair counts in the first
-- minute that it shares. hit: of a row that stands for several steps, those in the episode.
WITH pieces AS (
    SELECT *, unnest(range(first_ns // 60_000_000_000, last_ns // 60_000_000_000 + 1)) AS minute
    FROM (
        -- The nanoseconds it has: (start, end], and the end alone where its length is not known.
        SELECT *, least(start_ns + 1, end_ns) AS first_ns, end_ns AS last_ns FROM step_spans
    )
),
spans AS (
    SELECT *, unnest(range((start_ns + 1) // 60_000_000_000, end_ns // 60_000_000_000 + 1)) AS minute
    FROM episode_jobs
)
SELECT
    pieces.id,
    pieces.job,
    pieces.run,
    pieces.attempt,
    pieces.end_ns,
    spans.episode_id,
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

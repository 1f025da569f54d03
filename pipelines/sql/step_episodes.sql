-- name: step_episodes
-- grain: one row of a training log and one episode that slowed it, as far as can be told
-- inputs: step_candidates, step_spans
-- audits: key(id, episode_id); range(hit, 1, ..)
--
-- A step waits for its slowest part: with two episodes at once it lasts as long as with the slower
-- one alone, and the other one costs nothing. So where several may have slowed a step, the pace of
-- the job tells, at times when only some of them were there: the upper quartile of at least three
-- whole steps, as an episode may have breaks. Those count with which alone the job was as slow as in
-- this step (to a tenth), the fewest together; where it never was, all of them; in either case
-- without those with which it was faster, if another one is left. Where no such time tells them
-- apart, each counts.
WITH held AS (
    SELECT
        id, job, run, list(episode_id ORDER BY episode_id) AS episodes, bool_and(whole) AS whole
    FROM step_candidates
    GROUP BY id, job, run
),
timed AS (
    SELECT held.*, spans.step_time_s
    FROM held JOIN step_spans AS spans ON spans.id = held.id
    WHERE spans.step_time_s IS NOT NULL
),
paces AS (
    SELECT job, run, episodes, quantile_cont(step_time_s, 0.75) AS pace_s
    FROM timed
    WHERE whole
    GROUP BY job, run, episodes
    HAVING count(*) >= 3
),
sets AS (
    SELECT job, run, episodes, unnest(episodes) AS first
    FROM (SELECT DISTINCT job, run, episodes FROM timed WHERE len(episodes) > 1)
),
parts AS (
    -- What is known of a part of those that are there.
    SELECT sets.job, sets.run, sets.episodes, paces.episodes AS part, paces.pace_s
    FROM sets
    JOIN paces
        ON paces.job IS NOT DISTINCT FROM sets.job
        AND paces.run = sets.run
        AND paces.episodes[1] = sets.first
        AND len(paces.episodes) < len(sets.episodes)
        AND list_has_all(sets.episodes, paces.episodes)
),
told AS (
    SELECT timed.id, parts.part, timed.step_time_s <= 1.1 * parts.pace_s AS as_slow
    FROM timed
    JOIN parts
        ON parts.job IS NOT DISTINCT FROM timed.job
        AND parts.run = timed.run
        AND parts.episodes = timed.episodes
),
fewest AS (
    SELECT id, part FROM told WHERE as_slow QUALIFY len(part) = min(len(part)) OVER (PARTITION BY id)
),
enough AS (SELECT DISTINCT id, unnest(part) AS episode_id FROM fewest),
faster AS (SELECT DISTINCT id, unnest(part) AS episode_id FROM told WHERE NOT as_slow),
ranked AS (
    SELECT
        candidates.*,
        CASE
            WHEN enough.id IS NOT NULL THEN CASE WHEN faster.id IS NULL THEN 0 ELSE 1 END
            WHEN faster.id IS NULL THEN 2
            ELSE 3
        END AS rank
    FROM step_candidates AS candidates
    LEFT JOIN enough
        ON enough.id = candidates.id AND enough.episode_id = candidates.episode_id
    LEFT JOIN faster
        ON faster.id = candidates.id AND faster.episode_id = candidates.episode_id
)
SELECT * EXCLUDE (whole, rank)
FROM ranked
QUALIFY rank = min(rank) OVER (PARTITION BY id)

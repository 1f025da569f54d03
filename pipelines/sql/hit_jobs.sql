-- name: hit_jobs
-- grain: one episode and one job that it hit, as far as is known
-- inputs: episode_jobs, collective_episodes, collective_expected
-- audits: key(episode_id, job); not_null(certain)
--
-- A job whose own ports were held up was hit for certain. One that is merely near, or may be, is
-- left out where it is known that nothing of it was slowed: collectives ran during the episode, and
-- each took its expected time, to a tenth.
WITH seen AS (
    SELECT
        touched.episode_id,
        touched.job,
        bool_or(priced.transfer_ns > 1.1 * priced.expected_ns) AS slowed
    FROM collective_episodes AS touched
    JOIN collective_expected AS priced ON priced.collective = touched.collective
    GROUP BY touched.episode_id, touched.job
)
SELECT pairs.*
FROM episode_jobs AS pairs
LEFT JOIN seen
    ON seen.episode_id = pairs.episode_id AND seen.job IS NOT DISTINCT FROM pairs.job
WHERE pairs.certain OR coalesce(seen.slowed, true)

-- name: episode_jobs
-- grain: one episode and one job that it may touch
-- inputs: episode_heads, episode_hosts, job_hosts, job_waits
-- audits: key(episode_id, job); not_null(certain)
--
-- A job is certain where ports of its own hosts were held up (job_waits, sure). It is near where a
-- host of it is among those that the episode touches (episode_hosts: at the ends of its links, or
-- below the leaves there). A job of which not all hosts are known is not ruled out either, unless
-- every host touched was another job's at the time; nor is any job where it is not known which
-- hosts an episode touches.
WITH near AS (
    SELECT DISTINCT episode_hosts.episode_id, job_hosts.job
    FROM episode_hosts JOIN job_hosts ON job_hosts.host = episode_hosts.host
),
others AS (
    -- Hosts touched that no job is known to have had at the time.
    SELECT DISTINCT heads.episode_id
    FROM episode_hosts
    JOIN episode_heads AS heads ON heads.episode_id = episode_hosts.episode_id
    WHERE NOT EXISTS (
        FROM job_hosts
        WHERE job_hosts.host = episode_hosts.host
            AND job_hosts.job IS NOT NULL
            AND job_hosts.start_ns < heads.end_ns
            AND job_hosts.end_ns > heads.start_ns
    )
),
placeless AS (
    SELECT episode_id FROM episode_heads
    WHERE episode_id NOT IN (SELECT episode_id FROM episode_hosts)
),
maybe AS (
    SELECT others.episode_id, partly.job
    FROM others CROSS JOIN (SELECT DISTINCT job FROM job_hosts WHERE NOT complete) AS partly
    UNION
    SELECT placeless.episode_id, every.job
    FROM placeless CROSS JOIN (SELECT DISTINCT job FROM job_hosts) AS every
),
pairs AS (
    SELECT episode_id, job, bool_or(certain) AS certain
    FROM (
        SELECT episode_id, job, sure AS certain FROM job_waits
        UNION ALL
        SELECT episode_id, job, false FROM near
        UNION ALL
        SELECT episode_id, job, false FROM maybe
    )
    GROUP BY episode_id, job
)
SELECT pairs.episode_id, pairs.job, pairs.certain, heads.start_ns, heads.end_ns
FROM pairs JOIN episode_heads AS heads ON heads.episode_id = pairs.episode_id

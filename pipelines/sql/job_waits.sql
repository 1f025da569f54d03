-- name: job_waits
-- grain: one episode, one job, one span in which ports of the job's hosts were held up
-- inputs: episode_waits, job_hosts
-- audits: key(episode_id, job, sure, start_ns); range(end_ns, start_ns, ..); not_null(sure)
--
-- The witness that an episode hit a job: where nothing is dropped, waiting spreads back to the
-- adapters that send, and where packets are dropped or marked, their senders are told. Spans of
-- many ports are joined into one.
--
-- Not sure is what may be another job's: a port that feeds the root at once, where the root leads
-- to a host (receiver), waits with what it sends to that host, and the job is not known to be
-- there; a port from which nothing can come to the root (passes) is marked by what it receives,
-- and the sender that is told of it is another one.
WITH held AS (
    SELECT
        waits.episode_id,
        job_hosts.job,
        coalesce(waits.passes, true) AND (
            waits.receiver IS NULL
            OR EXISTS (
                FROM job_hosts AS far
                WHERE far.host = waits.receiver AND far.job IS NOT DISTINCT FROM job_hosts.job
            )
        ) AS sure,
        waits.start_ns,
        waits.end_ns
    FROM episode_waits AS waits
    JOIN job_hosts ON job_hosts.host = waits.host
    WHERE job_hosts.start_ns < waits.end_ns AND job_hosts.end_ns > waits.start_ns
),
marked AS (
    SELECT
        *,
        coalesce(start_ns > max(end_ns) OVER (
            PARTITION BY episode_id, job, sure ORDER BY start_ns, end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS anew
    FROM held
),
counted AS (
    SELECT
        *,
        sum(anew::INTEGER) OVER (
            PARTITION BY episode_id, job, sure ORDER BY start_ns, end_ns
            RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS island
    FROM marked
)
SELECT episode_id, job, sure, min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM counted
GROUP BY episode_id, job, sure, island

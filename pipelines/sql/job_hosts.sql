-- name: job_hosts
-- grain: one job and one of its hosts; a job of which none is known has one row with host null
-- inputs: collectives, host_names, step_spans, job_sizes, fabric_hosts
-- audits: key(job, host); not_null(complete)
--
-- complete: all hosts of the job are known: each of its ranks was seen, on a host of the fabric. A
-- job of 8 ranks or fewer is on one server (usual servers have 8 accelerators): one rank tells.
-- Only such a job is elsewhere for certain where none of its hosts is. start_ns and end_ns are the
-- first and last time it was seen there.
WITH told AS (
    SELECT
        job,
        coalesce(host_names.name, collectives.host) AS host,
        coalesce(rank, comm_rank) AS rank,
        epoch_ns(coalesce(start_ts, enqueue_ts)) AS at_ns,
        coalesce(duration_ns, 0) AS duration_ns
    FROM collectives LEFT JOIN host_names ON host_names.host = collectives.host
    WHERE extra['program'] IS NULL
),
seen AS (
    SELECT job, host, min(at_ns) AS start_ns, max(at_ns + duration_ns) AS end_ns
    FROM told
    WHERE host IS NOT NULL
    GROUP BY job, host
),
-- Where each rank was seen; a rank that some source places is placed.
ranks AS (
    SELECT
        told.job,
        told.rank,
        bool_and(told.host IS NULL OR fabric_hosts.host IS NOT NULL) AND count(told.host) > 0
            AS placed
    FROM told LEFT JOIN fabric_hosts ON fabric_hosts.host = told.host
    GROUP BY told.job, told.rank
),
whole AS (
    SELECT
        ranks.job,
        bool_and(placed)
            AND (max(job_sizes.ranks) <= 8 OR count(ranks.rank) >= max(job_sizes.ranks)) AS complete
    FROM ranks LEFT JOIN job_sizes ON job_sizes.job IS NOT DISTINCT FROM ranks.job
    GROUP BY ranks.job
),
nowhere AS (
    SELECT job FROM (SELECT job FROM told UNION SELECT job FROM step_spans) AS every
    WHERE NOT EXISTS (FROM seen WHERE seen.job IS NOT DISTINCT FROM every.job)
)
SELECT seen.job, seen.host, seen.start_ns, seen.end_ns, coalesce(whole.complete, false) AS complete
FROM seen JOIN whole ON whole.job IS NOT DISTINCT FROM seen.job
UNION ALL
SELECT job, NULL, NULL, NULL, false
FROM nowhere

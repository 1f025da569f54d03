-- name: job_sizes
-- grain: one job
-- inputs: collectives, known_sizes
-- audits: key(job); range(ranks, 1, ..)
--
-- Ranks of a job: the size of its largest communicator, or the ranks seen if more. Where the days
-- at hand hold no collective of it, what other days say (known_sizes).
WITH here AS (
    SELECT job, nullif(greatest(max(comm_size), count(DISTINCT rank)), 0)::BIGINT AS ranks
    FROM collectives
    WHERE extra['program'] IS NULL
    GROUP BY job
)
SELECT coalesce(here.job, known_sizes.job) AS job, coalesce(here.ranks, known_sizes.ranks) AS ranks
FROM here
FULL JOIN known_sizes ON known_sizes.job IS NOT DISTINCT FROM here.job

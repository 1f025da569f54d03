-- name: burst_events
-- grain: one collective of one communicator, as one of its ranks saw it
-- inputs: collectives
-- audits: not_null(comm, start_ns, end_ns)
--
-- One rank speaks for all, since hosts' clocks differ: the one that saw most collectives with a
-- start and a duration, then the one of the lowest number.
WITH timed AS (
    SELECT
        job,
        comm,
        coalesce(rank, comm_rank, -1) AS member,
        epoch_ns(start_ts) AS start_ns,
        epoch_ns(start_ts) + duration_ns AS end_ns
    FROM collectives
    WHERE comm IS NOT NULL AND start_ts IS NOT NULL AND duration_ns > 0
        AND op NOT IN ('barrier', 'empty_dump')
),
speaker AS (
    SELECT job, comm, member
    FROM timed
    GROUP BY job, comm, member
    QUALIFY row_number() OVER (PARTITION BY job, comm ORDER BY count(*) DESC, member) = 1
)
SELECT DISTINCT timed.job, timed.comm, timed.start_ns, timed.end_ns
FROM timed JOIN speaker
    ON speaker.job IS NOT DISTINCT FROM timed.job
    AND speaker.comm = timed.comm
    AND speaker.member = timed.member
ORDER BY timed.job, timed.comm, timed.start_ns, timed.end_ns

-- name: collective_samples
-- grain: one collective on one rank
-- inputs: collectives
-- audits: not_null(comm_key)
--
-- One row where two sources saw the same collective: the one with a start time, then the one with
-- a duration. Rows without a number in their communicator cannot be matched and are kept.
-- transfer_ns is the shortest duration among the ranks of one collective: a kernel's time includes
-- waiting for the slowest rank, so the shortest is nearest the transfer.
WITH named AS (
    SELECT
        *,
        coalesce(comm_rank, rank) AS member,
        coalesce(comm, '') AS comm_key,
        epoch_ns(start_ts) AS start_ns,
        epoch_ns(start_ts) + duration_ns AS end_ns
    FROM collectives
    WHERE op IS NOT NULL
),
best AS (
    SELECT *
    FROM named
    QUALIFY seq IS NULL OR row_number() OVER (
        PARTITION BY job, comm, seq, member, op
        ORDER BY
            start_ts IS NULL, duration_ns IS NULL, message_bytes IS NULL, start_ts, duration_ns,
            message_bytes, source
    ) = 1
)
SELECT
    *,
    CASE
        WHEN seq IS NULL THEN duration_ns
        ELSE min(duration_ns) OVER (PARTITION BY job, comm, seq, op)
    END AS transfer_ns,
    -- Which collective a row belongs to.
    CASE WHEN seq IS NULL THEN hash(job, comm, member, op, start_ns) ELSE hash(job, comm, seq, op) END
        AS collective
FROM best

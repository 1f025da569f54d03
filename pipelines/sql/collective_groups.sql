-- name: collective_groups
-- grain: one collective, over the ranks seen of it
-- inputs: collective_samples
-- audits: key(collective); range(transfer_ns, 1, ..)
--
-- transfer_ns is the shortest duration among its ranks: a kernel's time includes waiting for the
-- slowest rank, so the shortest is nearest the transfer. usual_ns is the duration of the rank in
-- the middle (of two, the longer): far above the shortest where the others waited for one.
WITH spreads AS (
    -- Whether a communicator reaches beyond one host; null where that cannot be told.
    SELECT
        job,
        comm,
        CASE
            WHEN count(DISTINCT host) > 1 THEN true
            WHEN count(host) = count(*) AND count(DISTINCT member) >= max(comm_size) THEN false
        END AS spread
    FROM collective_samples
    WHERE comm IS NOT NULL
    GROUP BY job, comm
),
gathered AS (
    SELECT
        collective,
        job,
        comm,
        seq,
        op,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        max(comm_size) AS comm_size,
        max(message_bytes) AS message_bytes,
        max(algorithm) AS algorithm,
        count(*) AS members,
        min(duration_ns) AS transfer_ns,
        list_sort(list(duration_ns))[count(*) // 2 + 1] AS usual_ns,
        min({'duration': duration_ns, 'member': member, 'rank': coalesce(rank, comm_rank)})
            .rank AS last_rank
    FROM collective_samples
    GROUP BY collective, job, comm, seq, op
)
SELECT gathered.*, spreads.spread
FROM gathered
LEFT JOIN spreads
    ON spreads.job IS NOT DISTINCT FROM gathered.job AND spreads.comm = gathered.comm

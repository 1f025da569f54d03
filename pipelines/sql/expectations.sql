-- name: expectations
-- grain: one kind of collective of one size, within its communicator or over all of them
-- inputs: clear_collectives
-- audits: key(own, job, comm, op, message_bytes, comm_size, algorithm, spread)
--
-- What a collective takes outside episodes: the median over collectives of the shortest rank's
-- duration. own: of that communicator alone; else of all communicators of its size that reach as
-- far (one host or several). Fewer than 5 make no median.
WITH kinds AS (
    SELECT true AS own, job, comm, op, message_bytes, comm_size, algorithm, spread, transfer_ns
    FROM clear_collectives
    UNION ALL
    SELECT false, NULL, NULL, op, message_bytes, comm_size, algorithm, spread, transfer_ns
    FROM clear_collectives
)
SELECT * EXCLUDE (transfer_ns), median(transfer_ns)::BIGINT AS expected_ns, count(*) AS samples
FROM kinds
GROUP BY ALL
HAVING count(*) >= 5

-- name: expectations
-- grain: one kind of collective, by how closely it is matched
-- inputs: collective_samples, collective_episodes
-- audits: key(match, job, comm, op, message_bytes, size_class, comm_size, algorithm)
--
-- What a collective takes outside episodes: the median over collectives of the shortest rank's
-- duration. Match 1: the same communicator, operation and size; 2: any communicator of that size;
-- 3: the same power of two of bytes. The closest with enough samples counts.
WITH outside AS (
    SELECT
        job,
        comm,
        op,
        message_bytes,
        floor(log2(nullif(message_bytes, 0)))::INTEGER AS size_class,
        comm_size,
        algorithm,
        collective,
        any_value(transfer_ns) AS transfer_ns
    FROM collective_samples
    WHERE transfer_ns IS NOT NULL
        AND start_ns IS NOT NULL
        AND collective NOT IN (SELECT collective FROM collective_episodes)
    GROUP BY ALL
),
levels AS (
    SELECT 1 AS match, 5 AS enough, job, comm, op, message_bytes, NULL::INTEGER AS size_class,
        comm_size, algorithm, transfer_ns
    FROM outside
    UNION ALL
    SELECT 2, 5, NULL, NULL, op, message_bytes, NULL, comm_size, algorithm, transfer_ns
    FROM outside
    UNION ALL
    SELECT 3, 3, NULL, NULL, op, NULL, size_class, comm_size, algorithm, transfer_ns
    FROM outside
)
SELECT
    match,
    job,
    comm,
    op,
    message_bytes,
    size_class,
    comm_size,
    algorithm,
    median(transfer_ns)::BIGINT AS expected_ns,
    count(*) AS samples
FROM levels
GROUP BY match, enough, job, comm, op, message_bytes, size_class, comm_size, algorithm
HAVING count(*) >= enough

-- name: fit_samples
-- grain: one collective outside episodes, under a kind for which time is fitted to size
-- inputs: collective_groups, clear_collectives, expectations
-- audits: range(message_bytes, 1, ..); range(transfer_ns, 1, ..); not_null(own, op)
--
-- A kind is fitted where it has a collective whose size has no median of its own. Of a kind with
-- very many samples, a part that does not depend on the order of rows.
WITH lacking AS (
    SELECT groups.job, groups.comm, groups.op, groups.comm_size, groups.algorithm, groups.spread
    FROM collective_groups AS groups
    WHERE groups.message_bytes > 0
        AND groups.end_ns > getvariable('impact_from_ns')
        AND NOT EXISTS (
            FROM expectations
            WHERE own
                AND expectations.job IS NOT DISTINCT FROM groups.job
                AND expectations.comm IS NOT DISTINCT FROM groups.comm
                AND expectations.op = groups.op
                AND expectations.message_bytes = groups.message_bytes
                AND expectations.comm_size IS NOT DISTINCT FROM groups.comm_size
                AND expectations.algorithm IS NOT DISTINCT FROM groups.algorithm
        )
    GROUP BY ALL
),
found AS (
    SELECT
        true AS own, lacking.*, clear.message_bytes, clear.transfer_ns,
        hash(clear.collective) AS place
    FROM clear_collectives AS clear
    JOIN lacking
        ON lacking.job IS NOT DISTINCT FROM clear.job
        AND lacking.comm IS NOT DISTINCT FROM clear.comm
        AND lacking.op = clear.op
        AND lacking.comm_size IS NOT DISTINCT FROM clear.comm_size
        AND lacking.algorithm IS NOT DISTINCT FROM clear.algorithm
        AND lacking.spread IS NOT DISTINCT FROM clear.spread
    WHERE clear.message_bytes > 0
    UNION ALL
    SELECT false, NULL, NULL, kinds.*, clear.message_bytes, clear.transfer_ns,
        hash(clear.collective)
    FROM clear_collectives AS clear
    JOIN (SELECT DISTINCT op, comm_size, algorithm, spread FROM lacking) AS kinds
        ON kinds.op = clear.op
        AND kinds.comm_size = clear.comm_size
        AND kinds.algorithm IS NOT DISTINCT FROM clear.algorithm
        AND kinds.spread IS NOT DISTINCT FROM clear.spread
    WHERE clear.message_bytes > 0
)
SELECT * EXCLUDE (place)
FROM found
QUALIFY row_number() OVER (
    PARTITION BY own, job, comm, op, comm_size, algorithm, spread
    ORDER BY place, message_bytes, transfer_ns
) <= 20_000

-- name: collective_expected
-- grain: one collective
-- inputs: collective_groups, collective_episodes, expectations, expectation_fits
-- audits: key(collective); range(expected_ns, 1, ..); range(excess_ns, 0, ..)
--
-- The nearest expectation there is: the median of its communicator at its size, the time fitted to
-- size within its communicator, then both over all communicators alike; else null. A fit holds
-- between the sizes that it was made of. excess_ns is the transfer's time beyond it.
--
-- straggler_rank: the others waited inside their kernels for that rank, which came last: its kernel
-- is shorter than the middle one by a quarter and a tenth of a millisecond. Told only where all
-- ranks were seen, or its kernel took no more than 1.5 times the expectation; else a rank that
-- nobody traced may have been later still.
WITH longest AS (
    SELECT collective, episode_id
    FROM collective_episodes
    QUALIFY row_number() OVER (
        PARTITION BY collective ORDER BY shared_ns DESC, episode_id
    ) = 1
),
priced AS (
    SELECT
        groups.*,
        coalesce(
            of_comm.expected_ns,
            at_least(round(
                fit_comm.latency_ns + fit_comm.ns_per_byte * groups.message_bytes
            )::BIGINT, 1),
            of_kind.expected_ns,
            at_least(round(
                fit_kind.latency_ns + fit_kind.ns_per_byte * groups.message_bytes
            )::BIGINT, 1)
        ) AS expected_ns
    FROM collective_groups AS groups
    LEFT JOIN (FROM expectations WHERE own) AS of_comm
        ON of_comm.job IS NOT DISTINCT FROM groups.job
        AND of_comm.comm IS NOT DISTINCT FROM groups.comm
        AND of_comm.op = groups.op
        AND of_comm.message_bytes IS NOT DISTINCT FROM groups.message_bytes
        AND of_comm.comm_size IS NOT DISTINCT FROM groups.comm_size
        AND of_comm.algorithm IS NOT DISTINCT FROM groups.algorithm
    LEFT JOIN (FROM expectations WHERE NOT own) AS of_kind
        ON of_kind.op = groups.op
        AND of_kind.message_bytes = groups.message_bytes
        AND of_kind.comm_size = groups.comm_size
        AND of_kind.algorithm IS NOT DISTINCT FROM groups.algorithm
        AND of_kind.spread IS NOT DISTINCT FROM groups.spread
    LEFT JOIN (FROM expectation_fits WHERE own) AS fit_comm
        ON fit_comm.job IS NOT DISTINCT FROM groups.job
        AND fit_comm.comm IS NOT DISTINCT FROM groups.comm
        AND fit_comm.op = groups.op
        AND fit_comm.comm_size IS NOT DISTINCT FROM groups.comm_size
        AND fit_comm.algorithm IS NOT DISTINCT FROM groups.algorithm
        AND fit_comm.low_bytes <= groups.message_bytes
        AND fit_comm.high_bytes >= groups.message_bytes
    LEFT JOIN (FROM expectation_fits WHERE NOT own) AS fit_kind
        ON fit_kind.op = groups.op
        AND fit_kind.comm_size = groups.comm_size
        AND fit_kind.algorithm IS NOT DISTINCT FROM groups.algorithm
        AND fit_kind.spread IS NOT DISTINCT FROM groups.spread
        AND fit_kind.low_bytes <= groups.message_bytes
        AND fit_kind.high_bytes >= groups.message_bytes
)
SELECT
    priced.collective,
    priced.transfer_ns,
    priced.expected_ns,
    at_least(priced.transfer_ns - priced.expected_ns, 0) AS excess_ns,
    longest.episode_id,
    CASE
        WHEN members >= 2
            AND usual_ns - transfer_ns > greatest(transfer_ns // 4, 100_000)
            AND (members >= comm_size OR transfer_ns <= 1.5 * expected_ns)
            THEN last_rank
    END AS straggler_rank
FROM priced LEFT JOIN longest ON longest.collective = priced.collective

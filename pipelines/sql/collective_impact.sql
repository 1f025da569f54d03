-- name: collective_impact
-- grain: one collective on one rank
-- inputs: collective_samples, collective_episodes, expectations
-- audits: range(expected_ns, 0, ..); range(slowdown, 0, ..); range(exposed_ns, 0, ..)
--
-- Slowdown and exposed time are the transfer's, the same on all ranks of a collective: what a rank
-- waits for a slower one is not the network's.
WITH longest AS (
    SELECT job, comm, seq, member, op, start_ns, episode_id
    FROM collective_episodes
    QUALIFY row_number() OVER (
        PARTITION BY job, comm, seq, member, op, start_ns ORDER BY shared_ns DESC, episode_id
    ) = 1
),
expected AS (
    SELECT
        samples.*,
        coalesce(one.expected_ns, two.expected_ns, three.expected_ns) AS expected_ns
    FROM collective_samples AS samples
    LEFT JOIN expectations AS one
        ON one.match = 1
        AND one.job IS NOT DISTINCT FROM samples.job
        AND one.comm IS NOT DISTINCT FROM samples.comm
        AND one.op = samples.op
        AND one.message_bytes IS NOT DISTINCT FROM samples.message_bytes
        AND one.comm_size IS NOT DISTINCT FROM samples.comm_size
        AND one.algorithm IS NOT DISTINCT FROM samples.algorithm
    LEFT JOIN expectations AS two
        ON two.match = 2
        AND two.op = samples.op
        AND two.message_bytes = samples.message_bytes
        AND two.comm_size = samples.comm_size
        AND two.algorithm IS NOT DISTINCT FROM samples.algorithm
    LEFT JOIN expectations AS three
        ON three.match = 3
        AND three.op = samples.op
        AND three.size_class = floor(log2(nullif(samples.message_bytes, 0)))::INTEGER
        AND three.comm_size = samples.comm_size
        AND three.algorithm IS NOT DISTINCT FROM samples.algorithm
)
SELECT
    expected.start_ts,
    expected.job,
    expected.comm,
    expected.seq,
    expected.rank,
    expected.comm_rank,
    expected.op,
    expected.message_bytes,
    expected.duration_ns,
    expected.expected_ns,
    transfer_ns / nullif(expected.expected_ns, 0) AS slowdown,
    longest.episode_id,
    at_least(transfer_ns - expected.expected_ns, 0) AS exposed_ns
FROM expected
LEFT JOIN longest
    ON longest.job IS NOT DISTINCT FROM expected.job
    AND longest.comm IS NOT DISTINCT FROM expected.comm
    AND longest.seq IS NOT DISTINCT FROM expected.seq
    AND longest.member IS NOT DISTINCT FROM expected.member
    AND longest.op = expected.op
    AND longest.start_ns = expected.start_ns
ORDER BY expected.job, expected.comm, expected.seq, expected.comm_rank, expected.start_ts

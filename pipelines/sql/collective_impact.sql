-- name: collective_impact
-- grain: one collective on one rank
-- inputs: collective_tails
-- audits: range(expected_ns, 1, ..); range(slowdown, 0, ..); range(exposed_ns, 0, ..)
-- audits: range(lost_ns, 0, ..); range(wait_ns, 0, ..)
--
-- Slowdown is the transfer's, the same on all ranks of a collective: what a rank waits for a slower
-- one is not the network's.
SELECT
    make_timestamp_ns(start_ns)::TIMESTAMPTZ_NS AS start_ts,
    job,
    comm,
    seq,
    rank,
    comm_rank,
    op,
    message_bytes,
    duration_ns,
    expected_ns,
    transfer_ns / expected_ns AS slowdown,
    episode_id,
    exposed_ns,
    lost_ns,
    wait_ns,
    straggler_rank
FROM collective_tails

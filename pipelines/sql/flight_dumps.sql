-- name: flight_dumps
-- grain: one operation in one Flight Recorder dump, or one dump without operations
-- inputs: collectives
-- audits: not_null(source, rank)
--
-- A dump without a rank cannot be compared with others. Numbers in `extra` are text.
SELECT DISTINCT
    source,
    job,
    rank,
    op = 'empty_dump' AS empty,
    comm,
    comm_size,
    seq,
    op,
    dtype,
    message_bytes,
    coalesce(state = 'completed', false) OR extra['discovered_completed_ns'] IS NOT NULL
        AS completed,
    coalesce(state IN ('started', 'completed'), false)
        OR extra['discovered_started_ns'] IS NOT NULL AS started,
    epoch_ns(enqueue_ts) AS enqueue_ns,
    greatest(
        epoch_ns(enqueue_ts),
        TRY_CAST(extra['discovered_started_ns'] AS BIGINT),
        TRY_CAST(extra['discovered_completed_ns'] AS BIGINT)
    ) AS last_ns,
    TRY_CAST(extra['record_id'] AS BIGINT) AS record,
    TRY_CAST(extra['pg_id'] AS BIGINT) AS pg_id,
    TRY_CAST(extra['p2p_seq'] AS BIGINT) AS p2p_seq,
    TRY_CAST(extra['collective_seq'] AS BIGINT) AS collective_seq,
    TRY_CAST(extra['timeout_ms'] AS BIGINT) AS timeout_ms,
    TRY_CAST(extra['group_last_enqueued'] AS BIGINT) AS last_enqueued,
    TRY_CAST(extra['group_last_started'] AS BIGINT) AS last_started,
    TRY_CAST(extra['group_last_completed'] AS BIGINT) AS last_completed,
    extra['profiling_name'] AS profiling_name,
    extra['peer'] AS peer,
    extra['process_groups'] AS process_groups,
    extra['process_group_status'] AS process_group_status
FROM collectives
WHERE rank IS NOT NULL AND (op = 'empty_dump' OR extra['record_id'] IS NOT NULL)
ORDER BY source, rank, record, comm, seq, op

-- name: desync_suspects
-- grain: one collective on one rank, at or near a number under which ranks did different things
-- inputs: collectives, dump_incidents, collective_parsers
-- audits: not_null(scope, comm, seq, member, op)
--
-- Rows are compared within one scope only: the dumps of one incident, or what one kind of collector
-- read, since collectors name types and sizes in their own ways. Where each operation is numbered
-- by itself (seq_of = op), so it is compared; a place in one trace is no number of a communicator.
-- Ranks may send different amounts in all_to_all, gather and scatter: their sizes say nothing.
WITH named AS (
    SELECT
        coalesce(dump_incidents.incident, 'read by ' || coalesce(parser, '?')) AS scope,
        job,
        comm,
        CASE WHEN extra['seq_of'] = 'op' THEN op ELSE '' END AS numbering,
        seq,
        coalesce(collectives.rank, comm_rank) AS member,
        collectives.rank IS NOT NULL AS global,
        op,
        dtype,
        CASE
            WHEN op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'broadcast', 'reduce')
                THEN message_bytes
        END AS size,
        epoch_ns(coalesce(start_ts, enqueue_ts)) AS at_ns,
        collectives.source
    FROM collectives
    LEFT JOIN dump_incidents
        ON dump_incidents.source = collectives.source AND dump_incidents.rank = collectives.rank
    LEFT JOIN collective_parsers ON collective_parsers.source = collectives.source
    WHERE comm IS NOT NULL AND seq IS NOT NULL AND op IS NOT NULL
        AND coalesce(collectives.rank, comm_rank) IS NOT NULL
        AND extra['seq_source'] IS DISTINCT FROM 'trace order'
        AND (extra['record_id'] IS NULL OR dump_incidents.incident IS NOT NULL)
),
differing AS (
    SELECT scope, job, comm, numbering, seq
    FROM named
    GROUP BY scope, job, comm, numbering, seq
    HAVING min(op) <> max(op) OR min(dtype) <> max(dtype) OR min(size) <> max(size)
    -- A shifted log differs everywhere: its beginning tells as much.
    QUALIFY row_number() OVER (PARTITION BY scope, job, comm, numbering ORDER BY seq) <= 1000
),
near AS (
    SELECT DISTINCT scope, job, comm, numbering, unnest(range(seq - 4, seq + 5)) AS seq
    FROM differing
)
SELECT DISTINCT named.*
FROM named JOIN near
    ON near.scope = named.scope
    AND near.job IS NOT DISTINCT FROM named.job
    AND near.comm = named.comm
    AND near.numbering = named.numbering
    AND near.seq = named.seq
ORDER BY scope, job, comm, numbering, seq, member, at_ns, source, op, dtype, size

-- name: reorder_depth
-- grain: one depth of one job on one UTC day
-- inputs: collectives, decisions
-- audits: key(ts, job, depth); not_null(ts, depth, tensors); range(depth, 0, 64)
-- audits: range(covered, 0, 1); range(buffer_tensors, 1, 65)
--
-- An operation's depth is the number of operations of its communicator, of a lower number, that
-- were still under way on its rank when it ended: what has to be held back to hand results over in
-- order. 64 stands for 64 and more. covered is the share of operations up to a depth, and
-- buffer_tensors the least buffer, the one handed over included, that covers 99.5 % of them (N3).
--
-- It sees operations, not packets: what is reordered inside one is the transport's. Sends and
-- receives have no number in their communicator, some sources count each kind by itself, and some
-- give no start or duration: all left out. Moves of flows to other paths are logged without
-- sequence numbers, so nothing tells how deep they reordered: path_moves counts them beside.
WITH single AS (
    -- Day, communicator and rank as one number, which sorts faster than texts. Where two sources
    -- saw one operation, the earlier start and end count.
    SELECT
        hash(epoch_ns(start_ts) // 86400000000000, job, comm, coalesce(rank, comm_rank, -1))
            AS place,
        seq,
        min(epoch_ns(start_ts) // 86400000000000) AS day,
        min(job) AS job,
        min(epoch_ns(start_ts)) AS starts,
        min(epoch_ns(start_ts) + duration_ns) AS ends
    FROM collectives
    WHERE comm IS NOT NULL AND seq IS NOT NULL AND start_ts IS NOT NULL AND duration_ns IS NOT NULL
        AND extra['seq_of'] IS DISTINCT FROM 'op'
    GROUP BY 1, 2
),
ordered AS MATERIALIZED (
    FROM single ORDER BY place, seq
),
-- Where anything ends before one of a lower number, some neighbours do. Few communicators have
-- any: only theirs are looked at one by one.
mixed AS (
    SELECT DISTINCT place
    FROM (
        SELECT
            place,
            lag(place) OVER () = place AND lag(ends) OVER () > ends AS overtakes
        FROM ordered
    )
    WHERE overtakes
),
depths AS (
    SELECT
        day,
        job,
        len(list_filter(
            list({'starts': starts, 'ends': ends}) OVER (
                PARTITION BY ordered.place ORDER BY seq ROWS BETWEEN 64 PRECEDING AND 1 PRECEDING
            ),
            lambda other: other.ends > ordered.ends AND other.starts < ordered.ends
        )) AS depth
    FROM ordered JOIN mixed ON mixed.place = ordered.place
    UNION ALL
    SELECT day, job, 0
    FROM ordered ANTI JOIN mixed ON mixed.place = ordered.place
),
counted AS (
    SELECT
        make_timestamp_ns(day * 86400000000000)::TIMESTAMPTZ_NS AS ts,
        job,
        coalesce(depth, 0)::BIGINT AS depth,
        count(*) AS tensors
    FROM depths
    GROUP BY 1, job, 3
),
shares AS (
    SELECT
        *,
        sum(tensors) OVER (PARTITION BY ts, job ORDER BY depth)
            / sum(tensors) OVER (PARTITION BY ts, job) AS covered
    FROM counted
),
moves AS (
    SELECT date_trunc('day', ts)::TIMESTAMPTZ_NS AS ts, job, count(*) AS path_moves
    FROM decisions
    WHERE kind = 'path' AND ts IS NOT NULL
    GROUP BY 1, job
)
SELECT
    shares.ts,
    shares.job,
    depth,
    tensors,
    covered::DOUBLE AS covered,
    min(depth) FILTER (WHERE covered >= 0.995) OVER (PARTITION BY shares.ts, shares.job) + 1
        AS buffer_tensors,
    moves.path_moves
FROM shares
LEFT JOIN moves ON moves.ts = shares.ts AND moves.job IS NOT DISTINCT FROM shares.job
ORDER BY shares.job, shares.ts, depth

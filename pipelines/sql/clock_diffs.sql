-- name: clock_diffs
-- grain: one collective and one host of its communicator other than the hub
-- inputs: collectives, host_names
-- audits: key(job, comm, seq, op, turn, host); not_null(host, hub, diff_ns)
--
-- What a host's clock says more than the hub's at the end of one collective. Operations after
-- which every rank holds what all others sent end together, however late a rank began. The hub is
-- the communicator's host with most rows: a star of pairs, not all pairs. A collective belongs to
-- the day of its latest start, so rows that a wrong clock put into the day before still meet the
-- others. A median needs no more than some thousand collectives: they are thinned by number.
WITH ended AS (
    SELECT
        coalesce(job, '') AS job,
        comm,
        seq,
        op,
        coalesce(host_names.name, collectives.host) AS host,
        coalesce(comm_rank, rank) AS member,
        epoch_ns(start_ts) AS start_ns,
        epoch_ns(start_ts) + duration_ns AS end_ns
    FROM collectives LEFT JOIN host_names ON host_names.host = collectives.host
    WHERE collectives.host IS NOT NULL
        AND comm IS NOT NULL
        AND seq IS NOT NULL
        AND duration_ns >= 0
        AND op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'barrier')
        AND coalesce(state, 'completed') = 'completed'
        -- Numbers taken from the order of a trace do not match between ranks that began apart.
        AND extra['seq_source'] IS DISTINCT FROM 'trace order'
        AND epoch_ns(start_ts) >= getvariable('day_start_ns') - 86400000000000
        AND epoch_ns(start_ts) < getvariable('day_end_ns')
),
shares AS (
    SELECT job, comm, host, count(*) AS rows, count(*) // count(DISTINCT coalesce(member, -1)) AS share
    FROM ended
    GROUP BY job, comm, host
),
hubs AS (
    SELECT
        job,
        comm,
        first(host ORDER BY rows DESC, host) AS hub,
        greatest(1, ceil(max(share) / getvariable('clock_pair_samples')))::UBIGINT AS every
    FROM shares
    GROUP BY job, comm
    HAVING count(*) > 1
),
-- A communicator's name and numbers come again when a job starts anew: the n-th time on each rank.
turns AS (
    SELECT
        ended.*,
        hub,
        row_number() OVER (
            PARTITION BY ended.job, ended.comm, seq, op, ended.host, member
            ORDER BY start_ns, end_ns
        ) AS turn
    FROM ended JOIN hubs ON hubs.job = ended.job AND hubs.comm = ended.comm
    WHERE hash(seq) % every = 0
),
host_ends AS (
    SELECT
        job,
        comm,
        seq,
        op,
        turn,
        host,
        hub,
        max(start_ns) AS latest_ns,
        quantile_disc(end_ns, 0.5) AS end_ns
    FROM turns
    GROUP BY job, comm, seq, op, turn, host, hub
),
placed AS (
    SELECT
        * REPLACE (max(latest_ns) OVER one AS latest_ns),
        max(end_ns) FILTER (WHERE host = hub) OVER one AS hub_end_ns
    FROM host_ends
    WINDOW one AS (PARTITION BY job, comm, seq, op, turn)
)
SELECT
    job,
    comm,
    seq,
    op,
    turn,
    host,
    hub,
    end_ns,
    hub_end_ns,
    end_ns - hub_end_ns AS diff_ns
FROM placed
WHERE host <> hub
    AND hub_end_ns IS NOT NULL
    AND latest_ns >= getvariable('day_start_ns')

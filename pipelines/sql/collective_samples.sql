-- name: collective_samples
-- grain: one measured collective on one rank
-- inputs: collectives, host_names, host_clocks
-- audits: not_null(collective, start_ns, end_ns, duration_ns); range(duration_ns, 1, ..)
--
-- Measured: its start and duration are known. An enqueue time alone, the mark of an empty dump and
-- the averages that a benchmark prints are none. Times are on the reference clock; rows from 24
-- hours before the window until an hour after it, for what straddles its end.
--
-- One row where two sources saw the same collective, from the one with the better clock: the
-- accelerator's own, then the host's view of the kernel, then the rest. A row without a number or
-- communicator cannot be matched and is a collective by itself. Numbers begin anew when a job
-- restarts: a second run of one number is another collective.
WITH timed AS (
    SELECT
        collectives.* REPLACE (coalesce(host_names.name, collectives.host) AS host),
        coalesce(comm_rank, rank) AS member,
        epoch_ns(start_ts) - coalesce(host_clocks.offset_ns, 0) AS start_ns,
        epoch_ns(start_ts) - coalesce(host_clocks.offset_ns, 0) + duration_ns AS end_ns,
        CASE
            WHEN extra['timing_source'] = 'kernel_gpu' THEN 0
            -- A kernel's name: Kineto and Nsight have it from the device's own records.
            WHEN lower(extra['event']) LIKE '%kernel%' THEN 0
            WHEN extra['timing_source'] = 'kernel_cpu' THEN 1
            ELSE 2
        END AS clock
    FROM collectives
    LEFT JOIN host_names ON host_names.host = collectives.host
    LEFT JOIN host_clocks
        ON host_clocks.host = coalesce(host_names.name, collectives.host)
        AND epoch_ns(start_ts) >= host_clocks.from_ns
        AND epoch_ns(start_ts) < host_clocks.to_ns
    WHERE op IS NOT NULL
        AND op <> 'empty_dump'
        AND duration_ns > 0
        AND start_ts IS NOT NULL
        AND extra['program'] IS NULL
),
keyed AS (
    SELECT
        *,
        CASE
            WHEN comm IS NOT NULL AND seq IS NOT NULL THEN hash(job, comm, seq, op)
            ELSE hash(
                job, comm, seq, op, host, rank, member, start_ns, duration_ns, message_bytes,
                extra['comm_pointer']
            )
        END AS key
    FROM timed
    WHERE start_ns >= getvariable('impact_from_ns') - 86_400_000_000_000
        AND start_ns < getvariable('impact_to_ns') + 3_600_000_000_000
),
spaced AS (
    -- A minute after all that is known of a number has ended: clocks and traces differ by less,
    -- a restart takes longer.
    SELECT
        *,
        start_ns > 60_000_000_000 + max(end_ns) OVER (
            PARTITION BY key ORDER BY start_ns, duration_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS anew
    FROM keyed
),
counted AS (
    SELECT
        *,
        coalesce(sum(anew::INTEGER) OVER (
            PARTITION BY key ORDER BY start_ns, duration_ns
            RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ), 0) AS run
    FROM spaced
)
SELECT
    job,
    comm,
    seq,
    op,
    rank,
    comm_rank,
    member,
    host,
    comm_size,
    -- A size or algorithm that only the other source knows.
    max(message_bytes) OVER same AS message_bytes,
    max(algorithm) OVER same AS algorithm,
    duration_ns,
    start_ns,
    end_ns,
    hash(key, run) AS collective,
    -- Whose compute kernels may overlap it: those of the same rank of the same job.
    CASE WHEN rank IS NOT NULL THEN hash(coalesce(job, ''), rank) END AS device
FROM counted
WINDOW same AS (
    PARTITION BY key, run, member, CASE WHEN member IS NULL THEN hash(host, start_ns) END
)
QUALIFY row_number() OVER (
    PARTITION BY key, run, member, CASE WHEN member IS NULL THEN hash(host, start_ns) END
    ORDER BY clock, message_bytes IS NULL, start_ns, duration_ns, message_bytes, source, rank
) = 1

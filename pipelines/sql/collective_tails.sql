-- name: collective_tails
-- grain: one collective of the window on one rank
-- inputs: collective_samples, collective_expected, busy_spans
-- audits: range(exposed_ns, 0, ..); range(lost_ns, 0, ..); range(wait_ns, 0, ..)
--
-- What of its time the rank had nothing else to do. Where a trace watched its device for all of
-- it: exposed_ns is what no compute kernel overlaps, lost_ns is that of its tail, the time beyond
-- the expectation. Else both are the time beyond the expectation. A rank's wait for a slower one
-- comes before the transfer: the tail is the end of the kernel.
WITH tails AS (
    SELECT
        samples.*,
        expected.transfer_ns,
        expected.expected_ns,
        expected.excess_ns,
        expected.episode_id,
        expected.straggler_rank,
        samples.duration_ns - expected.transfer_ns AS wait_ns,
        samples.end_ns - expected.excess_ns AS tail_ns
    FROM collective_samples AS samples
    JOIN collective_expected AS expected ON expected.collective = samples.collective
    WHERE samples.start_ns >= getvariable('impact_from_ns')
        AND samples.start_ns < getvariable('impact_to_ns')
),
-- ASOF joins drop rows without a device: those are never watched.
watched AS (
    SELECT tails.*
    FROM tails
    ASOF JOIN (FROM busy_spans WHERE kind = 'traced') AS traced
        ON traced.device = tails.device AND traced.start_ns <= tails.start_ns
    WHERE traced.end_ns >= tails.end_ns
),
at_start AS (
    SELECT watched.*, covered_ns(busy, watched.start_ns) AS busy_at_start
    FROM watched
    ASOF LEFT JOIN (FROM busy_spans WHERE kind = 'compute') AS busy
        ON busy.device = watched.device AND busy.start_ns <= watched.start_ns
),
at_tail AS (
    SELECT at_start.*, covered_ns(busy, coalesce(at_start.tail_ns, at_start.end_ns)) AS busy_at_tail
    FROM at_start
    ASOF LEFT JOIN (FROM busy_spans WHERE kind = 'compute') AS busy
        ON busy.device = at_start.device
        AND busy.start_ns <= coalesce(at_start.tail_ns, at_start.end_ns)
),
at_end AS (
    SELECT at_tail.*, covered_ns(busy, at_tail.end_ns) AS busy_at_end
    FROM at_tail
    ASOF LEFT JOIN (FROM busy_spans WHERE kind = 'compute') AS busy
        ON busy.device = at_tail.device AND busy.start_ns <= at_tail.end_ns
)
SELECT
    * EXCLUDE (busy_at_start, busy_at_tail, busy_at_end),
    duration_ns - (busy_at_end - busy_at_start) AS exposed_ns,
    end_ns - tail_ns - (busy_at_end - busy_at_tail) AS lost_ns
FROM at_end
UNION ALL
SELECT *, excess_ns, excess_ns
FROM tails
WHERE NOT EXISTS (
    FROM watched
    WHERE watched.collective = tails.collective
        AND watched.device = tails.device
        AND watched.start_ns = tails.start_ns
)

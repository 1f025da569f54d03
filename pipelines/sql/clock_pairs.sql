-- name: clock_pairs
-- grain: one pair of hosts, one block of time; block -1 is the whole day
-- inputs: clock_diffs
-- audits: key(host, hub, block); not_null(host, hub, diff_ns); range(samples, 1, ..)
--
-- Medians of clock_diffs and an interval that holds the median 95 times in 100 (order statistics:
-- the ranks n/2 -+ 0.98 sqrt(n); all samples where they are few). Blocks are of equal length by the
-- hub's clock; what is before the day by that clock counts to the first.
WITH blocks AS (
    SELECT
        host,
        hub,
        diff_ns,
        greatest(
            0, (hub_end_ns - getvariable('day_start_ns')) // getvariable('clock_block_ns')
        ) AS block
    FROM clock_diffs
),
cut AS (
    FROM blocks
    UNION ALL
    SELECT * REPLACE (-1 AS block) FROM blocks
),
sorted AS (
    SELECT host, hub, block, list_sort(list(diff_ns)) AS diffs
    FROM cut
    GROUP BY host, hub, block
)
SELECT
    host,
    hub,
    block::INTEGER AS block,
    len(diffs) AS samples,
    diffs[(len(diffs) + 1) // 2] AS diff_ns,
    diffs[greatest(1, floor(len(diffs) / 2 - 0.98 * sqrt(len(diffs)))::BIGINT)] AS low_ns,
    diffs[least(len(diffs), ceil(len(diffs) / 2 + 0.98 * sqrt(len(diffs)))::BIGINT + 1)] AS high_ns,
    -- The middle half: how much one collective's ends differ.
    diffs[(3 * len(diffs) + 3) // 4] - diffs[(len(diffs) + 3) // 4] AS spread_ns
FROM sorted
ORDER BY host, hub, block

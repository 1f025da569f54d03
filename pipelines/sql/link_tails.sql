-- name: link_tails
-- grain: one run of one port, by kind
-- inputs: runs
-- audits: not_null(kind, link, start_ns, end_ns, last)
--
-- Which runs are of each port's last stretch of a kind: runs still to come may join them, and no
-- others, by the rule that joins them in link_stretches. A `lost` row goes with the wait that it
-- ends.
WITH gaps AS (
    SELECT *, start_ns - lag(end_ns) OVER same AS gap_ns
    FROM runs
    WHERE kind <> 'lost'
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns)
),
numbered AS (
    SELECT
        *,
        sum((NOT joins(gap_ns, first_interval_s, clear_before))::INTEGER) OVER same AS stretch
    FROM gaps
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns ROWS UNBOUNDED PRECEDING)
),
marked AS (
    SELECT
        * EXCLUDE (gap_ns, stretch),
        stretch = max(stretch) OVER (PARTITION BY kind, link) AS last
    FROM numbered
)
SELECT * FROM marked
UNION ALL BY NAME
SELECT
    *,
    EXISTS (
        FROM marked
        WHERE marked.kind = 'wait' AND marked.link = runs.link AND marked.end_ns = runs.end_ns
            AND marked.last
    ) AS last
FROM runs
WHERE kind = 'lost'
ORDER BY kind, link, start_ns, end_ns

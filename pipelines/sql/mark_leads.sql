-- name: mark_leads
-- grain: one port with a reported wait; and one row for all of them, without a link
-- inputs: link_stretches
-- audits: key(link)
--
-- How much earlier than waiting (or a pause of the network) marks reach the reported level in one
-- stretch: positive where marks come first. Median over the stretches that have both, with the order
-- statistics that bound it at 95 % (normal approximation of the sign test); null where no stretch
-- has both, bounds also where there are too few. No finer than the interval between samples.
WITH leads AS (
    SELECT
        link,
        marks_from_ns IS NOT NULL AS marked,
        wait_from_ns IS NOT NULL AS waited,
        (wait_from_ns - marks_from_ns) / 1e9 AS lead_s
    FROM link_stretches
    WHERE kind = 'wait'
),
counted AS (
    SELECT
        link,
        count(*) AS stretches,
        count(*) FILTER (WHERE marked) AS marked,
        count(*) FILTER (WHERE waited) AS waited,
        count(lead_s) AS paired,
        median(lead_s) AS lead_s,
        list_sort(list(lead_s) FILTER (WHERE lead_s IS NOT NULL)) AS leads,
        floor((count(lead_s) + 1 - 1.96 * sqrt(count(lead_s))) / 2)::BIGINT AS rank
    FROM leads
    GROUP BY GROUPING SETS ((link), ())
)
SELECT
    * EXCLUDE (leads, rank),
    CASE WHEN rank >= 1 THEN leads[rank] END AS low_s,
    CASE WHEN rank >= 1 THEN leads[paired + 1 - rank] END AS high_s
FROM counted
WHERE stretches > 0
ORDER BY link NULLS LAST

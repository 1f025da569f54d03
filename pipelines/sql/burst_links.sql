-- name: burst_links
-- grain: one link whose load varies
-- inputs: link_rates
-- audits: key(link); not_null(interval_s); range(samples, 32, ..)
--
-- What never carries a fiftieth of its own rate, or where that is not known 1 Gb/s, has no burst.
SELECT link, count(*) AS samples, median(interval_s) AS interval_s
FROM link_rates
WHERE tx_gbps IS NOT NULL
GROUP BY link
HAVING count(*) >= 32 AND coalesce(max(utilization) >= 0.02, max(tx_gbps) >= 1.0)
ORDER BY link

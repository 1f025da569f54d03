-- name: busy_spans
-- grain: one stretch in which a rank's device computed, or in which a trace watched it
-- inputs: gpu_busy, host_names, host_clocks
-- audits: key(kind, device, start_ns); not_null(kind, device, start_ns, end_ns, before_ns)
--
-- Stretches that touch are one. before_ns is the time of the stretches of that kind before it: the
-- time covered up to any moment is that of the last stretch begun and what has passed of it.
WITH spans AS (
    SELECT
        kind,
        hash(coalesce(job, ''), rank) AS device,
        epoch_ns(start_ts) - coalesce(host_clocks.offset_ns, 0) AS start_ns,
        epoch_ns(end_ts) - coalesce(host_clocks.offset_ns, 0) AS end_ns
    FROM gpu_busy
    LEFT JOIN host_names ON host_names.host = gpu_busy.host
    LEFT JOIN host_clocks
        ON host_clocks.host = coalesce(host_names.name, gpu_busy.host)
        AND epoch_ns(start_ts) >= host_clocks.from_ns
        AND epoch_ns(start_ts) < host_clocks.to_ns
    WHERE rank IS NOT NULL AND end_ts > start_ts
),
marked AS (
    SELECT
        *,
        coalesce(start_ns > max(end_ns) OVER (
            PARTITION BY kind, device ORDER BY start_ns, end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS anew
    FROM spans
),
counted AS (
    SELECT
        *,
        sum(anew::INTEGER) OVER (
            PARTITION BY kind, device ORDER BY start_ns, end_ns
            RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS island
    FROM marked
),
merged AS (
    SELECT kind, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM counted
    GROUP BY kind, device, island
)
SELECT
    *,
    coalesce(sum(end_ns - start_ns) OVER (
        PARTITION BY kind, device ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0)::BIGINT AS before_ns
FROM merged

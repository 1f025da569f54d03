-- name: layer_statistics
-- grain: one layer, or one tenth of the depth, in one window of 1000 steps of one run on one UTC day
-- inputs: layer_gradients
-- audits: key(ts, job, run, kind, layer, depth, first_step); not_null(kind, steps)
-- audits: range(share, 0, 1); range(norm_median, 0, ..); range(density, 0, 1)
--
-- What the decision of bits per layer rests on (C3): where the gradient is, by norm and by norm per
-- element, and whether it grows. A layer whose gradient is sharded has the root of the sum of its
-- shards' squares; a whole gradient is the same on all ranks, and one rank speaks. A step that a
-- run came back to after a restart counts as it was the last time. Norms that are no number are
-- left out and counted. trend is the median of the window's later half over its earlier half, less
-- one: above 0 the layer's norm grows.
WITH last_time AS (
    SELECT *, extra['scope'] = 'shard' AS shard, extra['rank'] AS on_rank
    FROM layer_gradients
    WHERE step IS NOT NULL AND layer IS NOT NULL AND norm IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY job, run, step, layer, CASE WHEN extra['scope'] = 'shard' THEN on_rank END
        ORDER BY ts DESC, on_rank, norm, elements, depth, density, source
    ) = 1
),
whole AS (
    SELECT
        date_trunc('day', max(ts))::TIMESTAMPTZ_NS AS ts,
        job,
        run,
        step,
        layer,
        min(depth) AS depth,
        sum(elements)::BIGINT AS elements,
        steady_sum(list(norm * norm)) AS square,
        steady_sum(list(density * elements)) / nullif(sum(elements), 0) AS density,
        bool_and(isfinite(norm)) AS finite
    FROM last_time
    GROUP BY job, run, step, layer
),
grouped AS (
    SELECT ts, job, run, step, 'layer' AS kind, layer, depth, elements, square, density, finite
    FROM whole
    UNION ALL
    SELECT
        max(ts),
        job,
        run,
        step,
        'depth',
        NULL,
        least(floor(depth * 10), 9) / 10,
        sum(elements)::BIGINT,
        steady_sum(list(square)),
        steady_sum(list(density * elements)) / nullif(sum(elements), 0),
        bool_and(finite)
    FROM whole
    WHERE depth IS NOT NULL
    GROUP BY job, run, step, least(floor(depth * 10), 9)
),
totals AS (
    SELECT job, run, step, steady_sum(list(square)) AS total
    FROM whole
    WHERE finite
    GROUP BY job, run, step
),
placed AS (
    SELECT
        grouped.*,
        CASE WHEN finite THEN sqrt(square) END AS norm,
        CASE WHEN finite THEN sqrt(square / nullif(elements, 0)) END AS per_element,
        CASE WHEN finite THEN square / nullif(total, 0) END AS share,
        grouped.step // 1000 * 1000 AS first_step
    FROM grouped
    LEFT JOIN totals
        ON totals.job IS NOT DISTINCT FROM grouped.job
        AND totals.run IS NOT DISTINCT FROM grouped.run
        AND totals.step = grouped.step
),
halved AS (
    SELECT
        *,
        median(step) OVER (PARTITION BY ts, job, run, kind, layer, depth, first_step) AS middle
    FROM placed
)
SELECT
    ts,
    job,
    run,
    kind,
    layer,
    depth::DOUBLE AS depth,
    first_step,
    count(*) AS steps,
    max(elements) AS elements,
    median(norm) AS norm_median,
    quantile_cont(norm, 0.1) AS norm_p10,
    quantile_cont(norm, 0.9) AS norm_p90,
    median(per_element) AS norm_per_element,
    median(share) AS share,
    median(density) AS density,
    median(norm) FILTER (WHERE step > middle)
        / nullif(median(norm) FILTER (WHERE step < middle), 0) - 1 AS trend,
    count(*) FILTER (WHERE NOT finite) AS not_finite
FROM halved
GROUP BY ts, job, run, kind, layer, depth, first_step
ORDER BY job, run, first_step, kind, depth, layer

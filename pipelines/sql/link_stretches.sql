-- name: link_stretches
-- grain: one stretch of one port, by kind
-- inputs: runs, last_known
-- audits: key(kind, link, start_ns); not_null(end_ns)
--
-- Runs of all chunks, joined over the edges of chunks, then over gaps up to the maximum. A wait is
-- a stretch only if it once lasts for as many intervals as the rules want, without one known to be
-- clear: single samples do not add up to one, however close they are.
WITH gaps AS (
    SELECT *, start_ns - lag(end_ns) OVER same AS gap_ns
    FROM runs
    WHERE kind <> 'lost'
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns)
),
edges AS (
    SELECT
        *,
        sum((kind <> 'wait' OR coalesce(clear_before OR gap_ns > held_ns(first_interval_s), true))
            ::INTEGER) OVER same AS run
    FROM gaps
    WINDOW same AS (PARTITION BY kind, link ORDER BY start_ns ROWS UNBOUNDED PRECEDING)
),
-- What one run would be if it were not cut at the edges of chunks.
whole AS (
    SELECT kind, link, run, sum(samples) AS unbroken FROM edges GROUP BY kind, link, run
),
numbered AS (
    SELECT
        edges.*,
        whole.unbroken,
        sum((NOT joins(gap_ns, first_interval_s, clear_before))::INTEGER) OVER same AS stretch
    FROM edges JOIN whole ON whole.kind = edges.kind AND whole.link = edges.link
        AND whole.run = edges.run
    WINDOW same AS (
        PARTITION BY edges.kind, edges.link ORDER BY start_ns ROWS UNBOUNDED PRECEDING
    )
),
summed AS (
    SELECT
        kind,
        link,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        sum(samples)::BIGINT AS samples,
        max(unbroken)::BIGINT AS unbroken,
        max(peak_level) AS peak_level,
        sum(wait_ns)::DOUBLE / sum(wait_known_ns) AS mean_wait_fraction,
        max(peak_utilization) AS peak_utilization,
        sum(utilization_ns)::DOUBLE / sum(utilization_known_ns) AS mean_utilization,
        sum(bytes)::BIGINT AS bytes,
        sum(errors)::BIGINT AS errors,
        sum(marks) * 1e9 / sum(marks_known_ns) AS mark_rate,
        sum(discards) * 1e9 / sum(discards_known_ns) AS discard_rate,
        sum(by_wait) AS by_wait,
        sum(by_pause) AS by_pause,
        sum(by_marks) AS by_marks,
        sum(by_discards) AS by_discards,
        min(wait_from_ns) AS wait_from_ns,
        min(marks_from_ns) AS marks_from_ns
    FROM numbered
    GROUP BY kind, link, stretch
),
kept AS (
    SELECT
        * EXCLUDE (unbroken, by_wait, by_pause, by_marks, by_discards),
        -- What held it at its level most of the time; ties go to the first.
        CASE
            WHEN kind <> 'wait' OR greatest(by_wait, by_pause, by_marks, by_discards) IS NULL
                THEN NULL
            WHEN by_wait >= greatest(by_pause, by_marks, by_discards) THEN 'wait'
            WHEN by_pause >= greatest(by_marks, by_discards) THEN 'pause'
            WHEN by_marks >= by_discards THEN 'marks'
            ELSE 'discards'
        END AS signal
    FROM summed
    WHERE kind <> 'wait'
        OR (
            unbroken >= getvariable('min_samples')
            AND end_ns - start_ns >= getvariable('min_length_s') * 1e9
        )
)
SELECT
    kept.*,
    kind = 'wait' AND (
        EXISTS (
            FROM runs
            WHERE runs.kind = 'lost' AND runs.link = kept.link AND runs.end_ns = kept.end_ns
        )
        OR EXISTS (
            FROM last_known
            WHERE last_known.link = kept.link AND last_known.known_end_ns = kept.end_ns
        )
    ) AS end_unknown
FROM kept
ORDER BY kind, link, start_ns

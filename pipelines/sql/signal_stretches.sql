-- name: signal_stretches
-- grain: one span between two readings of a port's signal, of kind `signal`
-- inputs: signal_margin, signal_rates, link_stretches
-- audits: key(kind, link, start_ns); not_null(end_ns, errors)
--
-- Spans in which errors that correction left are certain: the rate after correction rose from one
-- reading to the next. (It is mostly a mean since it was cleared, which cannot rise without new
-- errors; that it is still high says nothing of now.) Only where it means, at the port's rate, as
-- many errors a second as make a link sick, and readings are no further apart than 15 minutes:
-- else nobody knows when. Columns are those of other stretches; of `link_stretches` no row is used.
WITH readings AS (
    SELECT
        link,
        effective_ber,
        epoch_ns(ts) AS end_ns,
        lag(effective_ber) OVER same AS before,
        lag(epoch_ns(ts)) OVER same AS start_ns
    FROM signal_margin
    WHERE effective_ber IS NOT NULL
    WINDOW same AS (PARTITION BY link ORDER BY ts)
)
FROM link_stretches WHERE false
UNION ALL BY NAME
SELECT
    'signal' AS kind,
    readings.link,
    start_ns,
    end_ns,
    1 AS samples,
    (effective_ber * bits_s * (end_ns - start_ns) / 1e9)::BIGINT AS errors,
    false AS end_unknown
FROM readings JOIN signal_rates ON signal_rates.link = readings.link
WHERE effective_ber > before AND end_ns - start_ns <= 900_000_000_000
    AND effective_ber * bits_s >= getvariable('sick_errors_per_s')
ORDER BY kind, link, start_ns

-- name: concurrency_minutes
-- grain: one minute
-- inputs: job_runs, link_rates
-- audits: sorted_key(ts); not_null(ts, jobs); range(jobs, 0, ..); range(seconds, 0, 60)
-- audits: range(wait_fraction, 0, 1); range(discard_rate, 0, ..); range(retransmit_rate, 0, ..)
--
-- How many jobs ran in a minute (the mean, rounded) and how all links did in it. An interval
-- counts to the minute of its middle. Means are over links and time, of intervals whose figure is
-- known; *_link_s is how much that is. Sums are of whole billionths: the same in any order.
WITH by_link AS (
    SELECT
        (epoch_ns(ts) - (interval_s * 5e8)::BIGINT) // 60000000000 AS minute,
        link,
        sum((interval_s * 1e9)::HUGEINT) AS known,
        sum((retransmit_rate * interval_s * 1e9)::HUGEINT) AS resent,
        sum((CASE WHEN retransmit_rate IS NOT NULL THEN interval_s * 1e9 END)::HUGEINT) AS resent_s,
        sum((discard_rate * interval_s * 1e9)::HUGEINT) AS dropped,
        sum((CASE WHEN discard_rate IS NOT NULL THEN interval_s * 1e9 END)::HUGEINT) AS dropped_s,
        sum((wait_fraction * interval_s * 1e9)::HUGEINT) AS waited,
        sum((CASE WHEN wait_fraction IS NOT NULL THEN interval_s * 1e9 END)::HUGEINT) AS waited_s
    FROM link_rates
    GROUP BY minute, link
),
by_minute AS (
    SELECT
        minute,
        count(*) AS links,
        least(max(known), 60e9) / 1e9 AS seconds,
        sum(resent) AS resent,
        sum(resent_s) AS resent_s,
        sum(dropped) AS dropped,
        sum(dropped_s) AS dropped_s,
        sum(waited) AS waited,
        sum(waited_s) AS waited_s
    FROM by_link
    GROUP BY minute
),
running AS (
    SELECT
        by_minute.minute,
        sum(
            least(end_ns, (minute + 1) * 60000000000) - greatest(start_ns, minute * 60000000000)
        ) AS job_ns
    FROM by_minute JOIN job_runs
        ON start_ns < (minute + 1) * 60000000000 AND end_ns > minute * 60000000000
    GROUP BY by_minute.minute
)
SELECT
    make_timestamp_ns(by_minute.minute * 60000000000)::TIMESTAMPTZ_NS AS ts,
    round(coalesce(job_ns, 0) / 60e9)::BIGINT AS jobs,
    seconds::DOUBLE AS seconds,
    links,
    (resent / nullif(resent_s, 0))::DOUBLE AS retransmit_rate,
    (resent_s / 1e9)::DOUBLE AS retransmit_link_s,
    (dropped / nullif(dropped_s, 0))::DOUBLE AS discard_rate,
    (dropped_s / 1e9)::DOUBLE AS discard_link_s,
    (waited / nullif(waited_s, 0))::DOUBLE AS wait_fraction,
    (waited_s / 1e9)::DOUBLE AS wait_link_s
FROM by_minute LEFT JOIN running ON running.minute = by_minute.minute
-- Where no job is known at all, that none ran is not known either.
WHERE EXISTS (FROM job_runs)
ORDER BY ts

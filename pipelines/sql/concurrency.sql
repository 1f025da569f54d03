-- name: concurrency
-- grain: one number of concurrent jobs on one UTC day
-- inputs: concurrency_minutes
-- audits: key(ts, jobs); not_null(ts, jobs, seconds); range(jobs, 0, ..)
-- audits: range(wait_fraction, 0, 1)
--
-- Means over all minutes of the day with that many jobs, weighed by links and time; null where no
-- source has the counter.
WITH weighed AS (
    SELECT
        date_trunc('day', ts::TIMESTAMPTZ)::TIMESTAMPTZ_NS AS day,
        jobs,
        steady_sum(list(seconds)) AS seconds,
        steady_sum(list(retransmit_rate * retransmit_link_s)) AS resent,
        steady_sum(list(retransmit_link_s) FILTER (WHERE retransmit_rate IS NOT NULL)) AS resent_s,
        steady_sum(list(discard_rate * discard_link_s)) AS dropped,
        steady_sum(list(discard_link_s) FILTER (WHERE discard_rate IS NOT NULL)) AS dropped_s,
        steady_sum(list(wait_fraction * wait_link_s)) AS waited,
        steady_sum(list(wait_link_s) FILTER (WHERE wait_fraction IS NOT NULL)) AS waited_s
    FROM concurrency_minutes
    GROUP BY day, jobs
)
SELECT
    day AS ts,
    jobs,
    seconds,
    resent / nullif(resent_s, 0) AS retransmit_rate,
    dropped / nullif(dropped_s, 0) AS discard_rate,
    at_most(waited / nullif(waited_s, 0), 1.0) AS wait_fraction
FROM weighed
ORDER BY ts, jobs

-- name: concurrency_knee
-- grain: one signal, over all days
-- inputs: knees
-- audits: key(signal); not_null(signal, verdict); range(p_value, 0, 1)
--
-- What a change point of each signal over the number of jobs says; found outside SQL.
SELECT
    make_timestamp_ns(first_ns)::TIMESTAMPTZ_NS AS ts,
    signal,
    verdict,
    knee_jobs,
    low_jobs,
    high_jobs,
    p_value,
    samples
FROM knees
ORDER BY signal

-- name: bursts
-- grain: one period of one communicator or link on one UTC day
-- inputs: bursts_found
-- audits: key(ts, kind, job, subject, period_s); not_null(subject, kind)
-- audits: range(duty, 0, 1); range(period_s, 0, ..); range(strength, 0, 1)
--
-- bursts_found: pipelines/_bursts.py.
SELECT
    make_timestamp_ns(day_ns)::TIMESTAMPTZ_NS AS ts,
    subject,
    kind,
    period_s,
    duty,
    job,
    low_s,
    high_s,
    strength,
    false_alarm,
    samples,
    interval_s,
    note
FROM bursts_found
ORDER BY kind, subject, job, strength DESC, period_s

-- name: link_beats
-- grain: one communicator that crosses a link, alone or with another one, on one UTC day
-- inputs: beats_found
-- audits: not_null(link, comm, period_s); range(overlap, 0, 1); range(phase, 0, 1)
--
-- beats_found: pipelines/_beats.py.
SELECT
    make_timestamp_ns(day_ns)::TIMESTAMPTZ_NS AS ts,
    link,
    job,
    comm,
    period_s,
    link_period_s,
    other_job,
    other_comm,
    other_period_s,
    overlap,
    phase
FROM beats_found
ORDER BY link, job, comm, other_job, other_comm

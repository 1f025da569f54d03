-- name: desync_verdict
-- grain: one hang of a job
-- inputs: verdicts_found
-- audits: key(incident); not_null(incident, culprits, cause, confidence, reasons)
-- audits: range(dumps, 1, ..); range(explained, 0, waiting)
--
-- verdicts_found: pipelines/_desync.py, from flight_dumps.
SELECT
    make_timestamp_ns(at_ns)::TIMESTAMPTZ_NS AS ts,
    incident,
    job,
    culprits,
    cause,
    confidence,
    waiting,
    explained,
    comm,
    seq,
    op,
    absent,
    dumps,
    reasons
FROM verdicts_found
ORDER BY job, ts, incident

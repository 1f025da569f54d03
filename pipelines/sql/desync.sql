-- name: desync
-- grain: one disagreement of ranks
-- inputs: desync_found
-- audits: not_null(kind, ranks, views)
--
-- desync_found: pipelines/_desync.py, from desync_suspects and flight_dumps.
SELECT
    make_timestamp_ns(at_ns)::TIMESTAMPTZ_NS AS ts,
    job,
    comm,
    seq,
    kind,
    ranks,
    views,
    incident
FROM desync_found
ORDER BY job, comm, seq, kind, incident

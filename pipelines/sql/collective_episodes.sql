-- name: collective_episodes
-- grain: one collective on one rank and one episode it overlaps
-- inputs: collective_samples, episode_spans, episode_jobs
-- audits: not_null(episode_id, collective)
--
-- episode_jobs holds the pairs that cannot belong together: all hosts of the job are known and the
-- episode touches none of them.
SELECT
    samples.job,
    samples.comm,
    samples.seq,
    samples.member,
    samples.op,
    samples.start_ns,
    samples.collective,
    spans.episode_id,
    least(samples.end_ns, spans.end_ns) - greatest(samples.start_ns, spans.start_ns) AS shared_ns
FROM collective_samples AS samples
JOIN episode_spans AS spans
    ON samples.start_ns < spans.end_ns AND samples.end_ns > spans.start_ns
WHERE NOT EXISTS (
    FROM episode_jobs
    WHERE episode_jobs.episode_id = spans.episode_id AND episode_jobs.job = samples.job
)

-- name: link_episodes
-- grain: one congested stretch of one link within one episode
-- inputs: episode_members
-- audits: key(link_episode_id, episode_id); not_null(start_ts, end_ts)
-- audits: range(mean_wait_fraction, 0, 1); range(peak_utilization, 0, 1); range(peak_level, 0, 3)
SELECT
    link_episode_id,
    episode_id,
    link,
    make_timestamp_ns(start_ns)::TIMESTAMPTZ_NS AS start_ts,
    make_timestamp_ns(end_ns)::TIMESTAMPTZ_NS AS end_ts,
    peak_level,
    mean_wait_fraction,
    peak_utilization,
    round(bytes)::BIGINT AS bytes,
    role,
    cause,
    evidence
FROM episode_members
ORDER BY link, start_ts, episode_id

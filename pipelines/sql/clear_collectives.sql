-- name: clear_collectives
-- grain: one collective outside all episodes, of the window and the 24 hours before it
-- inputs: collective_groups, collective_episodes
-- audits: key(collective)
SELECT * EXCLUDE (seq, start_ns, end_ns, members, usual_ns, last_rank)
FROM collective_groups
WHERE start_ns < getvariable('impact_to_ns')
    AND collective NOT IN (SELECT collective FROM collective_episodes)

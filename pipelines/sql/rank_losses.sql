-- name: rank_losses
-- grain: one job and one episode (null: all of them together), by what its ranks waited for
-- inputs: collective_tails, collective_episodes, hit_jobs, busy_spans, job_sizes
-- audits: key(episode_id, job, kind); range(gpu_hours, 0, ..)
--
-- kind lost: the tails of collectives, without what compute kernels of the rank overlap. kind
-- straggler: waiting inside kernels for the rank that came last. Collectives of one rank that run at
-- once are counted once: the union of their spans. Ranks that nobody traced are taken to wait as
-- long as the mean of those seen. Where the global rank is not known, each communicator counts for
-- itself.
WITH seen AS (
    SELECT job, count(DISTINCT rank) AS ranks FROM collective_tails GROUP BY job
),
members AS (
    SELECT job, comm, greatest(max(comm_size), count(DISTINCT member)) / count(DISTINCT member) AS weight
    FROM collective_tails
    WHERE rank IS NULL
    GROUP BY job, comm
),
placed AS (
    SELECT
        tails.job,
        tails.device,
        CASE WHEN tails.rank IS NULL THEN hash(tails.comm, tails.member) ELSE tails.rank END AS who,
        tails.start_ns,
        tails.tail_ns,
        tails.end_ns,
        CASE
            WHEN straggler_rank IS NULL THEN 0
            WHEN straggler_rank = coalesce(tails.rank, comm_rank) THEN 0
            ELSE wait_ns
        END AS wait_ns,
        coalesce(
            CASE
                WHEN tails.rank IS NULL THEN members.weight
                ELSE greatest(job_sizes.ranks, seen.ranks) / seen.ranks
            END,
            1
        ) AS weight,
        touched.episode_id
    FROM collective_tails AS tails
    JOIN collective_episodes AS touched ON touched.collective = tails.collective
    JOIN hit_jobs
        ON hit_jobs.episode_id = touched.episode_id
        AND hit_jobs.job IS NOT DISTINCT FROM touched.job
    LEFT JOIN seen ON seen.job IS NOT DISTINCT FROM tails.job
    LEFT JOIN job_sizes ON job_sizes.job IS NOT DISTINCT FROM tails.job
    LEFT JOIN members
        ON members.job IS NOT DISTINCT FROM tails.job
        AND members.comm IS NOT DISTINCT FROM tails.comm
),
spans AS (
    SELECT 'lost' AS kind, episode_id, job, device, who, weight, tail_ns AS start_ns, end_ns
    FROM placed WHERE tail_ns IS NOT NULL
    UNION ALL
    SELECT 'straggler', episode_id, job, device, who, weight, start_ns, start_ns + wait_ns
    FROM placed
),
every AS (
    FROM spans
    UNION ALL
    SELECT DISTINCT * REPLACE (NULL AS episode_id) FROM spans
),
marked AS (
    SELECT
        *,
        coalesce(start_ns > max(end_ns) OVER (
            PARTITION BY kind, episode_id, job, who ORDER BY start_ns, end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS anew
    FROM every
),
counted AS (
    SELECT
        *,
        sum(anew::INTEGER) OVER (
            PARTITION BY kind, episode_id, job, who ORDER BY start_ns, end_ns
            RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS island
    FROM marked
),
merged AS (
    SELECT
        kind, episode_id, job, device, who, weight,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns
    FROM counted
    GROUP BY kind, episode_id, job, device, who, weight, island
),
begun AS (
    SELECT merged.*, covered_ns(busy, merged.start_ns) AS busy_before_ns
    FROM merged
    ASOF LEFT JOIN (FROM busy_spans WHERE kind = 'compute') AS busy
        ON busy.device = merged.device AND busy.start_ns <= merged.start_ns
),
ended AS (
    SELECT begun.*, covered_ns(busy, begun.end_ns) - busy_before_ns AS busy_ns
    FROM begun
    ASOF LEFT JOIN (FROM busy_spans WHERE kind = 'compute') AS busy
        ON busy.device = begun.device AND busy.start_ns <= begun.end_ns
),
by_rank AS (
    SELECT kind, episode_id, job, weight, sum(end_ns - start_ns - busy_ns) AS idle_ns
    FROM ended
    GROUP BY kind, episode_id, job, who, weight
)
SELECT kind, episode_id, job, steady_sum(list(idle_ns * weight)) / 3.6e12 AS gpu_hours
FROM by_rank
GROUP BY kind, episode_id, job

-- name: link_rates
-- grain: one port, one interval
-- inputs: samples, seed
-- audits: sorted_key(link, ts); not_null(ts, interval_s, link); range(interval_s, 0, ..)
-- audits: range(tx_gbps, 0, ..); range(rx_gbps, 0, ..); range(utilization, 0, 1)
-- audits: range(wait_fraction, 0, 1); range(ecn_rate, 0, ..); range(discard_rate, 0, ..)
-- audits: range(retransmit_rate, 0, ..); range(error_rate, 0, ..); range(level, 0, 3)
--
-- `samples` is sorted by (link, ts), so all windows stream in that order and nothing is sorted;
-- `restarts` says that what comes before a sample is no predecessor.
-- `seed` holds, for each link, what came before: the interval that ends at its first sample here,
-- its level and the time until which that is known.
--
-- A counter that falls is a reset: every figure of that group of counters (the port's own, or
-- the RoCE ones) is unknown for the interval, as is one that is saturated or absent.
-- wait_fraction: ticks of port_xmit_wait times the byte times per tick of that port, over the bytes
-- it could have sent; or the share of time the network paused it (PFC), whichever is more.
-- ecn_rate: packets that arrived marked, and notifications that throttled this sender. (The
-- notifications it sent repeat the marks, coalesced.) out_of_sequence is left out of
-- retransmit_rate: adaptive routing reorders without any loss.
WITH stepped AS (
    SELECT
        *,
        NOT coalesce(lag(link) OVER () = link, false) AS first,
        lag(ts) OVER () AS p_ts,
        lag(tx_bytes) OVER () AS p_tx_bytes,
        lag(rx_bytes) OVER () AS p_rx_bytes,
        lag(wait_ticks) OVER () AS p_wait_ticks,
        lag(discards) OVER () AS p_discards,
        lag(pause_us) OVER () AS p_pause_us,
        lag(errors) OVER () AS p_errors,
        lag(errors_present) OVER () AS p_errors_present,
        lag(marks) OVER () AS p_marks,
        lag(marks_present) OVER () AS p_marks_present,
        lag(resent) OVER () AS p_resent,
        lag(resent_present) OVER () AS p_resent_present
    FROM samples
),
checked AS (
    SELECT
        *,
        NOT first AND NOT restarts AS follows,
        CASE WHEN NOT first AND NOT restarts THEN (epoch_ns(ts) - epoch_ns(p_ts)) / 1e9 END
            AS span_s,
        errors_present = p_errors_present AS same_errors,
        marks_present = p_marks_present AS same_marks,
        resent_present = p_resent_present AS same_resent
    FROM stepped
),
broken AS (
    SELECT
        *,
        NOT follows OR fell(tx_bytes, p_tx_bytes) OR fell(rx_bytes, p_rx_bytes)
            OR fell(wait_ticks, p_wait_ticks) OR fell(discards, p_discards)
            OR (same_errors AND fell(errors, p_errors)) AS port_reset,
        NOT follows OR (same_marks AND fell(marks, p_marks))
            OR (same_resent AND fell(resent, p_resent)) AS roce_reset
    FROM checked
),
risen AS (
    SELECT
        link,
        ts,
        first,
        span_s,
        data_rate_bytes_s,
        rise(tx_bytes, p_tx_bytes, port_reset) AS tx,
        rise(rx_bytes, p_rx_bytes, port_reset) AS rx,
        rise(wait_ticks, p_wait_ticks, port_reset) * tick AS waited,
        rise(pause_us, p_pause_us, NOT follows) AS paused_us,
        rise(discards, p_discards, port_reset) AS dropped,
        rise(errors, p_errors, port_reset OR NOT same_errors) AS errors,
        rise(marks, p_marks, roce_reset OR NOT same_marks) AS marked,
        rise(resent, p_resent, roce_reset OR NOT same_resent) AS resent
    FROM broken
),
figures AS (
    SELECT
        link,
        ts,
        first,
        span_s AS interval_s,
        -- Twice the data rate is no skew between two reads: the counter is not what it seems.
        CASE WHEN tx > 2 * data_rate_bytes_s * span_s THEN NULL ELSE tx * 8 / 1e9 / span_s END
            AS tx_gbps,
        CASE WHEN rx > 2 * data_rate_bytes_s * span_s THEN NULL ELSE rx * 8 / 1e9 / span_s END
            AS rx_gbps,
        CASE
            WHEN tx > 2 * data_rate_bytes_s * span_s THEN NULL
            ELSE at_most(tx / (data_rate_bytes_s * span_s), 1.0)
        END AS utilization,
        at_most(
            greatest(waited / (data_rate_bytes_s * span_s), paused_us / 1e6 / span_s), 1.0
        ) AS wait_fraction,
        marked / span_s AS ecn_rate,
        dropped / span_s AS discard_rate,
        resent / span_s AS retransmit_rate,
        errors / span_s AS error_rate,
        -- Marks as a share of the full-size (4096 byte) packets the port could carry.
        marked / span_s / (data_rate_bytes_s / 4096) AS mark_share
    FROM risen
),
signals AS (
    SELECT
        *,
        epoch_ns(ts) AS end_ns,
        epoch_ns(ts) - (interval_s * 1e9)::BIGINT AS start_ns,
        greatest(
            reaches(wait_fraction, getvariable('enter_wait')),
            reaches(mark_share, getvariable('enter_marks')),
            reaches(discard_rate, getvariable('enter_discards'))
        ) AS up,
        greatest(
            reaches(wait_fraction, getvariable('exit_wait')),
            reaches(mark_share, getvariable('exit_marks')),
            reaches(discard_rate, getvariable('exit_discards'))
        ) AS down,
        -- No discards is no proof that nothing waits.
        interval_s IS NOT NULL AND (
            wait_fraction IS NOT NULL OR mark_share IS NOT NULL
            OR reaches(discard_rate, getvariable('enter_discards')) > 0
        ) AS known
    FROM figures
),
ends AS (
    SELECT
        *,
        last_value(CASE WHEN known THEN end_ns WHEN first THEN 0 END IGNORE NULLS)
            OVER (ROWS UNBOUNDED PRECEDING) AS known_end_ns
    FROM signals
),
gaps AS (
    SELECT *, CASE WHEN NOT first THEN lag(known_end_ns) OVER () ELSE 0 END AS p_known_end_ns
    FROM ends
),
steps AS (
    SELECT
        *,
        known AND p_known_end_ns > 0 AND start_ns - p_known_end_ns > held_ns(interval_s) AS hole
    FROM gaps
),
-- Each level is a switch: 1 on, 0 off, -1 as it was when this chunk began.
switches AS (
    SELECT
        *,
        last_value(
            CASE
                WHEN known AND up >= 1 THEN 1
                WHEN known AND (down < 1 OR hole) THEN 0
                WHEN first THEN -1
            END IGNORE NULLS
        ) OVER (ROWS UNBOUNDED PRECEDING) AS s1,
        last_value(
            CASE
                WHEN known AND up >= 2 THEN 1
                WHEN known AND (down < 2 OR hole) THEN 0
                WHEN first THEN -1
            END IGNORE NULLS
        ) OVER (ROWS UNBOUNDED PRECEDING) AS s2,
        last_value(
            CASE
                WHEN known AND up >= 3 THEN 1
                WHEN known AND (down < 3 OR hole) THEN 0
                WHEN first THEN -1
            END IGNORE NULLS
        ) OVER (ROWS UNBOUNDED PRECEDING) AS s3,
        -- What is known before this ended too early to still hold at the first known interval.
        last_value(
            CASE
                WHEN known AND p_known_end_ns = 0 THEN start_ns - held_ns(interval_s)
                WHEN first THEN 0
            END IGNORE NULLS
        ) OVER (ROWS UNBOUNDED PRECEDING) AS holds_from_ns
    FROM steps
),
rows AS (
    SELECT
        switches.ts,
        CASE WHEN first THEN seed.interval_s ELSE switches.interval_s END AS interval_s,
        switches.link,
        CASE WHEN first THEN seed.tx_gbps ELSE switches.tx_gbps END AS tx_gbps,
        CASE WHEN first THEN seed.rx_gbps ELSE switches.rx_gbps END AS rx_gbps,
        CASE WHEN first THEN seed.utilization ELSE switches.utilization END AS utilization,
        CASE WHEN first THEN seed.wait_fraction ELSE switches.wait_fraction END AS wait_fraction,
        CASE WHEN first THEN seed.ecn_rate ELSE switches.ecn_rate END AS ecn_rate,
        CASE WHEN first THEN seed.discard_rate ELSE switches.discard_rate END AS discard_rate,
        CASE WHEN first THEN seed.retransmit_rate ELSE switches.retransmit_rate END AS retransmit_rate,
        CASE WHEN first THEN seed.error_rate ELSE switches.error_rate END AS error_rate,
        CASE
            WHEN first THEN seed.first_level
            WHEN known AND least(s1, s2, s3) >= 0 THEN s1 + s2 + s3
            WHEN known THEN (
                CASE WHEN s1 >= 0 THEN s1 ELSE holds(seed.level, 1, seed.known_end_ns, holds_from_ns) END
                + CASE WHEN s2 >= 0 THEN s2 ELSE holds(seed.level, 2, seed.known_end_ns, holds_from_ns) END
                + CASE WHEN s3 >= 0 THEN s3 ELSE holds(seed.level, 3, seed.known_end_ns, holds_from_ns) END
            )
        END::INTEGER AS level
    FROM switches
    -- Few rows need what came before: the others have no key and pass by.
    LEFT JOIN seed ON seed.link = CASE WHEN first OR least(s1, s2, s3) < 0 THEN switches.link END
)
SELECT * FROM rows WHERE interval_s > 0

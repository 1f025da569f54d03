-- name: link_rates
-- grain: one port, one interval
-- inputs: samples, seed
-- audits: sorted_key(link, ts); not_null(ts, interval_s, link); range(interval_s, 0, ..)
-- audits: range(tx_gbps, 0, ..); range(rx_gbps, 0, ..); range(utilization, 0, 1)
-- audits: range(wait_fraction, 0, 1); range(ecn_rate, 0, ..); range(discard_rate, 0, ..)
-- audits: range(retransmit_rate, 0, ..); range(error_rate, 0, ..); range(level, 0, 3)
--
-- `samples` is sorted by (link, ts), so all windows stream in that order and nothing is sorted.
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
        coalesce(lag(link) OVER () = link, false) AS follows,
        lag(ts) OVER () AS p_ts,
        lag(tx_bytes) OVER () AS p_tx_bytes,
        lag(rx_bytes) OVER () AS p_rx_bytes,
        lag(tx_packets) OVER () AS p_tx_packets,
        lag(rx_packets) OVER () AS p_rx_packets,
        lag(wait_ticks) OVER () AS p_wait_ticks,
        lag(discards) OVER () AS p_discards,
        lag(symbol_errors) OVER () AS p_symbol_errors,
        lag(receive_errors) OVER () AS p_receive_errors,
        lag(retrains) OVER () AS p_retrains,
        lag(downs) OVER () AS p_downs,
        lag(integrity_errors) OVER () AS p_integrity_errors,
        lag(ecn_marked) OVER () AS p_ecn_marked,
        lag(cnp_handled) OVER () AS p_cnp_handled,
        lag(sequence_errors) OVER () AS p_sequence_errors,
        lag(implied_naks) OVER () AS p_implied_naks,
        lag(ack_timeouts) OVER () AS p_ack_timeouts,
        lag(rnr_retries) OVER () AS p_rnr_retries,
        lag(adaptive_retransmissions) OVER () AS p_adaptive_retransmissions,
        lag(pause_us) OVER () AS p_pause_us
    FROM samples
),
paired AS (
    SELECT
        link,
        ts,
        NOT follows AS first,
        CASE
            WHEN interval_s IS NOT NULL THEN nullif(interval_s, 0)
            WHEN follows THEN (epoch_ns(ts) - epoch_ns(p_ts)) / 1e9
        END AS span_s,
        data_rate_bytes_s,
        tick,
        tx_bytes,
        rx_bytes,
        tx_packets,
        rx_packets,
        wait_ticks,
        discards,
        symbol_errors,
        receive_errors,
        retrains,
        downs,
        integrity_errors,
        ecn_marked,
        cnp_handled,
        sequence_errors,
        implied_naks,
        ack_timeouts,
        rnr_retries,
        adaptive_retransmissions,
        pause_us,
        CASE WHEN interval_s IS NOT NULL THEN tx_bytes * 0 WHEN follows THEN p_tx_bytes END AS p_tx_bytes,
        CASE WHEN interval_s IS NOT NULL THEN rx_bytes * 0 WHEN follows THEN p_rx_bytes END AS p_rx_bytes,
        CASE WHEN interval_s IS NOT NULL THEN tx_packets * 0 WHEN follows THEN p_tx_packets END AS p_tx_packets,
        CASE WHEN interval_s IS NOT NULL THEN rx_packets * 0 WHEN follows THEN p_rx_packets END AS p_rx_packets,
        CASE WHEN interval_s IS NOT NULL THEN wait_ticks * 0 WHEN follows THEN p_wait_ticks END AS p_wait_ticks,
        CASE WHEN interval_s IS NOT NULL THEN discards * 0 WHEN follows THEN p_discards END AS p_discards,
        CASE WHEN interval_s IS NOT NULL THEN symbol_errors * 0 WHEN follows THEN p_symbol_errors END AS p_symbol_errors,
        CASE WHEN interval_s IS NOT NULL THEN receive_errors * 0 WHEN follows THEN p_receive_errors END AS p_receive_errors,
        CASE WHEN interval_s IS NOT NULL THEN retrains * 0 WHEN follows THEN p_retrains END AS p_retrains,
        CASE WHEN interval_s IS NOT NULL THEN downs * 0 WHEN follows THEN p_downs END AS p_downs,
        CASE WHEN interval_s IS NOT NULL THEN integrity_errors * 0 WHEN follows THEN p_integrity_errors END AS p_integrity_errors,
        CASE WHEN interval_s IS NOT NULL THEN ecn_marked * 0 WHEN follows THEN p_ecn_marked END AS p_ecn_marked,
        CASE WHEN interval_s IS NOT NULL THEN cnp_handled * 0 WHEN follows THEN p_cnp_handled END AS p_cnp_handled,
        CASE WHEN interval_s IS NOT NULL THEN sequence_errors * 0 WHEN follows THEN p_sequence_errors END AS p_sequence_errors,
        CASE WHEN interval_s IS NOT NULL THEN implied_naks * 0 WHEN follows THEN p_implied_naks END AS p_implied_naks,
        CASE WHEN interval_s IS NOT NULL THEN ack_timeouts * 0 WHEN follows THEN p_ack_timeouts END AS p_ack_timeouts,
        CASE WHEN interval_s IS NOT NULL THEN rnr_retries * 0 WHEN follows THEN p_rnr_retries END AS p_rnr_retries,
        CASE WHEN interval_s IS NOT NULL THEN adaptive_retransmissions * 0 WHEN follows THEN p_adaptive_retransmissions END AS p_adaptive_retransmissions,
        CASE WHEN interval_s IS NOT NULL THEN pause_us * 0 WHEN follows THEN p_pause_us END AS p_pause_us
    FROM stepped
),
checked AS (
    SELECT
        *,
        fell(tx_bytes, p_tx_bytes)
            OR fell(rx_bytes, p_rx_bytes)
            OR fell(tx_packets, p_tx_packets)
            OR fell(rx_packets, p_rx_packets)
            OR fell(wait_ticks, p_wait_ticks)
            OR fell(discards, p_discards)
            OR fell(symbol_errors, p_symbol_errors)
            OR fell(receive_errors, p_receive_errors)
            OR fell(retrains, p_retrains)
            OR fell(downs, p_downs)
            OR fell(integrity_errors, p_integrity_errors) AS port_reset,
        fell(ecn_marked, p_ecn_marked)
            OR fell(cnp_handled, p_cnp_handled)
            OR fell(sequence_errors, p_sequence_errors)
            OR fell(implied_naks, p_implied_naks)
            OR fell(ack_timeouts, p_ack_timeouts)
            OR fell(rnr_retries, p_rnr_retries)
            OR fell(adaptive_retransmissions, p_adaptive_retransmissions) AS roce_reset
    FROM paired
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
        rise(pause_us, p_pause_us, false) AS paused_us,
        rise(discards, p_discards, port_reset) AS dropped,
        CASE
            WHEN NOT (coalesce(symbol_errors, p_symbol_errors) IS NULL
                AND coalesce(receive_errors, p_receive_errors) IS NULL
                AND coalesce(retrains, p_retrains) IS NULL
                AND coalesce(downs, p_downs) IS NULL
                AND coalesce(integrity_errors, p_integrity_errors) IS NULL)
            THEN term(symbol_errors, p_symbol_errors, port_reset)
                + term(receive_errors, p_receive_errors, port_reset)
                + term(retrains, p_retrains, port_reset)
                + term(downs, p_downs, port_reset)
                + term(integrity_errors, p_integrity_errors, port_reset)
        END AS errors,
        CASE
            WHEN NOT (coalesce(ecn_marked, p_ecn_marked) IS NULL
                AND coalesce(cnp_handled, p_cnp_handled) IS NULL)
            THEN term(ecn_marked, p_ecn_marked, roce_reset)
                + term(cnp_handled, p_cnp_handled, roce_reset)
        END AS marked,
        CASE
            WHEN NOT (coalesce(sequence_errors, p_sequence_errors) IS NULL
                AND coalesce(implied_naks, p_implied_naks) IS NULL
                AND coalesce(ack_timeouts, p_ack_timeouts) IS NULL
                AND coalesce(rnr_retries, p_rnr_retries) IS NULL
                AND coalesce(adaptive_retransmissions, p_adaptive_retransmissions) IS NULL)
            THEN term(sequence_errors, p_sequence_errors, roce_reset)
                + term(implied_naks, p_implied_naks, roce_reset)
                + term(ack_timeouts, p_ack_timeouts, roce_reset)
                + term(rnr_retries, p_rnr_retries, roce_reset)
                + term(adaptive_retransmissions, p_adaptive_retransmissions, roce_reset)
        END AS resent
    FROM checked
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
seeded AS (
    SELECT
        switches.*,
        first AND seed.ts IS NOT NULL AS from_seed,
        seed AS s,
        CASE WHEN coalesce(seed.known_end_ns >= holds_from_ns, false) THEN seed.level ELSE 0 END
            AS level_before
    FROM switches LEFT JOIN seed ON seed.link = switches.link
),
rows AS (
    SELECT
        ts,
        CASE WHEN from_seed THEN s.interval_s ELSE interval_s END AS interval_s,
        link,
        CASE WHEN from_seed THEN s.tx_gbps ELSE tx_gbps END AS tx_gbps,
        CASE WHEN from_seed THEN s.rx_gbps ELSE rx_gbps END AS rx_gbps,
        CASE WHEN from_seed THEN s.utilization ELSE utilization END AS utilization,
        CASE WHEN from_seed THEN s.wait_fraction ELSE wait_fraction END AS wait_fraction,
        CASE WHEN from_seed THEN s.ecn_rate ELSE ecn_rate END AS ecn_rate,
        CASE WHEN from_seed THEN s.discard_rate ELSE discard_rate END AS discard_rate,
        CASE WHEN from_seed THEN s.retransmit_rate ELSE retransmit_rate END AS retransmit_rate,
        CASE WHEN from_seed THEN s.error_rate ELSE error_rate END AS error_rate,
        CASE
            WHEN from_seed THEN s.first_level
            WHEN known THEN (
                CASE WHEN s1 >= 0 THEN s1 ELSE (level_before >= 1)::INTEGER END
                + CASE WHEN s2 >= 0 THEN s2 ELSE (level_before >= 2)::INTEGER END
                + CASE WHEN s3 >= 0 THEN s3 ELSE (level_before >= 3)::INTEGER END
            )
        END::INTEGER AS level
    FROM seeded
)
SELECT * FROM rows WHERE interval_s > 0

-- name: link_levels
-- grain: one port, one interval
-- inputs: samples
-- audits: not_null(ts, start_ns, end_ns, interval_s, link)
--
-- `samples` is sorted by (link, ts), so all windows stream in that order and nothing is sorted.
-- What came before the chunk stands first of its link (`carried`): a port's last two samples, with
-- its `level` and until when that is known; a row without ts hands on these two alone. `restarts`
-- says that what comes before a sample is no predecessor.
--
-- A counter that falls is a reset: every figure of that group of counters (the port's own, or
-- the RoCE ones) is unknown for the interval, as is one that is saturated or absent. So is the
-- interval after, where a counter is back where it fell from: it was no reset but a bad reading.
-- Counters of more than the interval can hold are no skew between two reads: unknown.
-- wait_fraction: ticks of port_xmit_wait times the byte times per tick of that port, over the bytes
-- it could have sent; or the share of time the network paused it (PFC), whichever is more.
-- ecn_rate: packets that arrived marked, and notifications that throttled this sender. (The
-- notifications it sent repeat the marks, coalesced.) out_of_sequence is left out of
-- retransmit_rate: adaptive routing reorders without any loss.
--
-- The same arithmetic, compiled, is in _kernel.py: large chunks go through that, and both give the
-- same to the last bit.
WITH linked AS (
    SELECT
        *,
        coalesce(carried, false) AS old,
        NOT coalesce(lag(link) OVER () = link, false) AS first,
        coalesce(
            lag(link) OVER () = link AND lag(ts) OVER () IS NOT NULL AND NOT restarts, false
        ) AS follows
    FROM samples
),
stepped AS (
    SELECT
        *,
        epoch_ns(ts) AS end_ns,
        CASE WHEN follows THEN lag(epoch_ns(ts)) OVER () END AS start_ns,
        follows AND coalesce(lag(follows) OVER (), false) AS follows_two,
        lag(tx_bytes) OVER () AS p_tx_bytes,
        lag(rx_bytes) OVER () AS p_rx_bytes,
        lag(wait_ticks) OVER () AS p_wait_ticks,
        lag(discards) OVER () AS p_discards,
        lag(pause_us) OVER () AS p_pause_us,
        lag(tx_pause_us) OVER () AS p_tx_pause_us,
        lag(errors) OVER () AS p_errors,
        lag(symbols) OVER () AS p_symbols,
        lag(marks) OVER () AS p_marks,
        lag(cnps) OVER () AS p_cnps,
        lag(resent) OVER () AS p_resent,
        lag(tx_bytes, 2) OVER () AS e_tx_bytes,
        lag(rx_bytes, 2) OVER () AS e_rx_bytes,
        lag(wait_ticks, 2) OVER () AS e_wait_ticks,
        lag(discards, 2) OVER () AS e_discards,
        lag(pause_us, 2) OVER () AS e_pause_us,
        lag(tx_pause_us, 2) OVER () AS e_tx_pause_us,
        lag(errors, 2) OVER () AS e_errors,
        lag(symbols, 2) OVER () AS e_symbols,
        lag(marks, 2) OVER () AS e_marks,
        lag(cnps, 2) OVER () AS e_cnps,
        lag(resent, 2) OVER () AS e_resent,
        coalesce(errors_present = lag(errors_present) OVER (), false) AS same_errors,
        coalesce(marks_present = lag(marks_present) OVER (), false) AS same_marks,
        coalesce(resent_present = lag(resent_present) OVER (), false) AS same_resent
    FROM linked
),
checked AS (
    SELECT
        *,
        (end_ns - start_ns) / 1e9 AS span_s,
        NOT follows OR fell(tx_bytes, p_tx_bytes) OR fell(rx_bytes, p_rx_bytes)
            OR fell(wait_ticks, p_wait_ticks) OR fell(discards, p_discards)
            OR fell(symbols, p_symbols) OR (same_errors AND fell(errors, p_errors))
            OR (
                follows_two AND (
                    came_back(tx_bytes, p_tx_bytes, e_tx_bytes)
                    OR came_back(rx_bytes, p_rx_bytes, e_rx_bytes)
                    OR came_back(wait_ticks, p_wait_ticks, e_wait_ticks)
                    OR came_back(discards, p_discards, e_discards)
                    OR came_back(symbols, p_symbols, e_symbols)
                    OR (
                        same_errors AND lag(same_errors) OVER ()
                        AND came_back(errors, p_errors, e_errors)
                    )
                )
            ) AS port_reset,
        NOT follows OR fell(cnps, p_cnps) OR (same_marks AND fell(marks, p_marks))
            OR (same_resent AND fell(resent, p_resent))
            OR (
                follows_two AND (
                    came_back(cnps, p_cnps, e_cnps)
                    OR (
                        same_marks AND lag(same_marks) OVER ()
                        AND came_back(marks, p_marks, e_marks)
                    )
                    OR (
                        same_resent AND lag(same_resent) OVER ()
                        AND came_back(resent, p_resent, e_resent)
                    )
                )
            ) AS roce_reset,
        NOT follows OR (follows_two AND came_back(pause_us, p_pause_us, e_pause_us))
            AS pause_reset,
        NOT follows OR (follows_two AND came_back(tx_pause_us, p_tx_pause_us, e_tx_pause_us))
            AS tx_pause_reset
    FROM stepped
),
risen AS (
    SELECT
        *,
        data_rate_bytes_s * span_s AS capacity_bytes,
        rise(tx_bytes, p_tx_bytes, port_reset) AS tx,
        rise(rx_bytes, p_rx_bytes, port_reset) AS rx,
        rise(wait_ticks, p_wait_ticks, port_reset) * tick AS waited,
        rise(pause_us, p_pause_us, pause_reset) / 1e6 AS paused_s,
        rise(tx_pause_us, p_tx_pause_us, tx_pause_reset) / 1e6 AS pausing_s,
        rise(discards, p_discards, port_reset) AS dropped,
        rise(errors, p_errors, port_reset OR NOT same_errors) AS failed,
        rise(symbols, p_symbols, port_reset) AS flipped,
        rise(marks, p_marks, roce_reset OR NOT same_marks) AS marked,
        rise(cnps, p_cnps, roce_reset) AS notified,
        rise(resent, p_resent, roce_reset OR NOT same_resent) AS repeated
    FROM checked
),
believed AS (
    SELECT
        * REPLACE (
            CASE WHEN tx > 2 * capacity_bytes THEN NULL ELSE tx END AS tx,
            CASE WHEN rx > 2 * capacity_bytes THEN NULL ELSE rx END AS rx,
            CASE WHEN waited > 2 * capacity_bytes THEN NULL ELSE waited END AS waited,
            -- The sum over up to eight priorities.
            CASE WHEN paused_s > 8 * span_s THEN NULL ELSE paused_s END AS paused_s,
            CASE WHEN pausing_s > 8 * span_s THEN NULL ELSE pausing_s END AS pausing_s
        )
    FROM risen
),
figures AS (
    SELECT
        *,
        tx * 8 / 1e9 / span_s AS tx_gbps,
        rx * 8 / 1e9 / span_s AS rx_gbps,
        at_most(tx / capacity_bytes, 1.0) AS utilization,
        at_most(rx / capacity_bytes, 1.0) AS received_share,
        at_most(waited / capacity_bytes, 1.0) AS waited_share,
        at_most(paused_s / span_s, 1.0) AS paused_share,
        at_most(pausing_s / span_s, 1.0) AS tx_pause_fraction,
        marked / span_s AS ecn_rate,
        notified / span_s AS cnp_rate,
        dropped / span_s AS discard_rate,
        repeated / span_s AS retransmit_rate,
        failed / span_s AS error_rate,
        flipped / span_s AS symbol_error_rate,
        -- Marks as a share of the full-size (4096 byte) packets the port could carry.
        marked / span_s / (data_rate_bytes_s / 4096) AS mark_share
    FROM believed
),
signals AS (
    SELECT
        *,
        greatest(waited_share, paused_share) AS wait_fraction,
        greatest(
            reaches(waited_share, getvariable('enter_wait')),
            reaches(paused_share, getvariable('enter_wait')),
            reaches(mark_share, getvariable('enter_marks')),
            reaches(discard_rate, getvariable('enter_discards'))
        ) AS up,
        reaches(waited_share, getvariable('exit_wait')) AS wait_down,
        reaches(paused_share, getvariable('exit_wait')) AS pause_down,
        reaches(mark_share, getvariable('exit_marks')) AS mark_down,
        reaches(discard_rate, getvariable('exit_discards')) AS discard_down,
        greatest(wait_down, pause_down, mark_down, discard_down) AS down,
        -- No discards is no proof that nothing waits.
        NOT old AND span_s > 0 AND (
            waited_share IS NOT NULL OR paused_share IS NOT NULL OR mark_share IS NOT NULL
            OR reaches(discard_rate, getvariable('enter_discards')) > 0
        ) AS seen
    FROM figures
),
-- From here on 0 stands for the time until which nothing was known.
ends AS (
    SELECT
        * EXCLUDE (known_end_ns),
        coalesce(seen, false) AS known,
        last_value(
            CASE
                WHEN seen THEN end_ns
                WHEN old AND known_end_ns IS NOT NULL THEN known_end_ns
                WHEN first THEN 0
            END IGNORE NULLS
        ) OVER (ROWS UNBOUNDED PRECEDING) AS known_end_ns
    FROM signals
),
gaps AS (
    SELECT *, CASE WHEN first THEN 0 ELSE lag(known_end_ns) OVER () END AS p_known_end_ns
    FROM ends
),
steps AS (
    SELECT
        *,
        known AND p_known_end_ns > 0 AND start_ns - p_known_end_ns > held_ns(span_s) AS hole
    FROM gaps
),
-- Each level is a switch that is on or off.
switches AS (
    SELECT
        *,
        last_value(switched(1, known, up, down, hole, old, level, first) IGNORE NULLS)
            OVER (ROWS UNBOUNDED PRECEDING) AS s1,
        last_value(switched(2, known, up, down, hole, old, level, first) IGNORE NULLS)
            OVER (ROWS UNBOUNDED PRECEDING) AS s2,
        last_value(switched(3, known, up, down, hole, old, level, first) IGNORE NULLS)
            OVER (ROWS UNBOUNDED PRECEDING) AS s3
    FROM steps
),
states AS (
    SELECT
        *,
        s1 + s2 + s3 AS held_level,
        CASE WHEN p_known_end_ns > 0 THEN lag(s1 + s2 + s3) OVER () END AS p_level
    FROM switches
)
SELECT
    ts,
    start_ns,
    end_ns,
    span_s AS interval_s,
    link,
    tx_gbps,
    rx_gbps,
    utilization,
    received_share,
    wait_fraction,
    tx_pause_fraction,
    ecn_rate,
    cnp_rate,
    discard_rate,
    retransmit_rate,
    error_rate,
    symbol_error_rate,
    CASE WHEN known THEN held_level END::INTEGER AS level,
    CASE WHEN known THEN p_level END::INTEGER AS p_level,
    CASE WHEN known AND p_known_end_ns > 0 THEN p_known_end_ns END AS p_known_end_ns,
    hole,
    wait_down,
    pause_down,
    mark_down,
    discard_down,
    coalesce(wait_ticks < 0, false) AS stuck
FROM states
WHERE NOT old AND span_s > 0

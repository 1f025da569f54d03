-- name: samples_merged
-- grain: one port at one instant, sorted by (link, end of interval)
-- inputs: raw, port_facts, carry
-- audits: not_null(link, ts)
--
-- The counters of one chunk in one unit: links by their one name, rows of one port at one instant
-- merged (two sources, or two lines of one), a value that one source knows kept where the other
-- does not. A link whose chunk has two absolute rows or more is read by these; a link with less,
-- by the deltas its source took (`used`). Data of a source in a unit that it cannot be in (model
-- packet_check) is unknown. A delta becomes two samples: zero when its interval began
-- (`restarts`: what came before is no predecessor) and the delta when it ended.
WITH known AS (
    SELECT
        coalesce(port_facts.link, raw.link) AS link,
        repaired(raw.ts, raw.host, raw.source, port_facts.shifts) AS ts,
        raw.interval_s,
        data_gbps(
            coalesce(raw.rate_gbps, port_facts.rate_gbps),
            coalesce(port_facts.ethernet, false)
                OR rx_pause_duration IS NOT NULL OR np_ecn_marked_roce_packets IS NOT NULL
        ) * 1e9 / 8 AS data_rate_bytes_s,
        coalesce(xmit_wait_tick, port_facts.tick, getvariable('tick')) AS tick,
        CASE
            WHEN port_xmit_data IS NOT NULL AND misread(raw.source, 'sent') THEN -1::BIGINT
            ELSE octets(port_xmit_data, 'port_xmit_data', saturated, data_unit_bytes)
        END AS tx_bytes,
        CASE
            WHEN port_rcv_data IS NOT NULL AND misread(raw.source, 'received') THEN -1::BIGINT
            ELSE octets(port_rcv_data, 'port_rcv_data', saturated, data_unit_bytes)
        END AS rx_bytes,
        counter32(port_xmit_wait, 'port_xmit_wait', saturated) AS wait_ticks,
        counter(port_xmit_discards, 'port_xmit_discards', saturated) AS discards,
        counter(symbol_error, 'symbol_error', saturated) AS symbol_errors,
        counter(port_rcv_errors, 'port_rcv_errors', saturated) AS receive_errors,
        counter(link_error_recovery, 'link_error_recovery', saturated) AS retrains,
        counter(link_downed, 'link_downed', saturated) AS downs,
        counter(local_link_integrity_errors, 'local_link_integrity_errors', saturated) AS integrity_errors,
        counter(np_ecn_marked_roce_packets, 'np_ecn_marked_roce_packets', saturated) AS ecn_marked,
        counter(rp_cnp_handled, 'rp_cnp_handled', saturated) AS cnp_handled,
        counter(packet_seq_err, 'packet_seq_err', saturated) AS sequence_errors,
        counter(implied_nak_seq_err, 'implied_nak_seq_err', saturated) AS implied_naks,
        counter(local_ack_timeout_err, 'local_ack_timeout_err', saturated) AS ack_timeouts,
        counter(rnr_nak_retry_err, 'rnr_nak_retry_err', saturated) AS rnr_retries,
        counter(roce_adp_retrans, 'roce_adp_retrans', saturated) AS adaptive_retransmissions,
        counter(rx_pause_duration, 'rx_pause_duration', saturated) AS pause_us,
        counter(tx_pause_duration, 'tx_pause_duration', saturated) AS tx_pause_us
    FROM raw LEFT JOIN port_facts ON port_facts.raw_link = raw.link
    WHERE raw.interval_s IS NULL OR raw.interval_s > 0
),
parts AS (
    SELECT
        link,
        ts,
        interval_s IS NOT NULL AS is_delta,
        min(interval_s) AS interval_s,
        max(data_rate_bytes_s) AS data_rate_bytes_s,
        max(tick) AS tick,
        max(tx_bytes) AS tx_bytes,
        max(rx_bytes) AS rx_bytes,
        max(wait_ticks) AS wait_ticks,
        max(discards) AS discards,
        max(symbol_errors) AS symbol_errors,
        max(receive_errors) AS receive_errors,
        max(retrains) AS retrains,
        max(downs) AS downs,
        max(integrity_errors) AS integrity_errors,
        max(ecn_marked) AS ecn_marked,
        max(cnp_handled) AS cnp_handled,
        max(sequence_errors) AS sequence_errors,
        max(implied_naks) AS implied_naks,
        max(ack_timeouts) AS ack_timeouts,
        max(rnr_retries) AS rnr_retries,
        max(adaptive_retransmissions) AS adaptive_retransmissions,
        max(pause_us) AS pause_us,
        max(tx_pause_us) AS tx_pause_us
    FROM known
    GROUP BY link, ts, is_delta
),
merged AS (
    SELECT
        link,
        ts,
        is_delta,
        interval_s,
        data_rate_bytes_s,
        tick,
        tx_bytes,
        rx_bytes,
        wait_ticks,
        discards,
        pause_us,
        tx_pause_us,
        together(symbol_errors, receive_errors, retrains, downs, integrity_errors) AS errors,
        present(symbol_errors, receive_errors, retrains, downs, integrity_errors) AS errors_present,
        symbol_errors AS symbols,
        together(ecn_marked, cnp_handled, NULL, NULL, NULL) AS marks,
        present(ecn_marked, cnp_handled, NULL, NULL, NULL) AS marks_present,
        cnp_handled AS cnps,
        together(
            sequence_errors, implied_naks, ack_timeouts, rnr_retries, adaptive_retransmissions
        ) AS resent,
        present(
            sequence_errors, implied_naks, ack_timeouts, rnr_retries, adaptive_retransmissions
        ) AS resent_present
    FROM parts
),
kinds AS (
    SELECT
        merged.link,
        bool_and(NOT is_delta)
            OR count(*) FILTER (WHERE NOT is_delta) + count(DISTINCT carry.link) >= 2 AS absolute
    FROM merged LEFT JOIN carry ON carry.link = merged.link
    GROUP BY merged.link
),
chosen AS (
    SELECT merged.*, kinds.absolute = NOT is_delta AS used
    FROM merged JOIN kinds ON kinds.link = merged.link
),
both_ends AS (
    SELECT *, ts AS end_ts, false AS restarts FROM chosen
    UNION ALL BY NAME
    SELECT
        * REPLACE (
            make_timestamp_ns(epoch_ns(ts) - (interval_s * 1e9)::BIGINT)::TIMESTAMPTZ_NS AS ts,
            tx_bytes * 0 AS tx_bytes,
            rx_bytes * 0 AS rx_bytes,
            wait_ticks * 0 AS wait_ticks,
            discards * 0 AS discards,
            pause_us * 0 AS pause_us,
            tx_pause_us * 0 AS tx_pause_us,
            errors * 0 AS errors,
            symbols * 0 AS symbols,
            marks * 0 AS marks,
            cnps * 0 AS cnps,
            resent * 0 AS resent
        ),
        ts AS end_ts,
        true AS restarts
    FROM chosen
    WHERE is_delta
)
SELECT
    link,
    ts,
    restarts,
    data_rate_bytes_s,
    tick,
    tx_bytes,
    rx_bytes,
    wait_ticks,
    discards,
    pause_us,
    tx_pause_us,
    errors,
    errors_present,
    symbols,
    marks,
    marks_present,
    cnps,
    resent,
    resent_present,
    is_delta,
    used
FROM both_ends
ORDER BY link, end_ts, is_delta, restarts DESC

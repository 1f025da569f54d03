-- name: samples_direct
-- grain: one port at one instant, sorted by (link, ts)
-- inputs: raw
-- audits: none: a view over raw rows; link_rates, which is made of them alone, has audits
--
-- The counters of one chunk in one unit, straight from a compacted file: for chunks without
-- duplicates, deltas or renamed links, whose ports are alike where rows do not say.
WITH parts AS (
    SELECT
        link,
        ts,
        data_gbps(
            coalesce(rate_gbps, getvariable('rate_gbps')),
            getvariable('ethernet')
                OR rx_pause_duration IS NOT NULL OR np_ecn_marked_roce_packets IS NOT NULL
        ) * 1e9 / 8 AS data_rate_bytes_s,
        coalesce(xmit_wait_tick, getvariable('tick')) AS tick,
        octets(port_xmit_data, 'port_xmit_data', saturated, data_unit_bytes) AS tx_bytes,
        octets(port_rcv_data, 'port_rcv_data', saturated, data_unit_bytes) AS rx_bytes,
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
    FROM raw
)
SELECT
    link,
    ts,
    false AS restarts,
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

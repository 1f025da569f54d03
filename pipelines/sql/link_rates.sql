-- name: link_rates
-- grain: one port, one interval
-- inputs: link_levels
-- audits: sorted_key(link, ts); not_null(ts, interval_s, link); range(interval_s, 0, ..)
-- audits: range(tx_gbps, 0, ..); range(rx_gbps, 0, ..); range(utilization, 0, 1)
-- audits: range(wait_fraction, 0, 1); range(tx_pause_fraction, 0, 1); range(ecn_rate, 0, ..)
-- audits: range(cnp_rate, 0, ..); range(discard_rate, 0, ..); range(retransmit_rate, 0, ..)
-- audits: range(error_rate, 0, ..); range(symbol_error_rate, 0, ..); range(level, 0, 3)
--
-- What is published of link_levels, in its order.
SELECT
    ts,
    interval_s,
    link,
    tx_gbps,
    rx_gbps,
    utilization,
    wait_fraction,
    tx_pause_fraction,
    ecn_rate,
    cnp_rate,
    discard_rate,
    retransmit_rate,
    error_rate,
    symbol_error_rate,
    level
FROM link_levels

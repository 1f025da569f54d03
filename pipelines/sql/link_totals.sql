-- name: link_totals
-- grain: one port, as of its last absolute reading
-- inputs: readings
-- audits: key(link); not_null(link); range(sent_bytes, 0, ..); range(received_bytes, 0, ..)
-- audits: range(lost_bytes, 0, ..); range(lost_to_sent, 0, ..); range(paused_s, 0, ..)
-- audits: range(errors, 0, ..); range(discards, 0, ..)
--
-- What a port's counters say of the time since they were cleared, which nobody knows: so nothing
-- here is a rate or a share of time. Lost bytes are what the port could have sent while it had data
-- and no credits (ticks of port_xmit_wait times its byte times a tick); over the bytes it did send
-- they rank ports, also where an idle port lost little in all. A reading with a time counts before
-- one without; of several without, each counter's largest: it only rises.
WITH last AS (
    SELECT *
    FROM readings
    QUALIFY row_number() OVER (PARTITION BY link ORDER BY ts DESC NULLS LAST) = 1
),
totals AS (
    SELECT
        ts,
        link,
        counted(tx_bytes) AS sent_bytes,
        counted(rx_bytes) AS received_bytes,
        TRY_CAST(round(counted(wait_ticks) * tick) AS BIGINT) AS lost_bytes,
        counted(pause_us) / 1e6 AS paused_s,
        counted(errors) AS errors,
        counted(discards) AS discards
    FROM last
)
SELECT
    ts,
    link,
    sent_bytes,
    received_bytes,
    lost_bytes,
    lost_bytes / nullif(sent_bytes, 0) AS lost_to_sent,
    paused_s,
    errors,
    discards
FROM totals
ORDER BY link

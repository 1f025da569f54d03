-- name: packet_check
-- grain: one input and direction whose data counters cannot be in the unit it says
-- inputs: probe
-- audits: key(source, direction); range(too_large, 0, ..); range(too_small, 0, ..)
--
-- Bytes over packets must lie between the smallest packet and the largest MTU with headers. A
-- source that multiplied words by 4 already, or did not and says bytes, falls outside by 4.
-- 20 bytes: LRH 8 and BTH 12 alone. 9500: an Ethernet jumbo frame with
-- RoCE headers; InfiniBand ends at 4096 + headers.
WITH counted AS (
    SELECT
        source,
        link,
        'sent' AS direction,
        octets(port_xmit_data, 'port_xmit_data', saturated, data_unit_bytes) AS octets,
        counter32(
            coalesce(port_xmit_packets, unicast_xmit_packets), 'port_xmit_packets', saturated
        ) AS packets
    FROM probe
    UNION ALL
    SELECT
        source,
        link,
        'received',
        octets(port_rcv_data, 'port_rcv_data', saturated, data_unit_bytes),
        counter32(coalesce(port_rcv_packets, unicast_rcv_packets), 'port_rcv_packets', saturated)
    FROM probe
),
spans AS (
    SELECT
        source,
        link,
        direction,
        CASE WHEN count(*) > 1 AND max(packets) > min(packets) THEN max(octets) - min(octets)
            ELSE max(octets) END AS octets,
        CASE WHEN count(*) > 1 AND max(packets) > min(packets) THEN max(packets) - min(packets)
            ELSE max(packets) END AS packets
    FROM counted
    WHERE octets >= 0 AND packets >= 0
    GROUP BY source, link, direction
),
means AS (SELECT *, octets / packets AS mean_bytes FROM spans WHERE packets >= 1000)
SELECT
    source,
    direction,
    count(*) FILTER (WHERE mean_bytes > 9500) AS too_large,
    count(*) FILTER (WHERE mean_bytes < 20) AS too_small,
    count(*) AS links,
    median(mean_bytes) AS median_bytes,
    -- One port may be read wrong; where a quarter of them are, it is the source's unit.
    4 * greatest(too_large, too_small) >= links AS misread
FROM means
GROUP BY source, direction
HAVING too_large > 0 OR too_small > 0
ORDER BY source, direction

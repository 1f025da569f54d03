-- name: signal_margin
-- grain: one port at one reading of its signal
-- inputs: link_signal, link_names
-- audits: key(ts, link); not_null(ts, link); range(raw_ber, 0, 1); range(bin_margin, 0, 1)
--
-- Worst of the lanes. margin_decades: how far the raw bit error rate is below what RS(544,514)
-- corrects (2.4e-4 before correction: IEEE 802.3, 400GBASE-R). bin_margin: share of the 15
-- symbols a codeword may have wrong that its worst codeword since the reading before left unused.
-- rise_decades: how far the raw rate is above the lowest of the day so far: a link that goes bad.
-- A rate of 0 says that no error was seen, not how good the link is: no margin.
WITH readings AS (
    SELECT
        ts,
        coalesce(link_names.link, link_signal.link) AS link,
        coalesce(lane, -1) AS lane,
        max(raw_ber) AS raw_ber,
        max(effective_ber) AS effective_ber,
        max(fec_bins) AS fec_bins,
        min(snr) AS snr,
        max(temperature) AS temperature
    FROM link_signal LEFT JOIN link_names ON link_names.raw_link = link_signal.link
    WHERE ts IS NOT NULL AND link_signal.link IS NOT NULL
    GROUP BY ALL
),
-- Bins count since they were cleared; where one fell, they were cleared in between.
pairs AS (
    SELECT *, lag(fec_bins) OVER (PARTITION BY link, lane ORDER BY ts) AS bins_before
    FROM readings
),
steps AS (
    SELECT
        *,
        list_transform(
            range(1, len(fec_bins) + 1),
            lambda k: fec_bins[k]::HUGEINT - coalesce(bins_before[k], 0)
        ) AS gained
    FROM pairs
),
lanes AS (
    SELECT
        *,
        CASE
            WHEN list_min(gained) >= 0 THEN list_max(
                list_transform(
                    range(0, len(gained)),
                    lambda k: CASE WHEN gained[k + 1] > 0 THEN k END
                )
            )
        END AS worst_bin
    FROM steps
),
ports AS (
    SELECT
        ts,
        link,
        max(raw_ber) AS raw_ber,
        max(effective_ber) AS effective_ber,
        max(worst_bin) AS worst_bin,
        min(snr) AS snr,
        max(temperature) AS temperature
    FROM lanes
    GROUP BY ts, link
)
SELECT
    ts,
    link,
    raw_ber,
    effective_ber,
    CASE WHEN raw_ber > 0 THEN log10(2.4e-4 / raw_ber) END AS margin_decades,
    CASE
        WHEN raw_ber > 0 THEN log10(
            raw_ber / min(CASE WHEN raw_ber > 0 THEN raw_ber END) OVER (
                PARTITION BY link, ts::DATE ORDER BY ts ROWS UNBOUNDED PRECEDING
            )
        )
    END AS rise_decades,
    at_least(1 - worst_bin / 15, 0.0) AS bin_margin,
    snr,
    temperature
FROM ports
ORDER BY link, ts

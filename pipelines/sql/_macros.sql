-- A counter as read: -1 where the source has it and its value is not known (saturated, sentinel),
-- null where the source does not have it.
CREATE OR REPLACE MACRO counter(value, name, saturated) AS
    CASE
        WHEN saturated IS NOT NULL AND list_contains(saturated, name) THEN -1::BIGINT
        WHEN value >= 1152921504606846976 THEN -1::BIGINT
        ELSE value::BIGINT
    END;

-- A counter that some sources keep in 32 bits: it sticks at the maximum.
CREATE OR REPLACE MACRO counter32(value, name, saturated) AS
    CASE WHEN value = 4294967295 THEN -1::BIGINT ELSE counter(value, name, saturated) END;

-- Data counters in bytes, whatever the source's unit.
CREATE OR REPLACE MACRO octets(value, name, saturated, unit) AS
    CASE
        WHEN coalesce(counter32(value, name, saturated), 0) < 0 THEN -1::BIGINT
        ELSE value::BIGINT * coalesce(unit, 4)
    END;

-- Whether a source's data counters of a direction cannot be in the unit it says.
CREATE OR REPLACE MACRO misread(source, direction) AS
    coalesce(
        list_contains(getvariable('misread')::VARCHAR[], concat(source, '/', direction)), false
    );

-- What a port can carry of what its rate says. SDR, DDR and QDR name the signalling rate under
-- 8b/10b, FDR under 64b/66b; EDR and later, and Ethernet, name the data rate (InfiniBand
-- architecture specification, volume 2).
CREATE OR REPLACE MACRO data_gbps(rate, ethernet) AS
    CASE
        WHEN rate <= 0 THEN NULL
        WHEN ethernet THEN rate
        WHEN rate IN (2.5, 5, 10, 20, 30, 40, 60, 80, 120) THEN rate * 0.8
        WHEN rate BETWEEN 13.5 AND 14.5 OR rate BETWEEN 27 AND 29 OR rate BETWEEN 54 AND 57
            OR rate BETWEEN 110 AND 114 OR rate BETWEEN 165 AND 170 THEN rate * 64 / 66
        ELSE rate
    END;

-- A counter's value for a reader: null where it is not known.
CREATE OR REPLACE MACRO counted(value) AS CASE WHEN value >= 0 THEN value END;

-- What a counter rose by; null where that is not known.
CREATE OR REPLACE MACRO rise(now, before, reset) AS
    CASE WHEN reset OR now < 0 OR before < 0 OR now < before THEN NULL ELSE now - before END;

-- Several counters as one: unknown where one of them is, null where the source has none of them.
CREATE OR REPLACE MACRO together(a, b, c, d, e) AS
    CASE
        WHEN a IS NULL AND b IS NULL AND c IS NULL AND d IS NULL AND e IS NULL THEN NULL
        -- Each part folds away where the source lacks the counter.
        WHEN coalesce(a < 0, false) OR coalesce(b < 0, false) OR coalesce(c < 0, false)
            OR coalesce(d < 0, false) OR coalesce(e < 0, false) THEN -1::BIGINT
        ELSE coalesce(a, 0) + coalesce(b, 0) + coalesce(c, 0) + coalesce(d, 0) + coalesce(e, 0)
    END;

-- Which of several counters the source has: sums of different counters are not compared.
CREATE OR REPLACE MACRO present(a, b, c, d, e) AS
    (a IS NOT NULL)::TINYINT + 2 * (b IS NOT NULL)::TINYINT + 4 * (c IS NOT NULL)::TINYINT
    + 8 * (d IS NOT NULL)::TINYINT + 16 * (e IS NOT NULL)::TINYINT;

CREATE OR REPLACE MACRO fell(now, before) AS coalesce(now >= 0 AND now < before, false);

-- Whether a counter that fell is back where it fell from: the reading between was wrong.
CREATE OR REPLACE MACRO came_back(now, before, earlier) AS
    coalesce(before >= 0 AND before < earlier AND now >= earlier, false);

-- Level k as a switch: 1 on, 0 off, null where the row leaves it as it is; what came before the
-- chunk (`old`) sets it to the level that was handed on.
CREATE OR REPLACE MACRO switched(k, known, up, down, hole, old, level, first) AS
    CASE
        WHEN known AND up >= k THEN 1
        WHEN known AND (down < k OR hole) THEN 0
        WHEN old AND level IS NOT NULL THEN (level >= k)::INTEGER
        WHEN first THEN 0
    END;

-- Highest level whose threshold a signal reaches; 0 where it is unknown.
CREATE OR REPLACE MACRO reaches(signal, thresholds) AS
    CASE
        WHEN signal >= thresholds[3] THEN 3
        WHEN signal >= thresholds[2] THEN 2
        WHEN signal >= thresholds[1] THEN 1
        ELSE 0
    END;

-- Longest time without knowledge that leaves a port's state as it was: the maximum gap, and one
-- interval of any length.
CREATE OR REPLACE MACRO held_ns(interval_s) AS
    (greatest(getvariable('max_gap_s'), 1.5 * interval_s) * 1e9)::BIGINT;

-- Whether a congested interval continues the one before it: the gap is short enough, or it is one
-- interval of which nothing is known.
CREATE OR REPLACE MACRO joins(gap_ns, interval_s, clear_before) AS
    coalesce(
        gap_ns <= getvariable('max_gap_s') * 1e9
        OR (NOT coalesce(clear_before, true) AND gap_ns <= 1.5e9 * interval_s),
        false
    );

-- Null stays null: LEAST and GREATEST would take the other argument.
CREATE OR REPLACE MACRO at_most(value, high) AS
    CASE WHEN value > high THEN high ELSE value END;
CREATE OR REPLACE MACRO at_least(value, low) AS
    CASE WHEN value < low THEN low ELSE value END;

-- A time by the reference clock, where the row's host stamped it and its clock is off: `shifts` lists
-- (from_ns, to_ns, offset_ns) by that clock. Times of the sources in `shared_clocks` are a server's.
CREATE OR REPLACE MACRO repaired(ts, host, source, shifts) AS
    CASE
        WHEN shifts IS NULL OR host IS NULL THEN ts
        WHEN list_contains(coalesce(getvariable('shared_clocks')::VARCHAR[], []), source) THEN ts
        ELSE make_timestamp_ns(epoch_ns(ts) - coalesce(
            list_filter(
                shifts, lambda shift: epoch_ns(ts) >= shift.from_ns AND epoch_ns(ts) < shift.to_ns
            )[1].offset_ns,
            0
        ))::TIMESTAMPTZ_NS
    END;

-- A sum of floats that is the same to the last bit in every run: threads hand rows over in any
-- order, and rounding depends on it.
CREATE OR REPLACE MACRO steady_sum(items) AS list_sum(list_sort(items));

-- Time that stretches (model busy_spans) cover up to a moment; span is the last that has begun.
CREATE OR REPLACE MACRO covered_ns(span, moment) AS
    coalesce(span.before_ns + least(moment, span.end_ns) - span.start_ns, 0);

-- How near an episode is to what slowed a job at its time, 0 the nearest. One thing that slows a
-- job has one cause, or several that hold up its ports at once: those count that hold ports of the
-- job for sure at that very moment; if none does, those that do so at some time (certain); if none
-- does, those that may hold them at that moment; if none does, all that may touch the job.
CREATE OR REPLACE MACRO nearness(sure, certain, may_hold) AS
    CASE WHEN sure THEN 0 WHEN certain THEN 1 WHEN may_hold THEN 2 ELSE 3 END;

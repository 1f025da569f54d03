"""``bursts``: how often communicators and links burst, and for how long, per UTC day (P1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xtune.pipelines._engine import Session, literal
from xtune.pipelines._periods import (
    SAMPLES_A_PERIOD,
    Floats,
    Period,
    event_period,
    load_periods,
)
from xtune.pipelines._tables import DayInput, DayTable

Row = dict[str, Any]

# Links, or communicators, that are held in memory at once.
_AT_ONCE = 64
_FOUND = pa.schema(
    [
        ("day_ns", pa.int64()),
        ("subject", pa.string()),
        ("kind", pa.string()),
        ("job", pa.string()),
        ("period_s", pa.float64()),
        ("duty", pa.float64()),
        ("low_s", pa.float64()),
        ("high_s", pa.float64()),
        ("strength", pa.float64()),
        ("false_alarm", pa.float64()),
        ("samples", pa.int64()),
        ("interval_s", pa.float64()),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """The bursts of one communicator.

    Attributes:
        job: Job.
        comm: Communicator.
        period: Its period.
        begins: Beginnings of its bursts, seconds after the day's start, rising.
        ends: Their ends.
    """

    job: str | None
    comm: str
    period: Period
    begins: Floats
    ends: Floats


def prepare(given: DayInput) -> list[str]:
    """Load what the model ``bursts`` reads."""
    rows = [_row(given.start_ns, beat.comm, "communicator", beat.job, beat.period)
            for beat in communicators(given.session, given.start_ns)]  # fmt: skip
    for link, interval_s, periods, samples in links(given.session, given.start_ns):
        for period in periods:
            rows.append(_row(given.start_ns, link, "link", None, period, interval_s))
        if not periods:
            note = f"none of at least {SAMPLES_A_PERIOD:.0f} intervals that is certain"
            rows.append(
                {
                    "day_ns": given.start_ns,
                    "subject": link,
                    "kind": "link",
                    "samples": samples,
                    "interval_s": interval_s,
                    "note": note,
                }
            )
    given.session.load("bursts_found", pa.Table.from_pylist(rows, schema=_FOUND))
    return []


def communicators(session: Session, start_ns: int) -> Iterator[Beat]:
    """Communicators with a period, from the session's ``collectives``."""
    session.create("burst_events")
    found = session.rows("SELECT DISTINCT job, comm FROM burst_events ORDER BY job, comm")
    for at in range(0, len(found), _AT_ONCE):
        few = [f"{{'job': {literal(job)}, 'comm': {literal(comm)}}}"
               for job, comm in found[at : at + _AT_ONCE]]  # fmt: skip
        events = session.arrow(
            f"SELECT place, start_ns - {start_ns} AS a, end_ns - {start_ns} AS b FROM burst_events"
            f" JOIN (SELECT unnest(range({len(few)})) AS place, unnest([{', '.join(few)}]) AS w)"
            " ON burst_events.job IS NOT DISTINCT FROM w.job AND burst_events.comm = w.comm"
            " ORDER BY place, start_ns, end_ns"
        )
        begins, ends = _seconds(events["a"]), _seconds(events["b"])
        bounds = np.searchsorted(events["place"].to_numpy(), np.arange(len(few) + 1))
        for place, (job, comm) in enumerate(found[at : at + _AT_ONCE]):
            own = slice(bounds[place], bounds[place + 1])
            here = event_period(begins[own], ends[own])
            if here is not None:
                yield Beat(job=job, comm=comm, period=here[0], begins=here[1], ends=here[2])


def links(session: Session, start_ns: int) -> Iterator[tuple[str, float, list[Period], int]]:
    """Links whose load varies: name, usual interval in seconds, periods, samples."""
    session.create("burst_links")
    found = session.rows("SELECT link, interval_s FROM burst_links ORDER BY link")
    for at in range(0, len(found), _AT_ONCE):
        few = dict(found[at : at + _AT_ONCE])
        rates = session.arrow(
            f"SELECT link, epoch_ns(ts) - {start_ns} AS ns, interval_s, tx_gbps FROM link_rates"
            f" WHERE tx_gbps IS NOT NULL AND link IN (SELECT unnest({literal([*few])}))"
            " ORDER BY link, ts"
        )
        names = rates["link"].to_numpy(zero_copy_only=False)
        middle = _seconds(rates["ns"]) - rates["interval_s"].to_numpy() / 2
        load = rates["tx_gbps"].to_numpy()
        bounds = np.flatnonzero(names[1:] != names[:-1]) + 1
        for low, high in zip([0, *bounds], [*bounds, names.size], strict=True):
            if high == low:
                continue
            link = str(names[low])
            periods = load_periods(middle[low:high], load[low:high], few[link])
            yield link, few[link], periods, int(high - low)


def _seconds(column: pa.ChunkedArray) -> Floats:
    ns: npt.NDArray[np.int64] = column.to_numpy()
    return ns / 1e9


def _row(
    day_ns: int,
    subject: str,
    kind: str,
    job: str | None,
    period: Period,
    interval_s: float | None = None,
) -> Row:
    return {
        "day_ns": day_ns,
        "subject": subject,
        "kind": kind,
        "job": job,
        "period_s": period.period_s,
        "duty": period.duty,
        "low_s": period.low_s,
        "high_s": period.high_s,
        "strength": period.strength,
        "false_alarm": period.false_alarm,
        "samples": period.samples,
        "interval_s": interval_s,
        "note": None,
    }


TABLE = DayTable(name="bursts", inputs=("collectives", "link_rates"), prepare=prepare, rests_on=())

"""How good warnings are: precision, recall, lead, false alarms, on a trace that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Truth:
    """What happened on each link.

    Attributes:
        at_ns: Times, int64, shape (times,).
        hot: From an event until the queue is below the lower threshold, shape (times, links).
        next_ns: Time of the first event after each time, `NEVER` where there is none.
        events: (time index, link) of each event, shape (events, 2), link by link.
    """

    at_ns: I64
    hot: Mask
    next_ns: I64
    events: I64


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Figures of one forecaster on one trace; NaN where nothing was there to count.

    Attributes:
        precision: Share of warned readings that an event followed within the horizon.
        recall: Share of events with a warning within the horizon before them.
        lead_p50_ns: Median time from the first such warning to the event.
        lead_p10_ns: Its 10th percentile.
        false_per_s: Runs of warnings that no event followed, per link and second.
        base_rate: Share of all readings that an event followed within the horizon.
        events: How many.
    """

    precision: float
    recall: float
    lead_p50_ns: float
    lead_p10_ns: float
    false_per_s: float
    base_rate: float
    events: int


def find_events(at_ns: I64, occupancy: F64, enter: float, leave: float) -> Truth:
    """Upward crossings of a threshold, with hysteresis.

    Args:
        at_ns: Times, rising.
        occupancy: Shape (times, links).
        enter: An event is a first reading at or above it,
        leave: and the next one can come after a reading below this.
    """
    mark = np.where(occupancy >= enter, 1, np.where(occupancy < leave, -1, 0))
    index = np.where(mark != 0, np.arange(len(mark))[:, None], 0)
    hot = np.take_along_axis(mark, np.maximum.accumulate(index, axis=0), axis=0) == 1
    begins = hot.copy()
    begins[1:] &= ~hot[:-1]
    begins[0] = False  # what was hot from the start on, no reading could have told
    times = np.where(begins, at_ns[:, None], NEVER)
    from_here = np.minimum.accumulate(times[::-1], axis=0)[::-1]
    after = np.full_like(from_here, NEVER)
    after[:-1] = from_here[1:]
    links, index = np.nonzero(begins.T)
    return Truth(at_ns=at_ns, hot=hot, next_ns=after, events=np.stack([index, links], axis=1))


def score(truth: Truth, readings: I64, warned: Mask, horizon_ns: int) -> Score:
    """Judge the warnings of one forecaster.

    While a link is hot nothing is asked of it, and what is said of it does not count.

    Args:
        truth: What happened.
        readings: Time index of each reading, rising.
        warned: Whether it made the forecaster warn, shape (readings, links).
        horizon_ns: An event must come within it, later than the warning.
    """
    at_ns = truth.at_ns[readings]
    asked = ~truth.hot[readings]
    ahead = truth.next_ns[readings] - at_ns[:, None]
    right = asked & (ahead <= horizon_ns)
    said = warned & asked
    leads = [_lead(truth, at_ns, said[:, link], i, horizon_ns) for i, link in truth.events]
    known = np.array([lead for lead in leads if lead is not None], dtype=np.float64)
    seconds = float(at_ns[-1] - at_ns[0]) / 1e9 * asked.shape[1]
    return Score(
        precision=_share(right & said, said),
        recall=len(known) / len(leads) if leads else float("nan"),
        lead_p50_ns=float(np.quantile(known, 0.5)) if len(known) else float("nan"),
        lead_p10_ns=float(np.quantile(known, 0.1)) if len(known) else float("nan"),
        false_per_s=_false_runs(said, right) / seconds,
        base_rate=_share(right, asked),
        events=len(leads),
    )


def _lead(truth: Truth, at_ns: I64, said: Mask, event: int, horizon_ns: int) -> int | None:
    """Time from the first warning within the horizon before an event, None without one."""
    event_ns = int(truth.at_ns[event])
    low = int(np.searchsorted(at_ns, event_ns - horizon_ns))
    high = int(np.searchsorted(at_ns, event_ns))
    found = np.flatnonzero(said[low:high])
    return event_ns - int(at_ns[low + found[0]]) if len(found) else None


def _false_runs(said: Mask, right: Mask) -> int:
    """Runs of warnings of which none was right."""
    begins = said.copy()
    begins[1:] &= ~said[:-1]
    run = np.cumsum(begins.T.ravel())  # number of the run, where a warning is
    in_run = said.T.ravel()
    hits = np.bincount(run[in_run], right.T.ravel()[in_run], minlength=2)[1:]
    return int((hits[: begins.sum()] == 0).sum())


def _share(part: Mask, whole: Mask) -> float:
    count = int(whole.sum())
    return int(part.sum()) / count if count else float("nan")

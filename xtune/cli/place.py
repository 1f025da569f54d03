"""``xtune place``: where a new job has room, by the fabric's history; reservations of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xtune.cli._common import (
    DebugOption,
    JsonOption,
    LakeOption,
    SinceOption,
    UntilOption,
    epoch_ns,
    open_lake,
    parse_duration_s,
    parse_span,
)
from xtune.console import emit_json, say
from xtune.errors import NoDataError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from xtune.cli._place_text import Found
    from xtune.lake import Lake
    from xtune.pipelines.history import History

_NS = 1_000_000_000
_HISTORY_NS = 7 * 86_400 * _NS  # a week: every day of it, and a link that was mended is forgiven
_LASTS = "24h"
_RANKS_PER_HOST = 8  # GPUs of the commonest training host


def run(
    lake: LakeOption = None,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="Ranks of the job.")] = None,
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", min=1, help="Ranks that a host has room for.")
    ] = _RANKS_PER_HOST,
    pattern: Annotated[
        str, typer.Option("--pattern", help="ring, halving-doubling, all-to-all or pipeline.")
    ] = "ring",
    share: Annotated[
        float, typer.Option("--share", help="Share of its hosts' links the job will use, 0 to 1.")
    ] = 0.5,
    reserve: Annotated[
        str | None, typer.Option("--reserve", help="Record the advice for this job.")
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", help="How long a reservation counts.", show_default=_LASTS),
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", help="Return this job's reservation.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Advise where a new job has room; without --ranks, list what each leaf has to spare."""
    lasts_s = parse_duration_s(for_ or _LASTS, "--for")
    span = parse_span(since, until)
    _check(ranks, pattern, share, reserve, release)
    if for_ is not None and reserve is None:
        raise UsageError("--for says how long a reservation counts: it needs --reserve")
    store = open_lake(lake)
    if release is not None:
        _release(store, release, json)
        return
    from xtune.pipelines.history import open_history
    from xtune.placement import Request, survey

    with open_history(store) as history:
        first_ns, last_ns = _span_ns(history, *span)
        fabric = survey(history, first_ns, last_ns)
    request = None
    if ranks is not None:
        request = Request(ranks=ranks, ranks_per_host=ranks_per_host, pattern=pattern, share=share)
    from xtune.cli import _place_text

    found = _place_text.Found(
        fabric=fabric, request=request, ranks_per_host=ranks_per_host, since_ns=first_ns,
        until_ns=last_ns,
    )  # fmt: skip
    if reserve is None:
        _advise(store, found)
    else:
        _reserve(store, found, reserve, round(lasts_s * _NS))
    if json:
        emit_json(found.document())
    else:
        found.tell()


def _check(
    ranks: int | None, pattern: str, share: float, reserve: str | None, release: str | None
) -> None:
    """Raises UsageError where flags do not go together or a value is none."""
    from xtune.placement.patterns import PATTERNS

    if pattern not in PATTERNS:
        raise UsageError(f"--pattern: there is no {pattern!r}", f"one of {', '.join(PATTERNS)}")
    if not 0.0 < share <= 1.0:
        raise UsageError(f"--share: {share} is not a share", "above 0, at most 1")
    if release is not None and (ranks is not None or reserve is not None):
        raise UsageError("--release goes alone: it places nothing")
    if reserve is not None and ranks is None:
        raise UsageError("--reserve needs --ranks: how many ranks to reserve for")
    for option, job in (("--reserve", reserve), ("--release", release)):
        if job is not None and not job.strip():
            raise UsageError(f"{option}: a job has a name")


def _span_ns(history: History, first: datetime | None, last: datetime | None) -> tuple[int, int]:
    """The history to look at: the last week with readings, or what flags say.

    Raises:
        NoDataError: The lake has no rates.
    """
    newest = history.last_reading_ns()
    if newest is None:
        raise NoDataError(
            "this lake has no link rates, so what is free is unknown",
            "xtune collect port counters and the output of ibnetdiscover, then xtune rebuild",
        )
    until_ns = newest if last is None else epoch_ns(last)
    return until_ns - _HISTORY_NS if first is None else epoch_ns(first), until_ns


def _advise(store: Lake, found: Found) -> None:
    """Fill in the advice beside what is reserved now."""
    from xtune.placement import Reservations

    found.settle(Reservations(store.root).read(store.clock()))


def _reserve(store: Lake, found: Found, job: str, lasts_ns: int) -> None:
    """The same, and record it before another call can take the same ranks."""
    from xtune.placement import Reservations

    reservations = Reservations(store.root)
    with reservations.locked():
        now_ns = store.clock()
        found.settle(reservations.read(now_ns))
        if found.advice is not None:
            found.reservation = found.advice.reservation(job, now_ns, now_ns + lasts_ns)
            reservations.add(found.reservation, now_ns)


def _release(store: Lake, job: str, json: bool) -> None:
    from xtune.cli._place_text import reservation_row
    from xtune.placement import Reservations

    reservations = Reservations(store.root)
    with reservations.locked():
        gone = reservations.remove(job, store.clock())
    if json:
        emit_json({"schema": 1, "released": reservation_row(gone)})
    else:
        say(f"released {job}: {sum(gone.hosts.values())} ranks on {len(gone.hosts)} hosts")

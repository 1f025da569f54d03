"""Derived tables that are made one UTC day at a time: what one is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from xtune.lake import Lake
from xtune.pipelines._engine import Session
from xtune.pipelines._identity import Identity
from xtune.pipelines._topology import Topology
from xtune.pipelines.rules import EpisodeRules

Rest = Literal["identity", "topology", "rules", "last_samples"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DayInput:
    """What the step of one day may look at.

    Attributes:
        lake: Its clock decides nothing: the same rows give the same tables at any time.
        session: The table's inputs are views in it, by their bare names, with the rows of the day
            and its reach only; the rules are its variables.
        date: ``2026-01-31``; None for rows without a time, and for a table of ``span`` lake.
        start_ns: First instant of the day, nanoseconds since the epoch; 0 where ``date`` is None.
        end_ns: First instant after it; 0 where ``date`` is None.
        identity: One name for each port and host.
        topology: The fabric.
        rules: What counts as congestion.
    """

    lake: Lake
    session: Session
    date: str | None
    start_ns: int
    end_ns: int
    identity: Identity
    topology: Topology
    rules: EpisodeRules


@dataclass(frozen=True, kw_only=True, slots=True)
class DayTable:
    """A derived table that ``rebuild`` makes by running a model day by day.

    Its rows must be the same however the rows of its inputs are spread over files. A day is made
    anew when the files that hold its inputs, what else it rests on, or the code changed.

    Attributes:
        name: Bare name; ``sql/<name>.sql`` is its last model and has its audits.
        inputs: Raw (``collectives``) or derived (``link_rates``) tables it reads, by bare name.
        span: ``day``, or ``lake``: all days at once, where no day can be told alone. Rows of a
            lake-wide table go to the date of their own time.
        reach_days: Days before and after that a day also reads.
        prepare: Loads the relations that the last model names beside ``inputs``; returns notes
            for the user.
        rests_on: What else decides its rows; leave out what ``prepare`` and the models never use,
            so that a new host does not make every day anew. ``last_samples`` is what the last
            partition of ``link_rates`` hands on; not for a table made before.
        before_rates: Made before ``link_rates``, from raw tables.
    """

    name: str
    inputs: tuple[str, ...]
    span: Literal["day", "lake"] = "day"
    reach_days: int = 0
    prepare: Callable[[DayInput], list[str]] | None = None
    rests_on: tuple[Rest, ...] = ("identity", "topology", "rules")
    before_rates: bool = False


def day_tables() -> tuple[DayTable, ...]:
    """All of them, one line each; a table stands after those that it reads.

    Their modules import this one, so they are imported when this is called.
    """
    from xtune.pipelines import (
        _beats,
        _bursts,
        _clocks,
        _concurrency,
        _desync,
        _layers,
        _signals,
        _totals,
    )

    return (
        _clocks.TABLE,
        _totals.TABLE,
        _desync.TABLE,
        _desync.VERDICT_TABLE,
        _bursts.TABLE,
        _beats.TABLE,
        _layers.REORDER,
        _layers.LAYERS,
        _signals.TABLE,
        *_concurrency.TABLES,
    )

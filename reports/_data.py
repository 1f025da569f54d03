"""Gathers what a report shows: derived tables of the lake and a study's result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from xtune.errors import NoDataError
from xtune.reports._words import translator

if TYPE_CHECKING:
    import polars as pl

    from xtune.lake import Lake

# Rates are by far the largest table: no column is read that no section shows.
RATES = ("ts", "interval_s", "link", "wait_fraction", "level")
# Each table with the columns of a row's first and last instant.
SPANS = {
    "episodes": ("start_ts", "end_ts"),
    "link_episodes": ("start_ts", "end_ts"),
    "link_rates": ("ts", "ts"),
    "link_totals": ("ts", "ts"),
    "desync_verdict": ("ts", "ts"),
    "concurrency": ("ts", "ts"),
    "concurrency_knee": ("ts", "ts"),
    "clock_offsets": ("from_ts", "to_ts"),
}


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything that sections draw from.

    Attributes:
        tables: Derived tables by bare name, cut to the asked span; times are int64 ns.
        study: A study's ``result.json``, or ``None``.
        provenance: Command, versions, span and inputs.
        words: English text to the report's language.
    """

    tables: Mapping[str, pl.DataFrame]
    study: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    words: Callable[[str], str]
    language: str = "en"
    names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, link: str | None) -> str:
        """A link as an engineer knows it: the node's name and port, else its id."""
        return "" if link is None else self.names.get(link, link)


def gather(
    lake: Lake,
    *,
    study: Mapping[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
    language: str,
    command: str,
) -> Content:
    """Read the lake.

    Raises:
        NoDataError: Nothing was rebuilt yet.
    """
    import polars as pl

    from xtune.lake import link_names

    tables = {}
    for name in SPANS:
        frame = pl.from_arrow(
            lake.read(f"derived/{name}", RATES if name == "link_rates" else None)
        )
        assert isinstance(frame, pl.DataFrame)
        if name == "link_rates" and frame.is_empty():
            raise NoDataError(
                "the lake holds no rates",
                "run xtune rebuild; a rate takes two readings of a port's counters",
            )
        # What began before the span and reaches into it belongs to it.
        first, last = SPANS[name]
        if since is not None:
            frame = frame.filter(pl.col(last) >= since)
        if until is not None:
            frame = frame.filter(pl.col(first) < until)
        tables[name] = frame.with_columns(pl.col(pl.Datetime).dt.epoch("ns"))
    if tables["link_rates"].is_empty():
        raise NoDataError("the lake holds no rates in that span", "see --since and --until")
    return Content(
        tables=tables,
        study=study,
        provenance=_provenance(lake, tables, study, command),
        words=translator(language),
        language=language,
        names=link_names(lake),
    )


def _provenance(
    lake: Lake, tables: Mapping[str, pl.DataFrame], study: Mapping[str, Any] | None, command: str
) -> dict[str, Any]:
    from xtune import __version__

    rates = tables["link_rates"]
    inputs: dict[str, int] = {}
    for record in lake.inputs().values():
        inputs[record.parser] = inputs.get(record.parser, 0) + 1
    found = {
        "xtune": __version__,
        "command": command,
        "telemetry_from_ns": rates["ts"].min(),
        "telemetry_to_ns": rates["ts"].max(),
        "intervals": rates.height,
        "intervals_unknown": rates["level"].null_count(),
        "links": rates["link"].n_unique(),
        "inputs": inputs,
    }
    if study is not None:
        found["study"] = study["study"]
        found["calibration"] = study["calibration"]
        path = lake.root / "calibrations" / f"{study['calibration']}.json"
        found["calibration_in_lake"] = path.is_file()
        found |= {f"study_{k}": v for k, v in study["provenance"].items()}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]

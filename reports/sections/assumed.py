"""What the simulator could not be fitted on."""

from __future__ import annotations

from collections.abc import Sequence

from xtune.reports._base import Block, Grid, Section, Text
from xtune.reports._data import Content


def build(content: Content) -> Sequence[Block]:
    """What no parameter says, then one row a parameter that rests on an assumption."""
    study = content.study
    if study is None or not (study["assumed"] or study["notes"]):
        return ()
    columns = [content.words(n) for n in ("parameter", "value", "unit", "why")]
    rows = [(a["name"], a["value"], a["unit"], a["why"]) for a in study["assumed"]]
    return (*(Text(text=note) for note in study["notes"]), Grid(columns=columns, rows=rows))


SECTION = Section(name="assumed", order=60, title="What was assumed", build=build)

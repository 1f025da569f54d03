"""The contract of a report section: what was gathered in, a card of plain data out.

A section is one module of ``reports/sections`` that defines ``SECTION``. It returns data; the page
renders it. A section that fails becomes a card that says so, and the report is still written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xtune.reports._data import Content


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A paragraph; ``strong`` for the verdict."""

    text: str
    strong: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Key figures: (label, value with unit, remark)."""

    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table. Cells are text or numbers; ``None`` is unknown. ``shown_of`` is said if cut."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    shown_of: int | None = None
    search: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A Plotly figure as its JSON object, with a text that says what it shows."""

    figure: dict[str, Any]
    alternative: str
    height_px: int = 380


Block = Text | Figures | Grid | Plot


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One section as it is shown."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)
    failed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One section: its place on the page and how it is made.

    Attributes:
        name: Also the anchor.
        order: Sections are shown in rising order.
        build: Blocks from what was gathered; no blocks leave the section out.
    """

    name: str
    order: int
    title: str
    build: Callable[[Content], Sequence[Block]]


def safe_card(section: Section, content: Content) -> Card | None:
    """The section's card; a card that says what went wrong where it fails."""
    title = content.words(section.title)
    try:
        blocks = section.build(content)
    except Exception as error:  # one panel must not cost the report
        text = f"{content.words('this panel failed')}: {type(error).__name__}: {error}"
        return Card(name=section.name, title=title, blocks=(Text(text=text),), failed=True)
    return Card(name=section.name, title=title, blocks=blocks) if blocks else None

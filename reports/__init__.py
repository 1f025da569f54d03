"""Reports: derived tables and a study's result in, one HTML file and its JSON twin out."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xtune.errors import InputError, UsageError
from xtune.files import write_atomically
from xtune.reports._base import Card, Plot, Section, safe_card

if TYPE_CHECKING:
    from xtune.lake import Lake

__all__ = ["Report", "build_report"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was written."""

    html: Path
    json: Path
    bytes: int
    failed: tuple[str, ...]


def all_sections() -> list[Section]:
    """Every section, in order: each module of ``reports/sections``."""
    folder = Path(__file__).parent / "sections"
    found = [
        importlib.import_module(f"xtune.reports.sections.{info.name}").SECTION
        for info in pkgutil.iter_modules([str(folder)])
    ]
    return sorted(found, key=lambda section: (section.order, section.name))


def build_report(
    lake: Lake,
    out: Path,
    *,
    study: Mapping[str, Any] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    language: str = "en",
    command: str = "",
) -> Report:
    """Write ``out`` (one self-contained HTML file) and ``report.json`` beside it.

    Args:
        lake: With derived tables.
        out: The HTML file.
        study: A study's ``result.json``.
        since: From this time on.
        until: Before this time.
        language: ``en`` or ``zh``.
        command: Shown in the provenance.

    Raises:
        InputError: ``out`` cannot be written.
        NoDataError: Nothing was rebuilt yet, or nothing lies in the span.
        UsageError: ``out`` is the JSON twin's name.
    """
    from xtune.reports._data import gather
    from xtune.reports._page import render

    content = gather(
        lake, study=study, since=since, until=until, language=language, command=command
    )
    cards = [card for card in (safe_card(s, content) for s in all_sections()) if card is not None]
    html = out.absolute()
    twin = html.with_name("report.json")
    if html == twin:
        raise UsageError(f"--out: {out} is the name of the JSON twin", "name an .html file")
    document = {
        "schema": 1,
        "provenance": content.provenance,
        "cards": [_plain(card) for card in cards],
        "study": study,
    }
    texts = {html: render(content, cards)}
    texts[twin] = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        html.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text.encode())
    except OSError as error:
        message = f"{out}: {error.strerror}"
        raise InputError(message, "--out names the HTML file") from error
    failed = tuple(card.name for card in cards if card.failed)
    return Report(html, twin, html.stat().st_size, failed)


def _plain(card: Card) -> dict[str, Any]:
    blocks = [
        {"kind": type(block).__name__.lower(), **dataclasses.asdict(block)}
        for block in card.blocks
        if not isinstance(block, Plot)
    ]
    plots = [
        {"kind": "plot", "alternative": b.alternative, "figure": b.figure}
        for b in card.blocks
        if isinstance(b, Plot)
    ]
    return {"name": card.name, "title": card.title, "blocks": blocks + plots}

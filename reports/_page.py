"""Renders cards as one self-contained page; every label is escaped, for names are foreign."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from xtune.reports._base import Block, Card, Figures, Grid, Plot, Text
from xtune.reports._data import Content
from xtune.reports._figures import moment

NUMERIC = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?")
WIDE_TEXT = 60  # longer cells get a wide column


def render(content: Content, cards: Sequence[Card]) -> str:
    """The whole page; the same cards give the same bytes."""
    figures: dict[str, Any] = {}
    body = "\n".join(_card(card, content, figures) for card in cards)
    folder = files("xtune.reports") / "templates"
    first, last = (content.provenance[f"telemetry_{k}_ns"] for k in ("from", "to"))
    page = Template((folder / "page.html").read_text("utf-8"))
    return page.substitute(
        lang="zh" if content.language == "zh" else "en",
        title=escape(content.words("Congestion report")),
        span=f"{moment(first)} .. {moment(last)} UTC",
        css=(folder / "report.css").read_text("utf-8"),
        js=(folder / "report.js").read_text("utf-8"),
        nav=" ".join(f'<a href="#{c.name}">{escape(c.title)}</a>' for c in cards),
        body=body,
        footer=escape(f"xtune {content.provenance['xtune']}"),
        figures=_script_json(figures),
        plotly=_plotly() if figures else "",
    )


def _script_json(value: Any) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _card(card: Card, content: Content, figures: dict[str, Any]) -> str:
    blocks = "\n".join(
        _block(block, f"{card.name}-{i}", content, figures) for i, block in enumerate(card.blocks)
    )
    mark = ' class="failed"' if card.failed else ""
    return f'<section id="{card.name}"{mark}><h2>{escape(card.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, name: str, content: Content, figures: dict[str, Any]) -> str:
    match block:
        case Text():
            mark = ' class="strong"' if block.strong else ""
            return f"<p{mark}>{escape(block.text)}</p>"
        case Figures():
            cells = (
                f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd>"
                + (f'<dd class="remark">{escape(remark)}</dd>' if remark else "")
                + "</div>"
                for label, value, remark in block.rows
            )
            return f'<dl class="figures">{"".join(cells)}</dl>'
        case Grid():
            return _grid(block, name, content)
        case Plot():
            figures[name] = block.figure
            return (
                f'<figure><div class="plot" id="{name}" style="height:{block.height_px}px" '
                f'role="img" aria-label="{escape(block.alternative)}"></div>'
                f"<figcaption>{escape(block.alternative)}</figcaption></figure>"
            )


def _grid(grid: Grid, name: str, content: Content) -> str:
    numeric = [all(map(_is_number, column)) for column in zip(*grid.rows, strict=True)]
    numeric = numeric or [False] * len(grid.columns)
    head = "".join(map(_head, grid.columns, numeric))
    rows = "".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>" for row in grid.rows)
    search = (
        f'<input type="search" data-table="{name}" aria-label="{content.words("search")}" '
        f'placeholder="{content.words("search")}">'
        if grid.search
        else ""
    )
    cut = ""
    if grid.shown_of is not None and grid.shown_of > len(grid.rows):
        cut = f'<p class="note">{len(grid.rows)} / {grid.shown_of}</p>'
    return (
        f'{search}<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{cut}"
    )


def _head(title: str, numeric: bool) -> str:
    mark = ' class="n"' if numeric else ""
    return f'<th scope="col" tabindex="0"{mark}>{escape(title)}</th>'


def _is_number(value: object) -> bool:
    """Whether a cell is a number, its text, or unknown."""
    if isinstance(value, str):
        return value == "-" or NUMERIC.fullmatch(value) is not None
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object, numeric: bool) -> str:
    """One cell; ``numeric``: its column's texts are numbers, and sorted by value."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        mark = ' class="n"' if numeric else ""
        return f'<td{mark} data-v="">-</td>'  # unknown: sorted behind all that is known
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        return f'<td class="n" data-v="{value!r}">{text}</td>'
    text = str(value)
    if text == "-":
        return _cell(None, numeric=True)
    if numeric:
        return f'<td class="n" data-v="{float(text.rstrip("%").replace(",", ""))!r}">{text}</td>'
    mark = ' class="wide"' if len(text) > WIDE_TEXT else ""
    return f"<td{mark}>{escape(text)}</td>"

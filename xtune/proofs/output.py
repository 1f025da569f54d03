"""The table and the plot of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from plotly.colors import qualitative
from plotly.subplots import make_subplots

Table = Mapping[str, Mapping[str, Any]]
NEAR_PERCENT = 3.0  # change of perplexity up to which methods are also drawn by themselves

HEADINGS = (
    "method", "perplexity", "change, 95 % interval", "by seed", "nats/byte", "saved vs bf16",
    "vs fp32", "with warm start: bf16", "fp32", "extra iterations", "error power",
)  # fmt: skip


def rows(table: Table) -> list[list[str]]:
    """The table's cells, one list a method."""
    return [_row(name, method) for name, method in table.items()]


def as_text(table: Table, about: str) -> str:
    """For a terminal, in columns."""
    cells = [list(HEADINGS), *rows(table)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, "", about])


def as_markdown(table: Table, about: str) -> str:
    """For a page."""
    lines = [f"| {' | '.join(row)} |" for row in (list(HEADINGS), *rows(table))]
    lines.insert(1, "|" + " --- |" * len(HEADINGS))
    return "\n".join([*lines, "", about, ""])


def draw(table: Table, phases: Sequence[int], about: str, path: Path) -> None:
    """Damage by iteration, and damage against bytes saved, as one page of HTML.

    On the right the same again, near full precision.
    """
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=(
            "held-out loss above full precision", f"within {NEAR_PERCENT:g} %",
            "damage against bytes saved", f"within {NEAR_PERCENT:g} %",
        ),
        vertical_spacing=0.12,
    )  # fmt: skip
    for (name, row), colour in zip(table.items(), cycle(qualitative.Dark24), strict=False):
        change = row["perplexity_change"]
        spread = 0.0 if change["high"] is None else 100 * (change["high"] - change["mean"])
        look = {"name": name, "legendgroup": name, "line_color": colour}
        for column in (1, 2):
            figure.add_scatter(
                x=list(phases), y=row["damage_by_phase"], mode="lines+markers",
                showlegend=column == 1, row=1, col=column, **look,
            )  # fmt: skip
            figure.add_scatter(
                x=[100 * row["saved_vs_bf16"]], y=[100 * change["mean"]],
                error_y={"type": "data", "array": [spread]}, mode="markers",
                showlegend=False, row=2, col=column, **look,
            )  # fmt: skip
    figure.update_xaxes(title_text="iteration of the branch", row=1)
    figure.update_yaxes(title_text="nats per token", row=1)
    figure.update_xaxes(title_text="bytes saved against bf16, %", row=2)
    figure.update_yaxes(title_text="perplexity change, %", row=2)
    figure.update_yaxes(range=[-NEAR_PERCENT / 300, NEAR_PERCENT / 100], row=1, col=2)
    figure.update_yaxes(range=[-NEAR_PERCENT / 3, NEAR_PERCENT], row=2, col=2)
    figure.update_xaxes(range=[50, 100], row=2, col=2)
    figure.update_layout(title=about.splitlines()[0], height=1000, template="plotly_white")
    figure.write_html(path, include_plotlyjs=True)


def _row(name: str, method: Mapping[str, Any]) -> list[str]:
    change = method["perplexity_change"]
    spread = (
        ""
        if change["low"] is None
        else (f" [{100 * change['low']:+.2f}, {100 * change['high']:+.2f}]")
    )
    extra = method["extra_iterations"]
    return [
        f"{name}: {method['label']}",
        f"{method['perplexity']:.3f}",
        f"{100 * change['mean']:+.3f} %{spread}",
        " ".join(f"{100 * value:+.3f}" for value in method["perplexity_changes"]),
        f"{method['nats_per_byte']:.4f}",
        *(
            f"{100 * method[column]:.1f} %"
            for column in (
                "saved_vs_bf16", "saved_vs_fp32",
                "saved_vs_bf16_with_warm_start", "saved_vs_fp32_with_warm_start",
            )
        ),
        "never" if extra is None else f"{100 * extra:+.1f} %",
        f"{method['error_power']:.2g}",
    ]  # fmt: skip

"""The list of tables in docs/pipelines.md, from the tables' contracts.

``python -m tests.pipelines.docs`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from xtune.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
BEGIN, END = "<!-- tables: xtune/tables.py -->\n", "<!-- end of tables -->"


def table() -> str:
    """Markdown, one row a table."""
    lines = ["| table | a row is |", "|---|---|"]
    lines += [f"| `{contract.name}` | {contract.grain} |" for contract in TABLES.values()]
    return "\n".join(lines) + "\n"


def split(text: str) -> tuple[str, str, str]:
    """The page before the list, the list, and after it."""
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


def main() -> None:
    """Write the list into the page."""
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()

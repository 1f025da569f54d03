"""The list of tables in docs/pipelines.md, from the tables' contracts.

``python -m tests.pipelines.docs`` writes it anew.
"""

from __future__ import annotations

from tests.pages import ROOT, Listed
from xtune.tables import TABLES

LISTED = Listed(
    page=ROOT / "docs" / "pipelines.md",
    begin="<!-- tables: xtune/tables.py -->\n",
    end="<!-- end of tables -->",
)


def table() -> str:
    """Markdown, one row a table."""
    lines = ["| table | a row is |", "|---|---|"]
    lines += [f"| `{contract.name}` | {contract.grain} |" for contract in TABLES.values()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LISTED.write(table())

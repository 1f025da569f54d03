"""The README's table of formats, from what the collectors say of themselves.

``python -m tests.conformance.formats`` writes it anew.
"""

from __future__ import annotations

from tests.pages import ROOT, Listed
from xtune.collectors import all_collectors

LISTED = Listed(
    page=ROOT / "README.md",
    begin="<!-- formats: xtune collect --list -->\n",
    end="<!-- end of formats -->",
)


def table() -> str:
    """Markdown, one row a collector of ours."""
    lines = [
        "| `--kind` | source | how to produce it | gives | cannot give |",
        "|---|---|---|---|---|",
    ]
    for name, c in all_collectors().items():
        if type(c).__module__.startswith("xtune."):
            cells = (f"`{name}`", c.title, c.produce, c.gives, c.lacks)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LISTED.write(table())

"""The README's table of formats, from what the collectors say of themselves.

``python -m tests.conformance.formats`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from xtune.collectors import all_collectors

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- formats: xtune collect --list -->\n", "<!-- end of formats -->"


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


def split(text: str) -> tuple[str, str, str]:
    """README before the table, the table, and after it."""
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


def main() -> None:
    """Write the table into the README."""
    before, _, after = split(README.read_text())
    README.write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()

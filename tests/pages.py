"""Lists inside pages for people that are written from what the code says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A page, and the lines between which its list stands."""

    page: Path
    begin: str
    end: str

    def split(self, text: str) -> tuple[str, str, str]:
        """The page before the list, the list, and after it."""
        before, rest = text.split(self.begin)
        inside, after = rest.split(self.end)
        return before, inside, after

    def write(self, table: str) -> None:
        """Write the list into the page."""
        before, _, after = self.split(self.page.read_text())
        self.page.write_text(before + self.begin + table + self.end + after)

"""What a seed is: a small valid input of one collector, from which damaged ones are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

Form = Literal["text", "json", "jsonl", "binary", "tree"]

#: Between a file's name and its content in the bytes of a tree's seed.
_IS = b"="


@dataclass(frozen=True, kw_only=True, slots=True)
class Seed:
    """Valid inputs of one collector.

    Attributes:
        form: ``text`` (lines), ``json`` (one document), ``jsonl`` (JSON lines, or lines that hold
            JSON), ``binary``, or ``tree``: a folder, whose bytes are lines ``path=content``.
        inputs: One or more valid inputs; each is claimed by the collector and gives rows.
        stands: Columns that a line's row has whatever stands in later lines; empty where rows
            cannot be told by lines.
        remake: Makes an input that is damaged inside an intact frame (checksums, pickle).
        name: The file's name, where the collector reads something from it.
        context: Fields of the context to read it with.
        claimed: Whether content alone tells the collector.
        named_late: What names a row (a GUID) stands after values of it, so that a cut input may
            name them otherwise.
        last: Pattern of what stands before the digits of a whole input's last value, where that
            is taken without a line end too: a cut inside these digits cannot be told.
    """

    form: Form
    inputs: tuple[bytes, ...]
    stands: tuple[str, ...] = ()
    remake: Callable[[Random], bytes] | None = None
    name: str = "input"
    context: tuple[tuple[str, Any], ...] = ()
    claimed: bool = True
    named_late: bool = False
    last: str = ""

    @property
    def textual(self) -> bool:
        """Whether it is lines of text, JSON included."""
        return self.form in ("text", "json", "jsonl")

    def place(self, folder: Path, data: bytes) -> Path:
        """Write an input into an empty folder, and return what a collector is given."""
        path = folder / self.name
        if self.form == "tree":
            return place_tree(path, data)
        path.write_bytes(data)
        return path


def place_tree(root: Path, data: bytes) -> Path:
    """Write the files of lines ``path=content``; a path that leads out of ``root`` is left out."""
    root.mkdir()
    for line in data.splitlines():
        name, _, content = line.partition(_IS)
        parts = [p for p in name.split(b"/") if p and p not in (b".", b"..") and len(p) < 250]
        if not parts or b"\0" in name:
            continue
        path = root.joinpath(*(p.decode("utf-8", "surrogateescape") for p in parts))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.replace(b"\\n", b"\n"))
        except OSError:
            continue  # one name as file and folder
    return root


def lines(*found: str) -> bytes:
    """Lines as a file has them."""
    return "".join(f"{line}\n" for line in found).encode()

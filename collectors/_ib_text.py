"""Lines of a text input, one at a time, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from xtune.collectors._base import Reject, Source
from xtune.collectors._textlines import READ_ERRORS, Rejects

#: No line of these formats comes near; a file without line ends must not fill the memory.
MAX_LINE_BYTES = 1 << 20


def read_lines(source: Source, damage: list[Reject] | Rejects) -> Iterator[tuple[int, str]]:
    """Yield ``(line number, line without its end)``; undecodable bytes become U+FFFD.

    Args:
        source: A file, plain or gzip.
        damage: Gets a reject where the bytes end early: a cut or corrupt gzip stream, a file
            that cannot be read, a line too long to be one.
    """
    number = 0
    try:
        with source.open() as stream:
            while raw := stream.readline(MAX_LINE_BYTES):
                number += 1
                if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    damage.append(Reject(f"line {number}", "longer than 1 MiB: not this format"))
                    return
                yield number, raw.decode("utf-8", "replace").rstrip("\r\n")
    except READ_ERRORS as error:
        damage.append(
            Reject(
                f"after line {number}",
                f"the bytes end here: {error}",
                "copy the file again; what was before is kept",
            )
        )


def clip(text: str, limit: int = 60) -> str:
    """``text`` fit for a message: printable and short."""
    plain = "".join(c if c.isprintable() else "?" for c in text.strip())
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."

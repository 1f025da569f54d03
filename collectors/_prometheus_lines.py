"""Lines of an exposition in blocks, which costs a fraction of one at a time; memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator

from xtune.collectors._base import Reject, Source
from xtune.collectors._ib_text import clip
from xtune.collectors._textlines import LINE_LIMIT, READ_ERRORS

_BLOCK_BYTES = 1 << 20


class LineBlocks:
    """Iterates over (number of the first line, lines without their ends).

    ``rejects`` holds what went wrong, once iterated. A last line without an end is only given
    where it is a comment: a sample may be cut inside its value, and the format asks for the end.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.rejects: list[Reject] = []

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        number, offset, carry, skipping = 1, 0, b"", False
        try:
            with self._source.open() as stream:
                while block := stream.read(_BLOCK_BYTES):
                    if not offset:
                        block = block.removeprefix(b"\xef\xbb\xbf")
                    offset += len(block)
                    if skipping:
                        _, end, block = block.partition(b"\n")
                        skipping = not end
                        number += bool(end)
                        if not end:
                            continue
                    lines = (carry + block).split(b"\n")
                    carry = lines.pop()
                    if lines:
                        yield number, lines
                        number += len(lines)
                    if len(carry) > LINE_LIMIT:
                        reason = f"line is longer than {LINE_LIMIT} bytes: left out"
                        self.rejects.append(Reject(f"line {number}", reason))
                        carry, skipping = b"", True
        except READ_ERRORS as error:
            hint = "the file is cut or damaged; what came before is kept"
            self.rejects.append(Reject(f"line {number}", f"cannot be read further: {error}", hint))
        if carry.startswith(b"#"):
            yield number, [carry]
        elif carry.strip():
            text = clip(carry.decode("utf-8", "replace"))
            self.rejects.append(
                Reject(f"line {number}", f"line without an end, it may be cut: {text!r}")
            )

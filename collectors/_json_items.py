"""Objects of one long JSON array, one by one, in bounded memory, also where the file is cut.

For files of one object with a long array in it (execution traces, reports) or of one bare array.
Bytes are read as Latin-1, so that a place in the text is a byte of the file; :func:`as_utf8` turns
text back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from xtune.collectors._base import Reject, Source
from xtune.collectors._textlines import READ_ERRORS

_CHUNK = 1 << 20
_HEADER = 1 << 22
#: An element longer than this is left out.
MAX_ITEM = 1 << 23
_BETWEEN = re.compile(r"[\s,]*")
_HALF = re.compile(r"[A-Za-z0-9.+-]{0,64}\s*$")  # of a literal, at the end of the text
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Element:
    """One object of the array and the byte it starts at."""

    offset: int
    value: dict[str, Any]


def as_utf8(value: Any) -> Any:
    """A text as it stands in the file; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return value.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return value  # it had escapes beyond Latin-1, which need no turning back


class Elements:
    """Iterates over the objects of an array.

    Attributes:
        header: Values that stand before the array in its object; once iteration has begun.
        cut: Byte at which the element begins within which, or before which, the file ends; null
            where the array is closed, once iterated.
    """

    def __init__(
        self,
        source: Source,
        key: str | None,
        *,
        start: str = r"\{",
        mend: Callable[[str], str] | None = None,
    ) -> None:
        """Prepare to read the array under ``key``, or the file's own array where that is null.

        Args:
            source: The file.
            key: The array's key.
            start: Pattern of what an element, and no object within one, starts with; by it the
                next one is found after one that is not JSON.
            mend: Makes JSON of an element that is not quite.
        """
        self._source = source
        self._key = re.compile(rf'"{re.escape(key)}"\s*:\s*\[') if key else re.compile(r"\[")
        self._next = re.compile(rf"\}}\s*,\s*(?={start})")
        self._mend = mend
        self.header: dict[str, Any] = {}
        self.cut: int | None = None
        self._text = ""
        self._at = self._base = 0
        self._ended = False
        self._unfinished = False  # the last error was that the text ended
        self._damage: str | None = None

    def __iter__(self) -> Iterator[Element | Reject]:
        try:
            with self._source.open() as stream:
                yield from self._read(stream)
        except READ_ERRORS as error:
            yield Reject("byte 0", f"cannot be read: {error}")

    def _read(self, stream: Any) -> Iterator[Element | Reject]:
        self._stream = stream
        if not self._find():
            yield Reject("byte 0", "the array that this format holds is not in the file")
        else:
            yield from self._elements()
        if self._damage is not None:
            yield Reject(
                f"byte {self._base + len(self._text)}",
                f"cannot be read further: {self._damage}",
                "the file is cut or damaged; what came before is kept",
            )

    def _more(self) -> bool:
        if self._ended:
            return False
        chunk = b""
        try:
            while len(chunk) < _CHUNK and (piece := self._stream.read1(_CHUNK - len(chunk))):
                chunk += piece
        except READ_ERRORS as error:
            self._damage, self._ended = str(error), True
        if not chunk:
            self._ended = True
            return False
        self._base += self._at
        self._text, self._at = self._text[self._at :] + chunk.decode("latin-1"), 0
        return True

    def _find(self) -> bool:
        """Go behind the bracket that opens the array; keep what stands before it."""
        while self._more():
            found = self._key.search(self._text)
            if found:
                self.header = _header(self._text[: found.start()])
                self._at = found.end()
                return True
            if len(self._text) > _HEADER:
                self._at = len(self._text) - 64
        return False

    def _elements(self) -> Iterator[Element | Reject]:
        while True:
            between = _BETWEEN.match(self._text, self._at)
            self._at = between.end() if between else self._at
            if self._at >= len(self._text):
                if self._more():
                    continue
                self.cut = self._base + self._at
                return
            if self._text[self._at] == "]":
                return
            start = self._base + self._at
            value, end, error = self._decode()
            if error is None:
                self._at = end
            else:
                value, last, cut = self._recover()
                if cut:
                    self.cut = start
                elif value is None:
                    yield Reject(f"byte {start}", f"an element that is not JSON: {error}")
            if isinstance(value, dict):
                yield Element(start, value)
            if error is not None and last:
                return

    def _decode(self) -> tuple[Any, int, str | None]:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                return value, end, None
            except RecursionError:
                return None, 0, "nested too deeply"
            except json.JSONDecodeError as error:
                near = error.pos >= len(self._text) - 16 or error.msg.startswith("Unterminated")
                if near and len(self._text) - self._at < MAX_ITEM and self._more():
                    continue
                at_end = _HALF.match(self._text, error.pos) is not None
                self._unfinished = at_end or error.msg.startswith("Unterminated")
                return None, 0, error.msg
            except ValueError:  # Python refuses integers of more than 4300 digits
                return None, 0, "a number of thousands of digits"

    def _recover(self) -> tuple[Any, bool, bool]:
        """Mend the element at this place or pass over it.

        Returns:
            What it is or null, whether none follows it, and whether the file ends within it.
        """
        cut = False
        while True:
            found = self._next.search(self._text, self._at + 1)
            if found or not self._more():
                break
            if len(self._text) - self._at >= MAX_ITEM:  # look on without what is left out
                self._at = len(self._text) - 4096
        if found:
            body, self._at = self._text[self._at : found.start() + 1], found.end()
        else:
            body, self._at = self._text[self._at :].rstrip(), len(self._text)
            body = body.removesuffix("]").rstrip().rstrip(",")
            cut = self._unfinished
        try:
            value = json.loads(self._mend(body)) if self._mend and not cut else None
        except (ValueError, RecursionError):
            value = None
        return value, not found, cut


def _header(before: str) -> dict[str, Any]:
    try:
        value = json.loads(before.lstrip("\xef\xbb\xbf \t\r\n").rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

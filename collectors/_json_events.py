"""Events of a Chrome trace one by one, also of a cut or slightly broken one, in bounded memory.

Bytes are read as Latin-1, so that a position in the text is a byte of the file; text that matters
is turned back by :func:`as_utf8`. Python's decoder accepts NaN and Infinity; ``nan`` and ``inf``
of other writers are mended. After an event that is no JSON the next one is looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xtune.collectors._base import Note, Reject, Source
from xtune.collectors._textlines import READ_ERRORS

_CHUNK = 1 << 20
MAX_EVENT = 1 << 22
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_NEXT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)"\s*:)')
_BARE = re.compile(r"(?<=[:\[,])(\s*-?)(nan|inf|infinity)(?=\s*[,}\]])", re.I)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the trace and the byte it starts at."""

    offset: int
    value: dict[str, Any]


def as_utf8(value: Any) -> Any:
    """A text of an event as it stands in the file; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return value.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return value  # it had escapes beyond Latin-1, which need no turning back


def header_values(
    source: Source, names: tuple[str, ...], enough: frozenset[str]
) -> dict[str, Any]:
    """Values of the first occurrence of keys at the top of the trace, wherever it has them.

    Stops early once ``enough`` of them are found: a new trace has them before its events, an
    older one after.
    """
    pattern = re.compile(r'(?<!\\)"(' + "|".join(names) + r')"\s*:\s*(?=[\d"{\[-])')
    found: dict[str, Any] = {}
    try:
        with source.open() as stream:
            text = ""
            while chunk := stream.read1(_CHUNK):
                text += chunk.decode("latin-1")
                for match in pattern.finditer(text):
                    while match[1] not in found:
                        end = len(text)
                        try:
                            value, end = _DECODER.raw_decode(text, match.end())
                        except (ValueError, RecursionError):
                            value = None
                        # A number that ends where the text ends may go on.
                        more = b""
                        if end >= len(text) and len(text) < 2 * MAX_EVENT:
                            more = stream.read1(_CHUNK)
                        if not more:
                            found[match[1]] = value
                        text += more.decode("latin-1")
                if enough <= found.keys():
                    break
                text = text[-256:]
    except READ_ERRORS:
        pass  # the pass over the events says so
    return found


class _Window:
    """The part of the file that is being looked at."""

    def __init__(self, source: Source) -> None:
        self._stream = source.open()
        self.text = ""
        self.at = 0
        self.base = 0
        self.ended = False
        self.damage: str | None = None

    @property
    def offset(self) -> int:
        return self.base + self.at

    @property
    def left(self) -> int:
        return len(self.text) - self.at

    def more(self) -> bool:
        """Read on; false at the end of what can be read."""
        if self.ended:
            return False
        chunk = b""
        try:
            # Piece by piece: what a cut gzip file gives before its end is kept.
            while len(chunk) < _CHUNK and (piece := self._stream.read1(_CHUNK - len(chunk))):
                chunk += piece
        except READ_ERRORS as error:
            self.damage = str(error)
        self.ended = self.damage is not None
        if not chunk:
            self.ended = True
            return False
        self.base += self.at
        self.text = self.text[self.at :] + chunk.decode("latin-1")
        self.at = 0
        return True

    def close(self) -> None:
        self._stream.close()


def events(source: Source) -> Iterator[Event | Reject | Note]:
    """Events in order. What is no JSON costs itself; where the file is cut is said."""
    try:
        window = _Window(source)
    except READ_ERRORS as error:
        yield Reject("byte 0", f"cannot be read: {error}")
        return
    try:
        if _find_array(window):
            yield from _array(window)
        else:
            yield Reject("byte 0", "no trace events in this file")
        if window.damage is not None:
            yield Reject(f"byte {window.offset}", f"cannot be read further: {window.damage}")
    finally:
        window.close()


def _find_array(window: _Window) -> bool:
    window.more()
    stripped = window.text.lstrip("\xef\xbb\xbf \t\r\n")
    if stripped.startswith("["):
        window.at = window.text.index("[") + 1
        return True
    while True:
        found = _EVENTS.search(window.text, window.at)
        if found:
            window.at = found.end()
            return True
        window.at = max(window.at, len(window.text) - 64)
        if not window.more():
            return False


def _array(window: _Window) -> Iterator[Event | Reject | Note]:
    count = mended = 0
    while True:
        between = _BETWEEN.match(window.text, window.at)
        window.at = between.end() if between else window.at
        if not window.left:
            if window.more():
                continue
            yield Note(
                f"the trace ends without its closing bracket: {count} whole events are kept"
            )
            break
        if window.text[window.at] == "]":
            break
        start = window.offset
        value, error, end = _decode(window)
        if error is None:
            window.at = end
        else:
            value, was_cut = _recover(window)
            if value is not None:
                mended += 1
            elif was_cut:
                yield Reject(
                    f"byte {start}", f"the trace is cut here: {count} whole events are kept"
                )
                break
            else:
                yield Reject(f"byte {start + error.pos}", f"event is not JSON: {error.msg}")
        if isinstance(value, dict):
            count += 1
            yield Event(start, value)
    if mended:
        yield Note("events with bare nan or inf: read as NaN and Infinity", mended)


def _decode(window: _Window) -> tuple[Any, json.JSONDecodeError | None, int]:
    """The value at the window's place; an error's position is relative to it."""
    while True:
        try:
            value, end = _DECODER.raw_decode(window.text, window.at)
            return value, None, end
        except RecursionError:
            return None, json.JSONDecodeError("nested too deeply", "", 0), 0
        except json.JSONDecodeError as error:
            near_end = error.pos >= len(window.text) - 16 or error.msg.startswith("Unterminated")
            if near_end and window.left < MAX_EVENT and window.more():
                continue
            return None, json.JSONDecodeError(error.msg, "", error.pos - window.at), 0
        except ValueError:  # Python refuses integers of more than 4300 digits
            return None, json.JSONDecodeError("a number of thousands of digits", "", 0), 0


def _recover(window: _Window) -> tuple[Any, bool]:
    """Mend the event at the window's place or pass over it.

    Returns:
        The mended event or null, and whether the file ends within the event.
    """
    while True:
        found = _NEXT.search(window.text, window.at + 1)
        if found or window.left >= 2 * MAX_EVENT or not window.more():
            break
    if found:
        body, window.at = window.text[window.at : found.start() + 1], found.end()
    else:
        close = window.text.rfind("]", window.at)
        body = window.text[window.at : close if close >= 0 else len(window.text)].rstrip()
        window.at = close if close >= 0 and window.ended else len(window.text)
        if window.ended and not body.endswith("}"):
            return None, True
    try:
        return json.loads(_BARE.sub(_named, body)), False
    except (ValueError, RecursionError):
        return None, False


def _named(match: re.Match[str]) -> str:
    return match[1] + ("NaN" if match[2].lower() == "nan" else "Infinity")

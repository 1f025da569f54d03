"""Events of a Chrome trace, a run at a time, also of a cut or slightly broken one.

Runs of whole events are parsed by orjson. A run ends where an object of the array seems to end
and another to start; the guess is proven by the parser: a run is whole if and only if it is JSON
between brackets. Where orjson refuses a run (NaN, an unescaped quote, a cut), what stands before
the wrong event is a run of its own, and that event alone is read by a tolerant scanner: Python's
decoder accepts NaN and Infinity; ``nan`` and ``inf`` of other writers are mended; after an event
that is no JSON the next one is looked for. Memory is that of one run or one event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from xtune.collectors._base import Note, Reject, Source
from xtune.collectors._textlines import READ_ERRORS

#: Objects of a run of this size stay in a core's cache: four times as fast as the whole file.
RUN = 1 << 16
MAX_EVENT = 1 << 22
_LEAST_RUN = 1 << 12
_MOST_SLOW = 255
_MAX_AROUND = 1 << 22
_BLANK = b" \t\r\n"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"[\s,]*")
_NEXT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)"\s*:)')
_BARE = re.compile(
    r'"(?:[^"\\]|\\.)*"|(?<=[:\[,])(?P<sign>\s*-?)(?P<word>nan|inf|infinity)(?=\s*[,}\]])',
    re.I | re.S,
)
_WORD = re.compile("nan|inf", re.I)
_DECODER = json.JSONDecoder()

Events = list[dict[str, Any]]


class TraceScan:
    """One pass over a trace.

    Attributes:
        head: What stands before the first event, up to and with the opening bracket.
        tail: What stands after the last event, from the closing bracket on (its first 4 MB and
            its end); complete only after the pass.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.head = b""
        self.tail = b""
        self._count = self._mended = 0

    def __iter__(self) -> Iterator[Events | Reject | Note]:
        try:
            window = _Window(self._source)
        except READ_ERRORS as error:
            yield Reject("byte 0", f"cannot be read: {error}")
            return
        try:
            if self._find_array(window):
                yield from self._array(window)
                self._rest(window)
            else:
                yield Reject("byte 0", "no trace events in this file")
            if window.damage is not None:
                yield Reject(f"byte {window.offset}", f"cannot be read further: {window.damage}")
        finally:
            window.close()

    def _find_array(self, window: _Window) -> bool:
        window.more()
        if window.data.lstrip(b"\xef\xbb\xbf" + _BLANK).startswith(b"["):
            window.at = window.data.index(b"[") + 1
            return True
        while True:
            found = _EVENTS.search(window.data, window.at)
            if found:
                window.at = found.end()
                self.head += window.data[: window.at]
                return True
            passed = max(window.at, len(window.data) - 64)
            if len(self.head) < _MAX_AROUND:
                self.head += window.data[:passed]
            window.at = passed
            if not window.more():
                return False

    def _array(self, window: _Window) -> Iterator[Events | Reject | Note]:
        size = RUN
        patience = slow = 0
        while True:
            between = _BETWEEN.match(window.data, window.at)
            window.at = between.end() if between else window.at
            if window.left < size and window.more():
                continue
            if not window.left:
                kept = f"{self._count} whole events are kept"
                yield Note(f"the trace ends without its closing bracket: {kept}")
                break
            if window.data[window.at] == 0x5D:  # ]
                break
            found = None
            if slow:
                slow -= 1
            else:
                found, size = _run(window, size)
                # Where each event is wrong, runs are tried more and more rarely.
                patience = 0 if found is not None else min(2 * patience + 1, _MOST_SLOW)
                slow = patience
            if found is not None:
                self._count += len(found)
                yield found
                continue
            yield from self._one(window)
            if window.cut:
                break
        if self._mended:
            yield Note("events with bare nan or inf: read as NaN and Infinity", self._mended)

    def _one(self, window: _Window) -> Iterator[Events | Reject]:
        """The event at the window's place, by the tolerant scanner."""
        start = window.offset
        value, error, end = _decode(window)
        if error is None:
            window.at = end
        else:
            value = _recover(window)
            if value is not None:
                self._mended += 1
            elif window.cut:
                kept = f"{self._count} whole events are kept"
                yield Reject(f"byte {start}", f"the trace is cut here: {kept}")
            else:
                yield Reject(f"byte {start + error.pos}", f"event is not JSON: {error.msg}")
        if isinstance(value, dict):
            self._count += 1
            yield [value]

    def _rest(self, window: _Window) -> None:
        """Read on to the end: a new trace has its time base after the events."""
        tail = bytearray(window.data[window.at :])
        while True:
            window.at = len(window.data)
            if not window.more():
                break
            tail += window.data
            if len(tail) > 2 * _MAX_AROUND:
                del tail[_MAX_AROUND : -_MAX_AROUND // 4]
        self.tail = bytes(tail)


class _Window:
    """The part of the file that is being looked at; ``at`` stands between two events."""

    def __init__(self, source: Source) -> None:
        self._stream = source.open()
        self.data = b""
        self.at = 0
        self.base = 0
        self.ended = False
        self.cut = False
        self.barren = 0
        self.damage: str | None = None
        self._text: str | None = None

    @property
    def offset(self) -> int:
        return self.base + self.at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    @property
    def text(self) -> str:
        """``data`` as Latin-1, so that a position in the text is one in the bytes."""
        if self._text is None:
            self._text = self.data.decode("latin-1")
        return self._text

    def more(self) -> bool:
        """Read on; false at the end of what can be read."""
        if self.ended:
            return False
        pieces: list[bytes] = []
        size = 0
        wanted = max(RUN, self.left)  # twice as much each time, where an event is long
        try:
            # Piece by piece: what a cut gzip file gives before its end is kept.
            while size < wanted and (piece := self._stream.read1(wanted - size)):
                pieces.append(piece)
                size += len(piece)
        except READ_ERRORS as error:
            self.damage = str(error)
        self.ended = self.damage is not None
        if not pieces:
            self.ended = True
            return False
        self.base += self.at
        self.data = b"".join((self.data[self.at :], *pieces))
        self.at = 0
        self._text = None
        return True

    def close(self) -> None:
        self._stream.close()


def _run(window: _Window, size: int) -> tuple[Events | None, int]:
    """Whole events from the window's place on, at most about ``size`` bytes of them.

    Returns:
        The events, or null where the first of them needs the tolerant scanner; and the size that
        the next run should have: small where much is broken.
    """
    limit = min(window.at + size, len(window.data))
    while True:
        stop = _boundary(window, limit)
        if stop < 0:
            return None, size
        body = window.data[window.at : stop]
        try:
            values = orjson.loads(b"[" + body + b"]")
        except orjson.JSONDecodeError as error:
            size = max(size // 2, _LEAST_RUN)
            limit = max(0, min(window.at + error.pos, stop) - 1)
            if not body.isascii() and not _is_utf8(body):
                # Bytes that are not UTF-8 stand in names: they become replacement characters.
                mended = body.decode("utf-8", "replace").encode()
                try:
                    values = orjson.loads(b"[" + mended + b"]")
                except orjson.JSONDecodeError:
                    continue
            else:
                continue
        else:
            size = min(2 * size, RUN)
        window.at = stop
        return [value for value in values if isinstance(value, dict)], size


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _boundary(window: _Window, limit: int) -> int:
    """End of the last ``}`` before ``limit`` that a comma and a ``{`` follow; -1 if none does."""
    data = window.data
    # What was searched in vain before is not searched again.
    start = max(window.at, window.barren - window.base - 64)
    at = limit
    while True:
        at = data.rfind(b"{", start + 1, at)
        if at < 0:
            window.barren = max(window.barren, window.base + limit)
            return -1
        begin = max(window.at, at - 64)
        before = data[begin:at].rstrip(_BLANK)
        if before.endswith(b","):
            before = before[:-1].rstrip(_BLANK)
            if before.endswith(b"}"):
                return begin + len(before)


def _decode(window: _Window) -> tuple[Any, json.JSONDecodeError | None, int]:
    """The value at the window's place; an error's position is relative to it."""
    while True:
        text = window.text
        try:
            value, end = _DECODER.raw_decode(text, window.at)
            return _as_utf8(value, window.data[window.at : end]), None, end
        except RecursionError:
            return None, json.JSONDecodeError("nested too deeply", "", 0), 0
        except json.JSONDecodeError as error:
            near_end = error.pos >= len(text) - 16 or error.msg.startswith("Unterminated")
            if near_end and window.left < MAX_EVENT and window.more():
                continue
            return None, json.JSONDecodeError(error.msg, "", error.pos - window.at), 0
        except ValueError:  # Python refuses integers of more than 4300 digits
            return None, json.JSONDecodeError("a number of thousands of digits", "", 0), 0


def _as_utf8(value: Any, data: bytes) -> Any:
    """The value that ``data`` is, whose decoding as Latin-1 gave ``value``."""
    return value if data.isascii() else json.loads(data.decode("utf-8", "replace"))


def _recover(window: _Window) -> Any:
    """Mend the event at the window's place or pass over it; ``window.cut`` if it has no end."""
    while True:
        found = _NEXT.search(window.text, window.at + 1)
        if found or window.left >= 2 * MAX_EVENT or not window.more():
            break
    text = window.text
    if found:
        body, window.at = text[window.at : found.start() + 1], found.end()
    else:
        close = text.rfind("]", window.at)
        body = text[window.at : close if close >= 0 else len(text)].rstrip()
        window.at = close if close >= 0 and window.ended else len(text)
        if window.ended and not body.endswith("}"):
            window.cut = True
            return None
    if not _WORD.search(body):
        return None
    try:
        return json.loads(_BARE.sub(_named, body.encode("latin-1").decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None


def _named(match: re.Match[str]) -> str:
    word = match["word"]
    if word is None:
        return match[0]
    return match["sign"] + ("NaN" if word.lower() == "nan" else "Infinity")

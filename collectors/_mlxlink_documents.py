"""Outputs of ``mlxlink`` in a stream: JSON documents and text, several in one file.

Both forms become ``{section: {key: value}}``, with values as the tool gives them. Text is
``Key : value`` lines under a title underlined with dashes, in colour on a terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xtune.collectors._base import Context, Reject
from xtune.collectors._ib_text import clip
from xtune.collectors._textlines import Lines
from xtune.collectors._time_lines import TimeLines
from xtune.collectors._values import text

#: A document is some 5 to 20 kB; what is longer is no output of the tool.
_MAX_DOCUMENT = 4 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COMMAND = re.compile(r"(?:^|[\s/;])(?:mlxlink|mstlink)\s+(.*)")
_DEVICE = re.compile(r"(?:^|\s)(?:-d|--device)[\s=]+([^\s|;]+)")
_PORT = re.compile(r"(?:^|\s)(?:-p|--port)[\s=]+(\d{1,3}(?:/\d{1,3}){0,2})(?=\s|$)")
#: What a loop of a user's prints before each output: ``==== mlx5_0 ====``.
_NAMED = re.compile(
    r"[#=*\-\s]*(?:/dev/mst/)?(mlx[45]_(?:bond_)?\d{1,3}|mt\d{3,6}_pciconf\d{1,3}(?:\.\d{1,2})?"
    r"|(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:\s[\w ]{0,40})?[#=*\-\s:]*",
    re.ASCII,
)
_PROMPT = re.compile(r"[\w.-]+@([A-Za-z0-9][\w.-]*)[:\s\]]")
_RULE = re.compile(r"-{3,}")
_PAIR = re.compile(r"(\S(?:.*?\S)?)\s*:(?:\s+(.*))?")


@dataclass(slots=True)
class Document:
    """One output: its sections and what the lines around it say of it.

    Attributes:
        place: Where it begins.
        sections: Section -> key -> value.
        error: What the tool says went wrong; the sections are then not to be used.
    """

    place: str
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str | None = None
    device: str | None = None
    port: str | None = None
    host: str | None = None
    ts: int | None = None


class Documents:
    """Iterates over the documents of a stream of lines; yields rejects for what is none."""

    def __init__(self, lines: Lines, context: Context) -> None:
        self._lines = lines
        self.times = TimeLines(context)
        self._device: str | None = None
        self._port: str | None = None
        self._host: str | None = None
        self._ts: int | None = None
        self._title: str | None = None
        self._open: Document | None = None
        self._json: _JsonScanner | None = None
        self._lost = False

    def __iter__(self) -> Iterator[Document | Reject]:
        for line in self._lines:
            plain = _COLOUR.sub("", line.text)
            if self._json is None and plain.lstrip().startswith("{"):
                yield from self._end()
                self._json = _JsonScanner(line.place)
            if self._json is not None:
                yield from self._feed(plain + "\n", line.place)
            elif not line.whole and ":" in plain:
                yield Reject(line.place, "line without an end: it may be cut")
            else:
                yield from self._text(plain.strip(), line.place)
        yield from self._end()
        if self._json is not None and self._json.started:
            yield Reject(self._json.place, "a JSON document without its end", "the file is cut")

    def _feed(self, piece: str, place: str) -> Iterator[Document | Reject]:
        scanner = self._json
        while scanner is not None:
            whole, rest = scanner.feed(piece)
            if scanner.size > _MAX_DOCUMENT:
                yield Reject(scanner.place, "a JSON document of more than 4 MiB: not mlxlink's")
                self._json = None
                return
            if whole is None:
                return
            yield from self._decode(whole, scanner.place)
            rest = rest.lstrip()
            self._json = scanner = _JsonScanner(place) if rest.startswith("{") else None
            piece = rest
        if piece.strip():
            yield from self._text(piece.strip(), place)

    def _decode(self, whole: str, place: str) -> Iterator[Document | Reject]:
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError) as error:
            yield Reject(place, f"not JSON: {clip(str(error))}", "this document is left out")
            return
        if not isinstance(value, dict):  # "{" begins an object: only a stray one can do this
            yield Reject(place, "not a JSON object")
            return
        if "result" in value or "status" in value:
            yield self._document(value, place, None)
            return
        named = {n: d for n, d in value.items() if isinstance(d, dict) and "result" in d}
        for name, inner in named.items():
            yield self._document(inner, place, name)
        if not named:
            yield Reject(place, "a JSON object that mlxlink does not write")

    def _document(self, value: Mapping[str, Any], place: str, name: str | None) -> Document:
        found = self._new(place)
        found.device = text(value.get("device")) or name or found.device
        found.host = (text(value.get("host") or value.get("hostname")) or found.host or "") or None
        for key in ("timestamp", "time", "ts"):
            stamp = value.get(key)
            if isinstance(stamp, (str, int, float)) and not isinstance(stamp, bool):
                whole = f"{stamp:.6f}" if isinstance(stamp, float) else str(stamp)[:48]
                found.ts = self.times.take(whole)[1] or found.ts
        status = value.get("status")
        code = status.get("code") if isinstance(status, dict) else None
        if code not in (0, "0"):
            message = text(status.get("message")) if isinstance(status, dict) else None
            found.error = f"mlxlink failed (status {code}): {clip(message or 'no message')}"
            return found
        result = value.get("result")
        output = result.get("output") if isinstance(result, dict) else None
        if isinstance(output, dict):
            found.sections = {k: v for k, v in output.items() if isinstance(v, dict)}
        return found

    def _new(self, place: str) -> Document:
        return Document(
            place=place, device=self._device, port=self._port, host=self._host, ts=self._ts
        )

    def _end(self) -> Iterator[Document]:
        if self._open is not None:
            yield self._open
        self._open = self._title = None

    def _text(self, line: str, place: str) -> Iterator[Document | Reject]:
        if not line:
            return
        command = _COMMAND.search(line)
        if command:
            yield from self._end()
            device, port = _DEVICE.search(command[1]), _PORT.search(command[1])
            self._device = device[1].rpartition("/")[2] if device else None
            self._port = port[1] if port else None
            prompt = _PROMPT.search(line[: command.start() + 1])
            self._host = prompt[1] if prompt else self._host
            return
        named = _NAMED.fullmatch(line)
        if named:
            yield from self._end()
            self._device, self._port = named[1], None
            return
        is_time, ts = self.times.take(line)
        if is_time:
            yield from self._end()
            self._ts = ts
            return
        if _RULE.fullmatch(line):
            if self._title:
                if self._open is None or self._title in self._open.sections:
                    title = self._title
                    yield from self._end()
                    self._open, self._title = self._new(place), title
                self._open.sections[self._title] = {}
            return
        if line.startswith("-E-"):
            yield Reject(place, f"mlxlink failed: {clip(line[3:])}", "what it printed is kept")
            return
        pair = _PAIR.fullmatch(line)
        if pair and self._open is not None and self._title in self._open.sections:
            self._lost = False
            self._open.sections[self._title][pair[1]] = pair[2] or ""
        elif ":" not in line or _PROMPT.match(line):
            self._title = line
        elif not self._lost:
            self._lost = True
            yield Reject(place, f"not a line of mlxlink: {clip(line)!r}", "nor some that follow")


class _JsonScanner:
    """Finds the end of a JSON object in pieces of text, without parsing it."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.size = 0
        self._pieces: list[str] = []
        self._depth = 0
        self._string = False
        self._escape = False

    @property
    def started(self) -> bool:
        return bool(self._pieces)

    def feed(self, piece: str) -> tuple[str | None, str]:
        """The whole object and what follows it, or ``None`` while it goes on."""
        for match in re.finditer(r'[{}"\\]|[^{}"\\]+', piece):
            mark = match[0]
            if self._escape:
                self._escape = False
                continue
            if self._string:
                self._escape = mark == "\\"
                self._string = mark != '"'
            elif mark == '"':
                self._string = True
            elif mark == "{":
                self._depth += 1
            elif mark == "}":
                self._depth -= 1
                if self._depth == 0:
                    self._pieces.append(piece[: match.end()])
                    return "".join(self._pieces), piece[match.end() :]
        self._pieces.append(piece)
        self.size += len(piece)
        return None, ""

"""Where the series of a Prometheus answer are: found by pattern, so that nothing is held."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from xtune.collectors._base import Reject
from xtune.collectors._ib_text import clip
from xtune.collectors._prometheus_names import NODE_RATE, TOLD, recognise
from xtune.collectors._prometheus_pairs import BATCH_BYTES, PAIR, find, last_value
from xtune.collectors._prometheus_rows import Key, Others, Writer, key_of, meaning_of
from xtune.collectors._values import text as as_text

SERIES = re.compile(
    rb'\{\s*"metric"\s*:\s*(\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})\s*,\s*'
    rb'"(values?|histograms?)"\s*:\s*(?=\[)',
    re.DOTALL,
)
#: No series has so many bytes of labels.
_LABEL_BYTES = 1 << 20
_METRIC = b'"metric"'
_PAIRS = re.compile(rb"\[\s*(?:\[[^\[\]]*+\]\s*+,?+\s*+)*+\]")
#: After a series' values: the next series, or the next of several responses in one file.
_BETWEEN = re.compile(
    rb'\s*\}\s*,?\s*(?:\]\s*\}.{0,2000}?\}\s*\{.{0,2000}?"result"\s*:\s*\[\s*)?', re.DOTALL
)
_START = re.compile(rb'\{\s*"metric"\s*:')
#: All that pairs of a plain answer are made of, NaN and Inf included.
_PAIR_BYTES = b'0123456789.eE+-[]," \r\n\tNaInf'
#: Pages read are given back after so many bytes, so that the process does not grow with the file.
_RELEASE_BYTES = 16 << 20


@dataclass(slots=True)
class Index:
    """Where the series of each port, GPU or kind of operation are.

    ``groups``: by key, then (meaning, start of the pairs, end).
    """

    groups: dict[Key, list[tuple[str, int, int]]] = field(default_factory=dict)
    others: Others = field(default_factory=Others)
    expressions: int = 0
    ours: int = 0


def _labels(text: bytes) -> dict[str, str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return None
    # JSON may escape half a pair, which no column holds.
    return {as_text(key) or "": as_text(value) or "" for key, value in found.items()}


def _next(data: mmap.mmap, position: int) -> re.Match[bytes] | None:
    """The next series at or after a place.

    Its labels end before the next word ``"metric"``, or the one after where a label has that
    name: bounds that keep what is damaged from being looked through again and again.
    """
    size = len(data)
    at = find(data, _METRIC, position, size)
    while at >= 0:
        begin = data.rfind(b"{", max(position, at - 256), at)
        limit = at
        for _ in range(2 if begin >= 0 else 0):
            limit = find(data, _METRIC, limit + 1, size)
            bound = min(size if limit < 0 else limit, begin + _LABEL_BYTES)
            match = SERIES.match(data, begin, bound)
            if match or limit < 0:
                break
        else:
            match = None
        if match:
            return match
        at = find(data, _METRIC, at + 1, size)
    return None


def fill(data: mmap.mmap, index: Index, writer: Writer) -> Iterator[Reject]:
    """Fill the index; yield a reject for each stretch that is no series."""
    position = 0
    released = 0
    previous_end: int | None = None
    while match := _next(data, position):
        if previous_end is not None:
            gap = data[previous_end : min(match.start(), previous_end + 8192)]
            if not _BETWEEN.fullmatch(gap) and not gap.startswith(b',"histogram'):
                what = clip(gap[:80].decode("utf-8", "replace"))
                yield Reject(f"byte {previous_end}", f"not a series: {what!r}", "others are kept")
        start = match.end()
        if match[2].startswith(b"histogram"):
            found = _labels(match[1]) or {}
            index.others.add(found.get("__name__", "(a histogram without a name)"))
            position, previous_end = start, None
            continue
        end, whole = _values_end(data, start, single=match[2] == b"value")
        if not whole:
            where = "cut or damaged here: what can be read of it is kept"
            yield Reject(f"byte {start}", f"values of a series without an end: {where}")
        position = end
        if position - released > _RELEASE_BYTES:
            data.madvise(mmap.MADV_DONTNEED)
            released = position
        previous_end = end if whole else None
        labels = _labels(match[1])
        if labels is None:
            yield Reject(f"byte {match.start(1)}", "labels that are not a JSON object of strings")
            continue
        name = labels.get("__name__", "")
        known = recognise(name)
        if known is None:
            index.expressions += not name
            index.others.add(name or "(no name: an expression such as rate())")
            continue
        index.ours += 1
        exporter, meaning = known
        if meaning in TOLD or meaning == NODE_RATE:
            last = last_value(data, end) or 0
            writer.tell(exporter, meaning, labels, float(last))
        else:
            told = meaning_of(exporter, meaning, labels)
            index.groups.setdefault(key_of(exporter, labels), []).append((told, start, end))
    if previous_end is None and position:
        return  # cut inside the last series, which was said
    if find(data, _METRIC, position, len(data)) >= 0:
        yield Reject(f"byte {position}", "a series that is cut or damaged", "query again")
    elif position and not _is_closed(data, position):
        yield Reject(f"byte {len(data)}", "the response is cut: its end is missing", "query again")


def _is_closed(data: mmap.mmap, position: int) -> bool:
    """Whether what follows the last series' values closes what the file opened."""
    rest = re.sub(rb'"(?:[^"\\]|\\.)*+"', b"", data[position : position + 65536])
    braces = rest.count(b"}") - rest.count(b"{")
    brackets = rest.count(b"]") - rest.count(b"[")
    head = data[:4096].lstrip()
    if _START.match(head):
        return braces == 1
    return (braces, brackets) == ((1, 1) if head.startswith(b"[") else (3, 1))


def _values_end(data: mmap.mmap, start: int, *, single: bool) -> tuple[int, bool]:
    """Where the values that begin at ``start`` end, and whether they are whole."""
    if single:
        pair = PAIR.match(data, start)
        if pair:
            return pair.end(), True
    elif data[start : start + 2] == b"[[":
        # The next series first: among many that are cut, looking for the end of each to the
        # end of the file would never be done.
        following = find(data, _METRIC, start, len(data))
        end = find(data, b"]]", start, following if following > 0 else len(data)) + 2
        if end > 1 and _tidy(data, start, end):
            return end, True
    pairs = None if single else _PAIRS.match(data, start)
    if pairs:
        return pairs.end(), True
    another = find(data, _METRIC, start, len(data))
    begin = data.rfind(b"{", start, another) if another >= 0 else len(data)
    return (begin if begin >= 0 else another), False


def _tidy(data: mmap.mmap, start: int, end: int) -> bool:
    """Whether the values hold nothing but pairs, judged a piece at a time."""
    for at in range(start, end, BATCH_BYTES):
        if data[at : min(end, at + BATCH_BYTES)].translate(None, _PAIR_BYTES):
            return False
        if at > start:
            data.madvise(mmap.MADV_DONTNEED)
    return True

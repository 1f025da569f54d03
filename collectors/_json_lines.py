"""JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from xtune.collectors._base import Reject
from xtune.collectors._textlines import Line

_CUT = "the writer was at it still, or was killed"


def json_objects(lines: Iterable[Line]) -> Iterator[tuple[Line, dict[str, Any]] | Reject]:
    """Each line and the object that it is, or what is wrong with it; empty lines are left out."""
    for line in lines:
        if not line.data.strip():
            continue
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            if line.whole:
                yield Reject(line.place, f"not JSON: {error}")
            else:
                yield Reject(line.place, "cut last line", _CUT)
            continue
        if isinstance(record, dict):
            yield line, record
        else:
            yield Reject(line.place, "not a JSON object")

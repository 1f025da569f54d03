"""Bit error rates as NVIDIA's tools print them.

The register has ``15E-255`` where no error was seen, which bounds the rate and does not make it
zero; what is no rate at all says nothing, not that either.
"""

from __future__ import annotations

import re
from typing import Any

#: What ``extra`` says of a rate that is null for that reason.
NO_ERROR = "no error observed"

_RATE = re.compile(r"\d{1,9}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_LEAST = 1e-200


def bit_error_rate(printed: Any) -> tuple[float | None, bool]:
    """Errors a bit, and whether the tool says that it saw none; ``None, False`` for no rate."""
    text = str(printed).strip()
    if not _RATE.fullmatch(text):
        return None, False
    rate = float(text)
    if rate > 1:
        return None, False
    return (rate, False) if rate >= _LEAST else (None, True)

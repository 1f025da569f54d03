"""One row of the table of public samples: what collecting a file must give."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What one input gives.

    Attributes:
        kind: The collector that reads it; None where its format is not one of ours.
        rows: Rows by table, all tables that get any.
        rejects: Pieces rejected.
        state: ``read``, ``rejected`` or ``unknown``.
        reason: Part of the first reject's reason, where it says more than the count.
        how: By what other route the numbers were found (a grep, jq, the tool's own total).
    """

    kind: str | None
    rows: Mapping[str, int] = field(default_factory=dict)
    rejects: int = 0
    state: str = "read"
    reason: str = ""
    how: str


def tables() -> dict[str, dict[str, Expected]]:
    """Folder of samples -> path below it -> what it holds."""
    found = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"tests.expected.{info.name}")
            found[info.name] = module.EXPECTED
    return found

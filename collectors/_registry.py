"""Finds collectors: every module here without an underscore, and third parties by entry point."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from xtune.collectors._base import Collector

ENTRY_POINT_GROUP = "xtune.collectors"


@cache
def all_collectors() -> dict[str, Collector]:
    """Every collector by name, ours first, in alphabetical order."""
    found: dict[str, Collector] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"xtune.collectors.{info.name}")
            found[info.name] = module.COLLECTOR
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        found.setdefault(point.name, point.load())
    return found


def confidence(collector: Collector, path: Path, head: bytes) -> float:
    """What a collector claims; one that fails to look (a folder without rights) claims nothing."""
    try:
        return collector.claim(path, head)
    except Exception:  # a third party's collector, too, must not stop the others
        return 0.0


def claim_best(
    path: Path, head: bytes, collectors: Mapping[str, Collector] | None = None
) -> tuple[Collector, float] | None:
    """The collector most sure of ``path``, with its confidence; ``None`` where none claims it."""
    among = all_collectors() if collectors is None else collectors
    claims = [(confidence(c, path, head), c.name, c) for c in among.values()]
    sure, _, collector = max(claims, key=lambda claim: (claim[0], claim[1]))
    return (collector, sure) if sure > 0 else None

"""The links of a fabric from a file: rows of xtune's ``topology_links``, or named by hand."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .paths import DirectedLink

_BY_HAND = ("name", "src", "dst")
_DISCOVERED = ("src_guid", "src_port", "dst_guid", "dst_port")


class TopologyError(ValueError):
    """A file is no topology; the text names the file and the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """Directed links, as `PathFinder` takes them, and their rates, as `Router` does.

    Attributes:
        links: In the order of the file.
        gbps: Rate in 1e9 bit/s of each link of which it is known, by name.
    """

    links: tuple[DirectedLink, ...]
    gbps: dict[str, float]


def read_fabric(path: str | Path, hosts: Mapping[str, str] | None = None) -> Fabric:
    """Read a fabric.

    The file is JSON, a list of rows or what ``xtune query --json "SELECT * FROM topology_links"``
    prints, or CSV with a header. A row has ``src_guid``, ``src_port``, ``dst_guid``, ``dst_port``
    and perhaps ``src_name``, ``dst_name``, ``ts``; or else ``name``, ``src`` and ``dst``. Each may
    have ``rate_gbps``. A discovered link is named GUID/port of its sending end, as in the lake,
    and its nodes by GUID; of a port that was discovered several times the latest row counts,
    and the last that told a rate of this cable.

    Args:
        path: The file.
        hosts: Names of the job's own for some nodes, by GUID or by ``src_name``; adapters of one
            host may have one name.

    Raises:
        TopologyError: Something in it is no row, or there is none.
        OSError: It cannot be read.
    """
    return fabric_of(_rows(Path(path)), hosts, source=str(path))


def fabric_of(
    rows: Iterable[Mapping[str, Any]],
    hosts: Mapping[str, str] | None = None,
    *,
    source: str = "topology_links",
) -> Fabric:
    """A fabric from rows such as `read_fabric` reads.

    Args:
        rows: The rows.
        hosts: Names for some nodes, as there.
        source: Where the rows are from, for messages.

    Raises:
        TopologyError: Something in it is no row, or there is none.
    """
    hosts = {} if hosts is None else hosts
    latest: dict[str, tuple[str, DirectedLink, float | None]] = {}
    for number, row in enumerate(rows, 1):
        try:
            link = _link(row, hosts)
            rate = _rate(row.get("rate_gbps"))
        except (TypeError, ValueError) as error:
            raise TopologyError(f"{source}: row {number}: {error}") from error
        found = (str(row.get("ts") or ""), link, rate)
        before = latest.setdefault(link.name, found)
        older, newer = (before, found) if before[0] <= found[0] else (found, before)
        if newer[2] is None and newer[1] == older[1]:
            newer = (*newer[:2], older[2])  # a source that told of no rate
        latest[link.name] = newer
    if not latest:
        raise TopologyError(f"{source}: no link in it")
    return Fabric(
        links=tuple(link for _, link, _ in latest.values()),
        gbps={link.name: rate for _, link, rate in latest.values() if rate is not None},
    )


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            yield from csv.DictReader(text.splitlines())
            return
        said = json.loads(text)
    except (ValueError, RecursionError, csv.Error) as error:
        raise TopologyError(f"{path}: {error}") from error
    rows = said.get("rows") if isinstance(said, dict) else said
    if not isinstance(rows, list):
        raise TopologyError(f"{path}: a list of rows is wanted")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise TopologyError(f"{path}: row {number}: {type(row).__name__} is no row")
        yield row


def _link(row: Mapping[str, Any], hosts: Mapping[str, str]) -> DirectedLink:
    if all(row.get(field) for field in _BY_HAND):
        name, src, dst = (str(row[field]) for field in _BY_HAND)
        return DirectedLink(name=name, src=hosts.get(src, src), dst=hosts.get(dst, dst))
    missing = [field for field in _DISCOVERED if row.get(field) in (None, "")]
    if missing:
        raise ValueError(f"no {', '.join(missing)}, and no {', '.join(_BY_HAND)} either")

    def node(end: str) -> str:
        guid, name = str(row[f"{end}_guid"]), str(row.get(f"{end}_name") or "").strip()
        return hosts.get(guid) or hosts.get(name) or guid

    return DirectedLink(
        name=f"{row['src_guid']}/{row['src_port']}", src=node("src"), dst=node("dst")
    )


def _rate(said: Any) -> float | None:
    """A rate; None where it is not told."""
    if said in (None, ""):
        return None
    rate = float(said)
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate_gbps {said!r} is no rate")
    return rate

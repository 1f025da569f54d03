"""The link-weight matrix: what each reporter says of each link, and the verdict on it.

A cell is what one path of one reporter tells of one link, forecast by the `LinkTable` that a host
would have: fed with the same readings it gives the same weight. The verdict on a link:

* of the cells with a fresh outcome, those that are not blacklisted count; the worst weight holds;
* where all of them are blacklisted, the link is: as long as one reporter's probes are answered
  over the link, what another one loses is lost elsewhere on its path;
* where none has a fresh outcome, there is no verdict.

Links lie in blocks of one datagram each, in the order in which they were first heard of, and keep
their places for as long as the decider runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from ..decisions import DecisionLog  # noqa: TID252 - exported under another name
from ..links import DEAD, LinkTable  # noqa: TID252 - exported under another name
from ..probe.readings import (  # noqa: TID252 - exported under another name
    HISTORY,
    Reading,
    ended,
)
from ..spec import Routing  # noqa: TID252 - exported under another name
from .packet import MOST_BLOCKS, MOST_BODY_BYTES, OUTCOMES, Entry, Record, entry_bytes

MOST_LINKS = 8192
MOST_CELLS = 65_536  # of all reporters; some 2 KB each
MOST_BLOCK_LINKS = 255

_NEVER_NS = -(1 << 62)


@dataclass(slots=True)
class _Cell:
    """One path of one reporter."""

    link: _Link
    table: LinkTable
    finished: int | None = None
    heard_ns: int = _NEVER_NS  # of the newest outcome
    margin: float | None = None


@dataclass(slots=True)
class _Link:
    name: str
    block: int
    cells: list[_Cell] = field(default_factory=list)


class Full(Exception):
    """There is no room for another link or cell."""


class Late(Exception):
    """A record of fewer outcomes than one before it had: the network turned two reports."""


class Matrix:
    """Links by reporters.

    Args:
        routing: The policy's routing parameters.
        log: Where blacklisting is noted.

    Attributes:
        blocks: The links of each block.
        dirty: Blocks with news since they were last taken from here.
    """

    def __init__(self, routing: Routing, log: DecisionLog) -> None:
        self.blocks: list[list[_Link]] = []
        self.dirty: set[int] = set()
        self._routing = routing
        self._log = log
        self._links: dict[str, _Link] = {}
        self._cells: dict[Hashable, dict[int, _Cell]] = {}
        self._count = 0
        self._room = 0  # bytes left in the last block

    def take(self, reporter: Hashable, host: str, record: Record, now_ns: int) -> int:
        """Take one record.

        Args:
            reporter: Who sent it.
            host: Its name, for the log.
            record: The record.
            now_ns: When it arrived; ages count from here.

        Returns:
            How many outcomes could not be seen any more, since too many came at once.

        Raises:
            Full: The record names a link or a path too many.
            Late: It is older than one that was taken; nothing is changed.
        """
        cells = self._cells.setdefault(reporter, {})
        cell = cells.get(record.path)
        if cell is None or cell.link.name != record.link:
            if cell is not None:
                self._forget(cell)
                del cells[record.path]
            cell = cells[record.path] = self._cell(host, record.link)
        first = cell.finished is None
        new = (record.finished - (cell.finished or 0)) % OUTCOMES
        if not first and new >= OUTCOMES // 2:  # what it tells, the later one's history told
            raise Late
        cell.finished, cell.margin = record.finished, record.margin
        seen = min(new, HISTORY)
        self._observe(cell, record, seen, now_ns)
        self.dirty.add(cell.link.block)
        return 0 if first else new - seen

    def drop(self, reporter: Hashable) -> None:
        """Forget what a reporter said."""
        for cell in self._cells.pop(reporter, {}).values():
            self._forget(cell)
            self.dirty.add(cell.link.block)

    def entries(self, block: int, now_ns: int) -> list[Entry]:
        """The verdicts on the links of one block.

        Args:
            block: Its number.
            now_ns: Ages count up to here.
        """
        return [self._entry(link, now_ns) for link in self.blocks[block]]

    def counts(self) -> dict[str, int]:
        """Links, and cells of all reporters."""
        return {"links": len(self._links), "cells": self._count}

    def paths(self, reporter: Hashable) -> int:
        """How many paths a reporter told of."""
        return len(self._cells.get(reporter, ()))

    def least_margin(self, reporter: Hashable) -> tuple[float, str] | None:
        """The least signal margin that a reporter told of, and the link; None if unknown."""
        cells = self._cells.get(reporter, {}).values()
        known = ((cell.margin, cell.link.name) for cell in cells if cell.margin is not None)
        return min(known, default=None)

    def _observe(self, cell: _Cell, record: Record, count: int, now_ns: int) -> None:
        done_ns = now_ns - record.finished_age_ns
        answered_ns = record.answered_age_ns
        reading = Reading(
            history=record.history,
            finished_ns=done_ns,
            answered_ns=None if answered_ns is None else now_ns - answered_ns,
        )
        name = cell.table.names[0]
        for probe in ended(reading, count):
            newest = probe.newest
            cell.table.observe(
                name,
                probe.at_ns,
                record.occupancy if newest else None,
                record.error_rate if newest else None,
                probe.lost,
                record.marks if newest else None,
            )
        if count:
            cell.heard_ns = done_ns

    def _entry(self, link: _Link, now_ns: int) -> Entry:
        oldest_ns = now_ns - self._routing.stale_ns
        fresh = [cell for cell in link.cells if cell.heard_ns >= oldest_ns]
        if not fresh:
            return Entry(link.name)
        living = [cell.table for cell in fresh if cell.table.worth[0] != DEAD]
        known = [
            (table.worth[0], table.seen_ns[0])
            for table in living
            if table.worth[0] == table.worth[0] and table.seen_ns[0] >= oldest_ns
        ]
        weight = math.nan if living else DEAD
        at_ns = max(cell.heard_ns for cell in fresh)
        if known:
            weight, at_ns = max(known)
        age_us = max(0, -((at_ns - now_ns) // 1000))  # rounded up: never younger than it is
        return Entry(link.name, weight, age_us, len(living) or len(fresh))

    def _cell(self, host: str, name: str) -> _Cell:
        link = self._links.get(name)
        if self._count >= MOST_CELLS or (link is None and len(self._links) >= MOST_LINKS):
            raise Full
        if link is None:
            link = self._links[name] = self._placed(name)
        self._count += 1
        told = f"{name} as {host} sees it"
        cell = _Cell(link, LinkTable([told], self._routing, self._log))
        link.cells.append(cell)
        return cell

    def _placed(self, name: str) -> _Link:
        """A new link, in the last block or a new one."""
        size = entry_bytes(name)
        if not self.blocks or size > self._room or len(self.blocks[-1]) >= MOST_BLOCK_LINKS:
            if len(self.blocks) >= MOST_BLOCKS:
                raise Full
            self.blocks.append([])
            self._room = MOST_BODY_BYTES - 1
        self._room -= size
        link = _Link(name, len(self.blocks) - 1)
        self.blocks[-1].append(link)
        return link

    def _forget(self, cell: _Cell) -> None:
        cell.link.cells.remove(cell)
        self._count -= 1

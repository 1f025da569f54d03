"""``xtune collect --fabric``: the whole fabric through the management tools, again and again."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from xtune.cli._fabric_run import run_side_by_side
from xtune.cli._live import INTERRUPTED, LiveRun
from xtune.cli._live_stop import Status, Stop
from xtune.console import emit_json, note, say
from xtune.errors import InputError, UsageError

if TYPE_CHECKING:
    from xtune.collectors import Context, Reject, Rows
    from xtune.collectors._fabric import Fabric
    from xtune.lake import Lake

#: The management agents of switches answer in software.
FASTEST_S = 1.0


class _Held:
    """Rows that were read and wait to be written."""

    def __init__(self, items: list[Rows]) -> None:
        self._items = items

    def rows(self, context: Context) -> Iterator[Rows]:
        """The rows; they have their labels already."""
        yield from self._items


class FabricSampler:
    """A fabric as the live run wants it."""

    parser = ("fabric", 1)

    def __init__(self, fabric: Fabric) -> None:
        self.messages: list[str] = []
        self.rejected: dict[str, Reject] = {}
        self.problems: list[Reject] = []
        self._fabric = fabric
        self._held: list[Rows] = []

    @property
    def ports(self) -> int:
        """Ports with a link."""
        return self._fabric.ports

    def tick(self) -> None:
        """Read every counter of the fabric once.

        Raises:
            InputError: There is no fabric at the first reading; later ones go on without.
        """
        from xtune.collectors import Note, Reject, Rows

        for item in self._fabric.read():
            if isinstance(item, Rows):
                self._held.append(item)
            elif isinstance(item, Reject):
                if not self._fabric.found:
                    raise InputError(f"{item.offset}: {item.reason}", item.hint)
                self.problems.append(item)
                hint = f" ({item.hint})" if item.hint else ""
                self.messages.append(f"{item.offset}: {item.reason}{hint}")
            elif isinstance(item, Note):
                self.messages.append(item.text)

    def take(self) -> _Held:
        """What was read since the last call."""
        held, self._held = self._held, []
        return _Held(held)

    def close(self) -> None:
        """Nothing is open between readings."""


def sample_fabric(
    lake: Lake,
    context: Context,
    *,
    interval_s: float,
    duration_s: float | None,
    json: bool,
) -> None:
    """Read the fabric at each interval until ``duration_s`` is over or an interrupt.

    A duration up to the interval reads it once.

    Raises:
        InputError: There is no fabric, or no tool to read it with.
        UsageError: An interval below a second.
        LakeError: The lake could not be written at the end.
        typer.Exit: 130 after an interrupt.
    """
    from xtune.collectors._fabric import Fabric

    if interval_s < FASTEST_S:
        raise UsageError("--interval: the fastest for a fabric is 1s")
    host = context.host or socket.gethostname().lower()
    status = Status()
    until = "until interrupted" if duration_s is None else f"for {duration_s:g} s"
    note(f"reading the fabric every {interval_s:g} s {until}")
    with Stop() as stop:
        fabric = Fabric(
            lambda commands: run_side_by_side(commands, stopped=lambda: stop.asked),
            time.time_ns,
            context,
        )
        sampler = FabricSampler(fabric)
        run = LiveRun(
            lake, sampler, context, host=host, place=Path("fabric"), stop=stop, status=status
        )
        try:
            run.run(interval_s, duration_s)
        except InputError:
            if not stop.asked:
                raise
            raise typer.Exit(INTERRUPTED) from None  # it ended the first discovery
        finally:
            status.end()
    if json:
        emit_json(
            {
                "schema": 1,
                "host": host,
                "ports": fabric.ports,
                "samples": run.samples,
                "missed": run.missed,
                "rows": run.writer.rows,
                "processes": fabric.processes,
                "problems": [f"{p.offset}: {p.reason}" for p in sampler.problems],
            }
        )
    else:
        say(
            f"fabric: {fabric.ports} ports, {run.samples} samples, {run.missed} missed ticks, "
            f"{run.writer.rows} rows"
        )
    if stop.asked:
        raise typer.Exit(INTERRUPTED)

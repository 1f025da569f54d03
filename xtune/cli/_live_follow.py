"""``xtune collect --follow``: files that are being written, read as they grow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from xtune.cli._live_stop import Status, Stop
from xtune.console import note

if TYPE_CHECKING:
    from xtune.ingest import Follower


def follow(
    follower: Follower,
    *,
    interval_s: float,
    duration_s: float | None,
    status: Status | None = None,
) -> bool:
    """Poll until ``duration_s`` is over or an interrupt, then read what is left.

    Args:
        follower: What is followed.
        interval_s: Time between two looks at the files.
        duration_s: How long; None until interrupted.
        status: Says how it goes.

    Returns:
        Whether it was interrupted.

    Raises:
        LakeError: The lake cannot be written at the end.
    """
    status = status or Status()
    until = "until interrupted" if duration_s is None else f"for {duration_s:g} s"
    note(f"following every {interval_s:g} s {until}")
    began = time.monotonic()
    said = -1
    polls = 0
    with Stop() as stop:
        try:
            while not stop.asked and (duration_s is None or time.monotonic() - began < duration_s):
                follower.poll()
                polls += 1
                if follower.rows != said:
                    said = follower.rows
                    status.show(f"{follower.files} files followed, {said} rows in the lake")
                # Looks lie at multiples of the interval; one that took longer skips some.
                polls = max(polls, int((time.monotonic() - began) / interval_s))
                next_s = began + polls * interval_s
                if duration_s is not None:
                    next_s = min(next_s, began + duration_s)
                stop.wait(next_s - time.monotonic())
            follower.finish()
        finally:
            status.end()
        return stop.asked

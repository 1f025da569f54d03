"""The kernel's next and previous port on a path that a table of routes gives."""

from __future__ import annotations

import numba
import numpy as np

from xtune.sim._layout import NIL


@numba.njit
def next_port(route, row, stage, delivery):  # type: ignore[no-untyped-def]
    """The port after ``stage`` (0: the host's own) on a path; the last one is ``delivery``."""
    for column in range(stage, route.shape[1]):
        port = route[row, column]
        if port != NIL:
            return np.uintp(port)
    return np.uintp(delivery)


@numba.njit
def links_left(route, row, stage):  # type: ignore[no-untyped-def]
    """Links after the one of ``stage`` on a path, the receiver's among them."""
    left = 1
    for column in range(stage, route.shape[1]):
        left += route[row, column] != NIL
    return left


@numba.njit
def previous_port(route, row, stage, nic):  # type: ignore[no-untyped-def]
    """The port before ``stage`` on a path; the first one is ``nic``."""
    for column in range(stage - 2, -1, -1):
        port = route[row, column]
        if port != NIL:
            return np.uintp(port)
    return np.uintp(nic)

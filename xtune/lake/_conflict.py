"""The errors of the lake that a program, not a person, may answer."""

from __future__ import annotations

from xtune.errors import LakeError


class ConflictError(LakeError):
    """Another process changed what this transaction rests on; nothing was written.

    Begin anew from the lake as it is now.
    """


class BusyError(LakeError):
    """Another process does what only one at a time may do."""

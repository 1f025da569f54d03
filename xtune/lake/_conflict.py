"""The one error of the lake that a program, not a person, answers."""

from __future__ import annotations

from xtune.errors import LakeError


class ConflictError(LakeError):
    """Another process changed what this transaction rests on; nothing was written.

    Begin anew from the lake as it is now.
    """

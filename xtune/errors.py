"""The errors a user can meet.

::

    XtuneError              exit 1; one plain line, and a hint that says what to do
    ├── UsageError          exit 2; the command line or the configuration is wrong
    ├── InputError          a path that is not there, a file that cannot be opened
    ├── LakeError           the lake is damaged, of another schema, or not a lake
    ├── NoDataError         a step has nothing to work on yet
    ├── CalibrationError    the lake is not enough to fit what was asked
    ├── StudyError          a study's storage or search space does not fit
    └── ExportError         a policy cannot be exported
    StrictError             exit 3; done, but --strict was given and something was rejected

Rejected input is not an error: it is a row in ``rejected/`` and a count in the summary.
"""

from __future__ import annotations

import os
from pathlib import Path


class XtuneError(Exception):
    """Base of all errors that are shown to a user as one line.

    Args:
        message: What is wrong, with the file and place where there is one.
        hint: What to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(XtuneError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class InputError(XtuneError):
    """A path that does not exist or cannot be read."""


def reason_of(error: OSError) -> str:
    """What the system says, without Arrow's words around it."""
    return os.strerror(error.errno) if error.errno else str(error)


class LakeError(XtuneError):
    """The lake is damaged, of another schema version, or not a lake."""

    @classmethod
    def unwritable(cls, root: Path, error: OSError) -> LakeError:
        """A lake at ``root`` that cannot be written now; the same command goes on later."""
        return cls(
            f"{root}: cannot be written: {reason_of(error)}",
            "make room or check permissions, then run the same command again",
        )


class NoDataError(XtuneError):
    """A step has nothing to work on yet."""


class CalibrationError(XtuneError):
    """The lake does not hold enough to fit what was asked."""


class StudyError(XtuneError):
    """A study's storage, search space or name does not fit."""


class ExportError(XtuneError):
    """A policy cannot be exported."""


class StrictError(XtuneError):
    """Everything was done, but --strict was given and some input was rejected."""

    exit_code = 3

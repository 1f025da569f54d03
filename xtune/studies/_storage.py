"""Where trials are kept: Optuna's journal beside the study, or any Optuna URL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.config import hide_secrets
from xtune.errors import StudyError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "journal.log"


def repair_journal(path: Path) -> Path | None:
    """Cut a torn tail off a journal; it is kept beside it as ``*.bad``.

    A process killed while it appends leaves half a line. Optuna still reads such a journal, but
    the next append joins the halves and spoils it.

    Returns:
        Where the tail was put, or ``None`` where nothing was torn.
    """
    if not path.is_file():
        return None
    data = path.read_bytes()
    good = 0
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n") or not _parses(line):
            break
        good += len(line)
    if good == len(data):
        return None
    bad = path.with_suffix(f".{good}.bad")
    bad.write_bytes(data[good:])
    with path.open("r+b") as journal:
        journal.truncate(good)
        os.fsync(journal.fileno())
    return bad


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def open_storage(folder: Path, url: str) -> BaseStorage:
    """Optuna's storage: a journal in ``folder``, or what ``url`` names.

    Raises:
        StudyError: The storage cannot be opened; no password is shown.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        if not url:
            return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        return RDBStorage(url)
    except Exception as error:  # SQLAlchemy's and each driver's own trees
        text = hide_secrets(str(error)).splitlines()[0]
        where = hide_secrets(url) or str(folder / JOURNAL)
        raise StudyError(f"storage {where}: {text}", "check --storage") from error

"""Where trials are kept: Optuna's journal beside the study, or any Optuna URL."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xtune.config import hide_secrets
from xtune.errors import StudyError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileBackend

JOURNAL = "journal.log"
LOCK = ".lock"
TABLES_KEY = 0x78_74_75_6E_65  # "xtune": any number that all of us take
CLAIM_S = 10.0  # others that share a study may just be claiming its folder
# File systems on which locks, or appends of two hosts, do not hold what a journal needs.
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs",
    "glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.ceph", "pvfs2", "orangefs", "panfs",
)  # fmt: skip


def shared(url: str) -> bool:
    """Whether several processes may work on one study: a database server's rows can be locked.

    SQLite reads a row and writes it in two steps: two processes would both take it.
    """
    return bool(url) and not url.startswith("sqlite")


@contextmanager
def alone(folder: Path, url: str = "") -> Iterator[None]:
    """Hold a study, and the SQLite file it is kept in, for this process; a killed one lets go.

    The lock is of the study's name and lies beside its folder, which a new calibration moves.

    Raises:
        StudyError: Another process has it.
    """
    database = _sqlite_file(url)
    with ExitStack() as stack:
        _take(
            stack, _lock_of(folder), fcntl.LOCK_EX, f"{folder}: another xtune tune runs this study"
        )
        if database is not None and database.parent.is_dir():  # else opening it says so
            lock = database.with_name(f"{database.name}{LOCK}")
            _take(stack, lock, fcntl.LOCK_EX, f"{database}: another xtune tune works on this file")
        yield


@contextmanager
def together(folder: Path) -> Iterator[None]:
    """Hold a study beside others on one database: none of them may move its folder.

    Raises:
        StudyError: A process has it for itself.
    """
    says = f"{folder}: another xtune tune runs this study without sharing it"
    with ExitStack() as stack:
        _take(stack, _lock_of(folder), fcntl.LOCK_SH, says, wait_s=CLAIM_S)
        yield


def _lock_of(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.with_name(f".{folder.name}{LOCK}")


def _take(stack: ExitStack, lock: Path, how: int, says: str, wait_s: float = 0.0) -> None:
    """Lock a file until the stack is closed; its text is the process that has it."""
    try:
        stream = stack.enter_context(lock.open("a+"))
    except OSError as error:
        raise StudyError(f"{lock}: {error.strerror}", "its folder must be writable") from error
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(stream, how | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            stream.seek(0)
            raise StudyError(
                f"{says} (process {stream.read().strip()})",
                "wait for it, or give both --storage postgresql+psycopg://...",
            ) from error
        except OSError:  # a file system without locks: as before there were any
            break
    stream.truncate(0)
    stream.write(f"{os.getpid()}\n")
    stream.flush()


def _sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None of another, and of one in memory."""
    if not url.startswith("sqlite"):
        return None
    _password(url)  # refuses what is no URL
    from sqlalchemy.engine import make_url

    name = (make_url(url).database or "").removeprefix("file:").partition("?")[0]
    return Path(name).resolve() if name and name != ":memory:" else None


def network_warning(folder: Path, url: str, mounts: str | None = None) -> str | None:
    """What to tell of a journal or an SQLite file on a network file system.

    Args:
        folder: The study's.
        url: The storage; "" is the journal.
        mounts: Text of ``/proc/mounts``; ``None`` reads it.
    """
    path = folder
    if url:
        if not url.startswith("sqlite:///"):
            return None
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    kind = file_system(path.absolute(), _mounts() if mounts is None else mounts)
    if kind not in NETWORK:
        return None
    return (
        f"{path} is on a network file system ({kind}): a file there may be spoilt by a lost lock;"
        " --storage postgresql+psycopg://... is safe"
    )


def file_system(path: Path, mounts: str) -> str:
    """Type of the file system that a path is on; "" where that is not known."""
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        if path.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, words[2]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text("utf-8", "replace")
    except OSError:
        return ""


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


def _journal(folder: Path) -> JournalFileBackend:
    """The journal, without Optuna's lock of it: :func:`alone` holds the whole folder.

    That lock is a file of its own: one of a killed process is waited for, and an interrupt while
    it is taken away is an error.
    """
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Held(JournalFileOpenLock):
        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            pass

    path = str(folder / JOURNAL)
    return JournalFileBackend(path, lock_obj=Held(path))


def open_storage(folder: Path, url: str) -> BaseStorage:
    """Optuna's storage: a journal in ``folder``, or what ``url`` names; Optuna is quiet from now.

    Raises:
        StudyError: The storage cannot be opened; no password is shown.
    """
    import optuna
    from optuna.storages import JournalStorage, RDBStorage

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    secret = _password(url)
    try:
        if not url:
            return JournalStorage(_journal(folder))
        with _tables_made_by_one(url):
            return RDBStorage(url)
    except Exception as error:  # SQLAlchemy's and each driver's own trees
        text = (str(error).splitlines() or [type(error).__name__])[0]
        if secret:
            text = text.replace(secret, "***")
        where = hide_secrets(url) or str(folder / JOURNAL)
        message = f"storage {where}: {hide_secrets(text)}"
        # Without its cause: that one's words and frames hold the URL as it was given.
        raise StudyError(message, "check --storage") from (None if url else error)


@contextmanager
def _tables_made_by_one(url: str) -> Iterator[None]:
    """Hold PostgreSQL's advisory lock: two that make Optuna's tables at once fail."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.connect() as connection:  # the lock ends with it
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": TABLES_KEY})
        yield


@contextmanager
def opened(folder: Path, url: str) -> Iterator[BaseStorage]:
    """:func:`open_storage`, and its connections closed at the end.

    Raises:
        StudyError: It cannot be opened, or was lost meanwhile; no password is shown.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    storage = open_storage(folder, url)
    try:
        yield storage
    except (StorageInternalError, SQLAlchemyError) as error:
        raise StudyError(
            f"storage {hide_secrets(url)} was lost: {type(error).__name__}",
            "what was finished is kept; the same command goes on",
        ) from None
    finally:
        engine = getattr(storage, "engine", None)
        if engine is not None:
            storage.remove_session()
            engine.dispose()


def _password(url: str) -> str | None:
    """The password in a storage URL.

    Raises:
        StudyError: Not a storage URL; what it says does not repeat it, since a part that is
            misplaced may be the password.
    """
    if not url:
        return None
    from sqlalchemy.engine import make_url

    try:
        password = make_url(url).password
    except Exception:  # the text quotes what it cannot read
        raise StudyError(
            "--storage is not a storage URL",
            "sqlite:////folder/file.db or postgresql+psycopg://user@host/database;"
            " in a password write @ as %40, : as %3A and / as %2F",
        ) from None
    return None if password is None else str(password)

"""The ledger: immutable entries that say which files of the lake are live.

An entry is a JSON file ``<time_ns>-<random>.json`` that names the entry before it, the files it
adds and removes and the inputs it records and forgets. Entries appear by rename, one at a time,
under a lock that only writers take. A checkpoint holds the sum of all entries up to one, which are
then deleted: a reader opens one checkpoint and at most a few dozen entries. A reader that is
overtaken (its entry was folded into a checkpoint, or its listing was older than a rename) sees
that the chain of entries is broken and lists again.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xtune
from xtune.errors import LakeError
from xtune.files import write_atomically
from xtune.lake import _disk
from xtune.lake._inputs import Inputs
from xtune.lake._records import DataFile, InputRecord
from xtune.tables import SCHEMA_VERSION

LEDGER_SCHEMA = 1
CHECKPOINT = "checkpoint-"
# Entries after which a checkpoint is due; at about 40 us an entry and 3 us a file of a checkpoint,
# an eighth of the live files keeps both reading and rewriting cheap.
MIN_TAIL = 64
TAIL_SHARE = 8
ATTEMPTS = 50


@dataclass(kw_only=True)
class State:
    """The sum of the ledger's entries.

    Attributes:
        files: Live files by path relative to the lake.
        inputs: Inputs by id.
        removed: Files that no longer count but may still be on disk for readers that had them
            listed: path -> time of removal, nanoseconds since the epoch.
        last: Stem of the last entry in this sum; empty before the first.
        tail: Entries since the checkpoint.
    """

    files: dict[str, DataFile] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    removed: dict[str, int] = field(default_factory=dict)
    last: str = ""
    tail: int = 0


class Ledger:
    """Reads and extends the entries in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "ledger"
        self._state = State()

    @property
    def exists(self) -> bool:
        """Whether this is a lake."""
        return self.folder.is_dir()

    def create(self) -> None:
        """Make the folder, if it is not there."""
        _disk.make_folder(self.folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other writers; readers are never excluded."""
        self.create()
        with _disk.locked(self.folder / "lock"):
            yield

    def load(self) -> State:
        """The lake as of now: a snapshot that later entries do not change.

        Raises:
            LakeError: An entry is damaged, missing or of another version.
        """
        problem = ""
        for attempt in range(ATTEMPTS):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return State()
            except OSError as error:
                raise LakeError(
                    f"{self.folder} cannot be read: {error.strerror}",
                    "check the path and its rights",
                ) from error
            try:
                state = self._advance(names)
            except FileNotFoundError as error:
                problem = f"{error.filename} is missing"
            except _BrokenChain as error:
                problem = str(error)
            else:
                self._state = state  # only where to go on from: another thread may overwrite it
                return state
            time.sleep(0.001 * attempt)
        raise LakeError(
            f"{self.folder}: {problem}",
            "the ledger is damaged: restore it from a backup, or collect into a new lake",
        )

    def _advance(self, names: Iterable[str]) -> State:
        stems = sorted(n.removesuffix(".json") for n in names if n.endswith(".json"))
        checkpoints = [s.removeprefix(CHECKPOINT) for s in stems if s.startswith(CHECKPOINT)]
        newest = checkpoints[-1] if checkpoints else ""
        old = self._state
        if newest > old.last:
            old = self._read_checkpoint(newest)
        state = old
        todo = [s for s in stems if not s.startswith(CHECKPOINT) and s > state.last]
        entries = [(stem, self._read(stem)) for stem in todo]
        last = state.last
        for stem, entry in entries:
            if entry["previous"] != last:
                raise _BrokenChain(f"entry {entry['previous']} is missing before {stem}")
            last = stem
        if entries:
            # A new object: a state that a caller holds does not change under it.
            state = State(
                files=dict(old.files),
                inputs=old.inputs.copy(),
                removed=dict(old.removed),
                tail=old.tail,
            )
        for stem, entry in entries:
            self._apply(state, stem, entry)
        return state

    def _apply(self, state: State, stem: str, entry: dict[str, Any]) -> None:
        for path in entry["removes"]:
            state.files.pop(path, None)
            state.removed[path] = entry["time_ns"]
        for data in entry["adds"]:
            file = DataFile.from_json(data, self.root)
            _check_table_schema(file)
            state.files[data["path"]] = file
        for source in entry["forgets"]:
            state.inputs.forget(source)
        for data in entry["inputs"]:
            state.inputs.add(InputRecord.from_json(data))
        state.last = stem
        state.tail += 1

    def _read(self, stem: str) -> dict[str, Any]:
        path = self.folder / f"{stem}.json"
        try:
            data: dict[str, Any] = json.loads(path.read_bytes())
            schema = data["schema"]
        except (ValueError, TypeError, KeyError) as error:
            raise LakeError(
                f"{path}: not a ledger entry: {error}",
                "the disk lost part of it: restore it from a backup, or collect into a new lake",
            ) from error
        if schema != LEDGER_SCHEMA:
            raise LakeError(
                f"{path}: ledger schema {schema} of xtune {data.get('xtune')}, this xtune "
                f"{xtune.__version__} reads {LEDGER_SCHEMA}",
                "use that version of xtune, or collect into a new lake",
            )
        return data

    def _read_checkpoint(self, stem: str) -> State:
        data = self._read(f"{CHECKPOINT}{stem}")
        state = State(last=stem, removed=data["removed"])
        for item in data["files"]:
            file = DataFile.from_json(item, self.root)
            _check_table_schema(file)
            state.files[item["path"]] = file
        for item in data["inputs"]:
            state.inputs.add(InputRecord.from_json(item))
        return state

    def append(
        self,
        *,
        time_ns: int,
        adds: Iterable[DataFile] = (),
        removes: Iterable[str] = (),
        inputs: Iterable[InputRecord] = (),
        forgets: Iterable[str] = (),
    ) -> None:
        """Add one entry; call it under :meth:`lock`.

        Names rise even where the clock steps back: the order of entries is their name's.
        """
        previous = self.load().last
        if previous:
            time_ns = max(time_ns, int(previous.partition("-")[0]) + 1)
        stem = f"{time_ns:020d}-{secrets.token_hex(4)}"
        entry = {
            "schema": LEDGER_SCHEMA,
            "xtune": xtune.__version__,
            "time_ns": time_ns,
            "previous": previous,
            "adds": [file.to_json(self.root) for file in adds],
            "removes": sorted(removes),
            "inputs": [record.to_json() for record in inputs],
            "forgets": sorted(forgets),
        }
        write_atomically(self.folder / f"{stem}.json", _dump(entry))
        state = self.load()
        if state.tail > max(MIN_TAIL, len(state.files) // TAIL_SHARE):
            # The entry is in: a disk too full for a checkpoint must not make its writer think
            # otherwise. The next entry tries again.
            with suppress(OSError):
                self.checkpoint()

    def checkpoint(self, forget: Iterable[str] = ()) -> None:
        """Fold all entries into one file and delete them; call it under :meth:`lock`.

        Args:
            forget: Removed files that are no longer on disk.
        """
        state = self.load()
        gone = set(forget)
        removed = {name: at for name, at in state.removed.items() if name not in gone}
        content = {
            "schema": LEDGER_SCHEMA,
            "xtune": xtune.__version__,
            "files": [file.to_json(self.root) for file in state.files.values()],
            "inputs": [record.to_json() for record in state.inputs.values()],
            "removed": removed,
        }
        name = f"{CHECKPOINT}{state.last}.json"
        write_atomically(self.folder / name, _dump(content))
        self._state = replace(state, removed=removed, tail=0)
        for path in sorted(self.folder.glob("*.json")):
            if path.name != name and path.stem.removeprefix(CHECKPOINT) <= state.last:
                path.unlink(missing_ok=True)


class _BrokenChain(Exception):
    """A listing of the folder that does not fit together; list again."""


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _check_table_schema(file: DataFile) -> None:
    if file.schema != SCHEMA_VERSION:
        raise LakeError(
            f"{file.path}: table schema {file.schema} of xtune {file.xtune}, this xtune "
            f"{xtune.__version__} reads {SCHEMA_VERSION}",
            "use that version of xtune, or collect into a new lake",
        )

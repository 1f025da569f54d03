"""Work of ``link_rates`` cut by (chunk, range of links), done anywhere, kept under its digest.

A part is one chunk for one range of links. What it gives is put into ``.rebuild/parts`` of the
lake under the digest of all it rests on, so it does not matter who computed it, when, or how
often: a process of this rebuild, a worker of a cluster, a shard, or one that was killed later.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xtune.errors import XtuneError
from xtune.files import fsync
from xtune.lake import Lake
from xtune.pipelines._chunks import Chunk
from xtune.pipelines._engine import Session, connect
from xtune.pipelines._identity import PortFacts
from xtune.pipelines._rates import run_chunk
from xtune.pipelines._samples import ChunkInput
from xtune.pipelines._source import source_digest
from xtune.pipelines._state import FOLDER, PartRecord, digest, write_table
from xtune.pipelines.rules import EpisodeRules

_DONE = "done.json"
_UNFINISHED = ".tmp-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One chunk of a range.

    Attributes:
        chunk: Its span and raw files.
        base: Digest of what the chunk rests on, beside what the chunk before hands on.
        facts: Raw link -> what is known of its port; the links of the range.
        null_rate: Whether a row lacks its port's rate.
        deltas: Whether a row holds deltas.
        known: What is in the lake for this chunk and range, if anything.
    """

    chunk: Chunk
    base: str
    facts: Mapping[str, PortFacts]
    null_rate: bool
    deltas: bool
    known: PartRecord | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTask:
    """The chunks of one range of links, in the order of time; can be sent to another process.

    Attributes:
        root: The lake.
        low: First link of the range; None for the first of all.
        high: First link after it; None for no end.
        steps: What to do.
        carry: Name of what the chunk before the first step handed on; empty for nothing.
        rules: What counts as congestion.
        memory: Most memory that DuckDB uses; None for its default.
        threads: Threads that DuckDB uses; None for its default.
        source: Digest of the source that is to do it.
    """

    root: Path
    low: str | None
    high: str | None
    steps: tuple[Step, ...]
    carry: str
    rules: EpisodeRules
    memory: str | None
    threads: int | None
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartDone:
    """What came of one step.

    Attributes:
        key: The chunk's.
        record: As the state keeps it; ``files`` are still to be named, where it is new.
        folder: Where its files are; None where the lake has them already.
    """

    key: str
    record: PartRecord
    folder: Path | None


def part_digest(base: str, low: str | None, high: str | None, carry: str) -> str:
    """Digest of all that a part rests on."""
    return digest(base, low, high, carry)


def run_range(
    task: RangeTask,
    report: Callable[[str], None] = lambda key: None,
    here: Session | None = None,
) -> list[PartDone]:
    """Do the steps of a range; what is there already, here or as a part, is not done again.

    Args:
        task: What to do.
        report: Told the chunk that is begun.
        here: A session of this process, of whose database use is made; None opens one.

    Raises:
        XtuneError: This process has another version of the pipelines than who asks.
    """
    if task.source != source_digest():
        raise XtuneError("a worker has another xtune", "install the same version on all hosts")
    lake = Lake.open(task.root)
    store = Parts(task.root)
    carry, done = task.carry, []
    folder = task.root / FOLDER
    with ExitStack() as stack:
        session: Session | None = None
        for step in task.steps:
            inputs = part_digest(step.base, task.low, task.high, carry)
            if step.known is not None and step.known.inputs == inputs:
                found = PartDone(key=step.chunk.key, record=step.known, folder=None)
            else:
                part = store.find(step.chunk.key, inputs)
                if part is None:
                    report(step.chunk.key)
                    if session is None:
                        session = stack.enter_context(_session(lake, task, here))
                    before = pq.read_table(folder / carry) if carry else None
                    part = _compute(lake, store, session, task, step, inputs, before)
                found = part
            done.append(found)
            carry = found.record.carry
            folder = found.folder or task.root / FOLDER
    return done


def _session(lake: Lake, task: RangeTask, here: Session | None) -> Session:
    if here is not None:
        return here.apart(task.rules.to_json())
    scratch = lake.scratch("derived/link_rates")
    session = connect(threads=task.threads, memory=task.memory, scratch=scratch)
    session.set_variables(task.rules.to_json())
    return session


def _compute(
    lake: Lake,
    store: Parts,
    session: Session,
    task: RangeTask,
    step: Step,
    inputs: str,
    carry: pa.Table | None,
) -> PartDone:
    result = run_chunk(
        lake,
        session,
        ChunkInput(
            chunk=step.chunk,
            facts=step.facts,
            null_rate=step.null_rate,
            deltas=step.deltas,
            carry=carry,
            low=task.low,
            high=task.high,
        ),
    )
    return store.keep(
        step.chunk.key,
        PartRecord(
            low=task.low,
            high=task.high,
            inputs=inputs,
            rows=result.rows,
            runs="",
            carry="",
            packets=result.packets,
        ),
        result.files,
        {"runs": result.runs, "carry": result.carry},
    )


class Parts:
    """Finished parts that the lake's tables do not have yet."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER / "parts"

    def find(self, key: str, inputs: str) -> PartDone | None:
        """A part by its chunk and digest; None where there is none, or it is not whole."""
        return self._read(self._folder / f"{key}.{inputs}")

    def ranges(self, key: str) -> list[tuple[str | None, str | None]]:
        """Ranges of links for which a chunk has parts, of whatever digest, by rising link."""
        found = {
            (part.record.low, part.record.high)
            for path in self._all()
            if path.name.partition(".")[0] == key and (part := self._read(path)) is not None
        }
        return sorted(found, key=lambda bounds: (bounds[0] or "", bounds[1] or "\U0010ffff"))

    def keep(
        self,
        key: str,
        record: PartRecord,
        rates: tuple[Path, ...],
        tables: Mapping[str, pa.Table],
    ) -> PartDone:
        """Put a part in its place; one that another process put there meanwhile stays."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{_UNFINISHED}{secrets.token_hex(6)}"
        unfinished.mkdir()
        record.files = [f"rates-{number}.parquet" for number in range(len(rates))]
        for path, name in zip(rates, record.files, strict=True):
            os.replace(path, unfinished / name)
            fsync(unfinished / name)
        record.runs = write_table(unfinished, "runs", tables["runs"])
        record.carry = write_table(unfinished, "carry", tables["carry"])
        (unfinished / _DONE).write_text(json.dumps(record.to_json()))
        fsync(unfinished / _DONE)
        place = self._folder / f"{key}.{record.inputs}"
        found = self._read(place)
        if found is None:
            shutil.rmtree(place, ignore_errors=True)  # its files were taken by a killed rebuild
            try:
                os.rename(unfinished, place)
            except OSError:
                found = self._read(place)
                if found is None:
                    raise
        if found is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
            return found
        return PartDone(key=key, record=record, folder=place)

    def drop(self, part: PartDone) -> None:
        """Delete a part whose files the lake has taken."""
        if part.folder is not None:
            shutil.rmtree(part.folder, ignore_errors=True)

    def sweep(self, keys: set[str]) -> None:
        """Delete unfinished parts and those of these chunks; call it while nobody makes any."""
        for path in self._all():
            key = path.name.partition(".")[0]
            if not key or key in keys:
                shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from sorted(self._folder.iterdir())

    def _read(self, place: Path) -> PartDone | None:
        try:
            data: dict[str, Any] = json.loads((place / _DONE).read_text())
            record = PartRecord.from_json(data)
        except (OSError, ValueError, TypeError):
            return None
        names = [*record.files, record.runs, record.carry]
        if not all((place / name).exists() for name in names):
            return None
        return PartDone(key=place.name.partition(".")[0], record=record, folder=place)

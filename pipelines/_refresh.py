"""Brings ``link_rates`` up to date: which chunks are stale, in what order, in which commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from xtune.lake import DataFile, Lake, Transaction
from xtune.pipelines._chunks import DAY_ROWS, Chunk, key_span_ns, plan, touches
from xtune.pipelines._engine import Session
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._rates import ChunkInput, run_chunk
from xtune.pipelines._state import ChunkRecord, State, digest

TABLE = "derived/link_rates"


@dataclass(kw_only=True, slots=True)
class Refreshed:
    """What refreshing did.

    Attributes:
        computed: Chunks computed.
        reused: Chunks that were up to date.
        dropped: Chunks whose inputs are no longer in the ledger.
    """

    computed: list[str] = field(default_factory=list)
    reused: int = 0
    dropped: list[str] = field(default_factory=list)


class Refresher:
    """Walks the chunks of a lake in the order of time."""

    def __init__(
        self,
        lake: Lake,
        session: Session,
        state: State,
        inventory: Inventory,
        code: str,
        day_rows: int = DAY_ROWS,
    ) -> None:
        self._lake = lake
        self._session = session
        self._state = state
        self._inventory = inventory
        self._code = code
        self._chunks = {chunk.key: chunk for chunk in plan(lake.files("link_counters"), day_rows)}
        self._live = {self._name(file): file for file in lake.files(TABLE)}
        self._carry: str | None = None
        self._fresh: list[str] = []
        self.done = Refreshed()

    def run(self, since_ns: int, until_ns: int, progress: Callable[[int, str], None]) -> Refreshed:
        """Compute what is stale within a span; one commit a date."""
        keys = sorted({*self._chunks, *self._state.chunks}, key=lambda k: key_span_ns(k)[::-1])
        for date, of_date in groupby(keys, key=lambda key: key[:10]):
            with self._lake.begin() as transaction:
                changed = self._drop_strays(transaction, date, since_ns, until_ns)
                for key in of_date:
                    progress(keys.index(key), f"link_rates {key}")
                    chunk = self._chunks.get(key)
                    if chunk is None:
                        changed |= self._keep_or_drop(transaction, key)
                    elif not _within(chunk, since_ns, until_ns):
                        self._pass_on(key)
                    else:
                        changed |= self._visit(transaction, chunk)
                if changed:
                    transaction.commit()
                    self._find_files()
                    self._state.save()
        return self.done

    def _visit(self, transaction: Transaction, chunk: Chunk) -> bool:
        facts = {
            link: self._inventory.identity.port(link)
            for file in chunk.files
            for link in self._inventory.links(file)
        }
        files = sorted(file.path.relative_to(self._lake.root).as_posix() for file in chunk.files)
        shown = [(raw, repr(port)) for raw, port in sorted(facts.items())]
        inputs = digest(self._code, chunk.key, files, shown, self._carry)
        known = self._state.chunks.get(chunk.key)
        sources = {source for file in chunk.files for source in file.sources}
        if known is not None and self._intact(known):
            if known.inputs == inputs:
                self.done.reused += 1
                self._carry = known.carry
                return False
            if self._pruned(known, sources):
                self._carry = known.carry
                return False
        records = [self._inventory.record(file) for file in chunk.files]
        result = run_chunk(
            self._lake,
            self._session,
            ChunkInput(
                chunk=chunk,
                facts=facts,
                null_rate=any(record.null_rate for record in records),
                deltas=any(record.deltas for record in records),
                carry=self._read_carry(),
            ),
        )
        self._state.notes[chunk.key] = self._check_packets()
        self._remove(transaction, known)
        for file in result.files:
            transaction.adopt(TABLE, file, date=chunk.date, compacted=True)
        self._carry = self._state.keep_table("carry", result.carry)
        self._state.chunks[chunk.key] = ChunkRecord(
            inputs=inputs,
            files=[],
            rows=result.rows,
            sources=sorted(sources),
            runs=self._state.keep_table("runs", result.runs),
            carry=self._carry,
        )
        self._fresh.append(chunk.key)
        self.done.computed.append(chunk.key)
        return True

    def _find_files(self) -> None:
        """Enter the names that a commit gave to new files."""
        before = self._live
        self._live = {self._name(file): file for file in self._lake.files(TABLE)}
        for name in sorted(self._live.keys() - before.keys()):
            file = self._live[name]
            [key] = [
                key
                for key in self._fresh
                if touches(file, *key_span_ns(key)) and file.date == key[:10]
            ]
            self._state.chunks[key].files.append(name)
        self._fresh.clear()

    def _drop_strays(
        self, transaction: Transaction, date: str, since_ns: int, until_ns: int
    ) -> bool:
        """Remove files of a date that no record claims, if the date is going to be computed."""
        chunks = [chunk for chunk in self._chunks.values() if chunk.date == date]
        if not chunks or not all(_within(chunk, since_ns, until_ns) for chunk in chunks):
            return False
        claimed = {name for record in self._state.chunks.values() for name in record.files}
        strays = [f for name, f in self._live.items() if f.date == date and name not in claimed]
        for file in strays:
            transaction.remove(file)
        return bool(strays)

    def _keep_or_drop(self, transaction: Transaction, key: str) -> bool:
        """A chunk that is no longer planned: a pruned one stays, others go.

        Others: their rows were read anew elsewhere, or their date is cut otherwise now.
        """
        record = self._state.chunks[key]
        covered = any(
            touches(file, *key_span_ns(key)) and file.date == key[:10]
            for chunk in self._chunks.values()
            for file in chunk.files
        )
        if not covered and self._pruned(record, set()):
            self._carry = record.carry
            return False
        self._remove(transaction, record)
        del self._state.chunks[key]
        self._state.notes.pop(key, None)
        if not covered:
            self.done.dropped.append(key)
        return True

    def _pruned(self, record: ChunkRecord, sources: set[str]) -> bool:
        """Whether inputs of a chunk are still in the ledger while their rows are gone."""
        return bool((set(record.sources) - sources) & self._lake.inputs().keys())

    def _pass_on(self, key: str) -> None:
        record = self._state.chunks.get(key)
        if record is not None and self._state.has([record.carry]):
            self._carry = record.carry

    def _intact(self, record: ChunkRecord) -> bool:
        return (
            all(name in self._live for name in record.files)
            and bool(record.files) == bool(record.rows)
            and self._state.has([record.runs, record.carry])
        )

    def _remove(self, transaction: Transaction, record: ChunkRecord | None) -> None:
        for name in record.files if record else []:
            if name in self._live:
                transaction.remove(self._live[name])

    def _read_carry(self) -> pa.Table | None:
        return pq.read_table(self._state.path(self._carry)) if self._carry else None

    def _check_packets(self) -> list[str]:
        self._session.create("packet_check")
        notes = []
        for row in self._session.arrow("FROM packet_check").to_pylist():
            record = self._lake.inputs().get(row["source"] or "")
            name = record.name if record else row["source"]
            wrong = row["too_large"] or row["too_small"]
            kind = "4 times too large" if row["too_large"] else "4 times too small"
            notes.append(
                f"{name}: data {row['direction']} looks {kind} for its packets on {wrong} of"
                f" {row['links']} links (mean packet {row['median_bytes']:.0f} bytes): read it"
                f" again with --map data_unit_bytes={1 if row['too_large'] else 4}"
            )
        return notes

    def _name(self, file: DataFile) -> str:
        return file.path.relative_to(self._lake.root).as_posix()


def _within(chunk: Chunk, since_ns: int, until_ns: int) -> bool:
    return chunk.end_ns > since_ns and chunk.start_ns < until_ns

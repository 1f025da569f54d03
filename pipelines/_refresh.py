"""Brings ``link_rates`` up to date: which chunks are stale, in what order, in which commits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xtune.lake import Lake, Transaction
from xtune.pipelines._chunks import DAY_ROWS, Chunk, by_time, key_span_ns, plan, touches
from xtune.pipelines._engine import Session
from xtune.pipelines._identity import PortFacts
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._packets import packet_notes
from xtune.pipelines._parts import PartDone, Parts, RangeTask, Step, part_digest, run_range
from xtune.pipelines._source import source_digest
from xtune.pipelines._state import ChunkRecord, State, digest
from xtune.pipelines._work import Bounds, Work, cut, tiled, within

TABLE = "derived/link_rates"
# Rows of a chunk that are worth a range, and a file, of their own.
RANGE_ROWS = 50_000


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


@dataclass(kw_only=True, slots=True)
class _Pending:
    """What a commit is to bring: chunks computed anew, in order, and their parts."""

    found: list[tuple[str, ChunkRecord, list[PartDone]]] = field(default_factory=list)
    changed: bool = False


class Refresher:
    """Walks the chunks of a lake in the order of time."""

    def __init__(
        self,
        lake: Lake,
        state: State,
        inventory: Inventory,
        code: str,
        work: Work,
        session: Session,
        day_rows: int = DAY_ROWS,
    ) -> None:
        self._lake = lake
        self._state = state
        self._inventory = inventory
        self._code = code
        self._work = work
        self._session = session
        chunks = plan(lake.files("link_counters"), day_rows, state.chunks)
        self._chunks = {chunk.key: chunk for chunk in chunks}
        self._live = {lake.name_of(file): file for file in lake.files(TABLE)}
        self._store = Parts(lake.root)
        # What the chunk before handed on: by range, the name of its stored rows.
        self._carry: list[tuple[Bounds, str]] = []
        self._facts: dict[tuple[str, ...], tuple[dict[str, PortFacts], str]] = {}
        self._of_range: dict[tuple[tuple[str, ...], Bounds], dict[str, PortFacts]] = {}
        self.done = Refreshed()

    def run(self, since_ns: int, until_ns: int, progress: Callable[[int, str], None]) -> Refreshed:
        """Compute what is stale within a span; one commit a date.

        A shard computes its ranges only, puts them where a later rebuild finds them, and commits
        nothing.
        """
        keys = self.keys
        place = {key: number for number, key in enumerate(keys)}

        def report(key: str) -> None:
            progress(place[key], f"link_rates {key}")

        for date, of_date in groupby(keys, key=lambda key: key[:10]):
            pending = _Pending()
            with self._lake.begin() as transaction:
                if self._work.shard is None:
                    pending.changed = self._drop_strays(transaction, date, since_ns, until_ns)
                segment: list[Chunk] = []
                for key in of_date:
                    chunk = self._chunks.get(key)
                    if chunk is None or not _within(chunk, since_ns, until_ns):
                        self._visit(transaction, segment, pending, report)
                        segment = []
                        if chunk is None:
                            pending.changed |= self._keep_or_drop(transaction, key)
                        else:
                            self._pass_on(key)
                    else:
                        segment.append(chunk)
                self._visit(transaction, segment, pending, report)
                if pending.changed and self._work.shard is None:
                    self._publish(transaction, pending)
        return self.done

    def stale(self, since_ns: int, until_ns: int) -> list[str]:
        """Chunks that would be computed, as far as that is known without computing any.

        What follows a stale chunk may turn out stale too, where a port's last sample, or its
        level, changes.
        """
        found: list[str] = []
        for key in self.keys:
            chunk = self._chunks.get(key)
            if chunk is not None and _within(chunk, since_ns, until_ns) and not self._kept(chunk):
                base, _ = self._base(chunk)
                known = self._state.chunks.get(key)
                # What is handed on is not known after a stale chunk, and likely the same.
                same = known is not None and known.base == base and self._intact(known)
                if known is None or not (same if found else self._valid(known, base)):
                    found.append(key)
            self._pass_on(key)
        return found

    @property
    def keys(self) -> list[str]:
        """Chunks that there are, or were, in the order of time."""
        return by_time({*self._chunks, *self._state.chunks})

    def _visit(
        self,
        transaction: Transaction,
        segment: list[Chunk],
        pending: _Pending,
        report: Callable[[str], None],
    ) -> None:
        """Bring neighbouring chunks up to date; the first stale one on, in all ranges at once."""
        rest = list(segment)
        while rest:
            chunk = rest[0]
            base, _ = self._base(chunk)
            known = self._state.chunks.get(chunk.key)
            if known is None or not (self._valid(known, base) or self._kept(chunk)):
                break
            self._carry_of(known)
            self.done.reused += 1
            rest.pop(0)
        stop = next((i for i, chunk in enumerate(rest) if self._kept(chunk)), len(rest))
        if stop:
            self._compute(transaction, rest[:stop], pending, report)
        if rest[stop:]:
            self._visit(transaction, rest[stop:], pending, report)

    def _compute(
        self,
        transaction: Transaction,
        chunks: list[Chunk],
        pending: _Pending,
        report: Callable[[str], None],
    ) -> None:
        ranges = self._ranges(chunks)
        if self._work.shard is not None:
            if self._work.shard.index >= len(ranges):
                return  # fewer links than shards
            ranges = [ranges[self._work.shard.index]]
        report(chunks[0].key)
        tasks = [self._task(chunks, bounds) for bounds in ranges]
        results = self._run(tasks, report)
        if self._work.shard is not None:
            self._carry = []
            for bounds, of_range in zip(ranges, results, strict=True):
                last = of_range[-1]
                if last.folder is not None:
                    shutil.copy(last.folder / last.record.carry, self._state.folder)
                self._carry.append((bounds, last.record.carry))
            self.done.computed += [part.key for part in results[0] if part.folder is not None]
            return
        for number, chunk in enumerate(chunks):
            parts = [of_range[number] for of_range in results]
            self._take(transaction, chunk, parts, pending)

    def _run(self, tasks: list[RangeTask], report: Callable[[str], None]) -> list[list[PartDone]]:
        executor = self._work.executor
        if executor is None:
            return [run_range(task, report, self._session) for task in tasks]
        futures = [executor.submit(run_range, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _take(
        self, transaction: Transaction, chunk: Chunk, parts: list[PartDone], pending: _Pending
    ) -> None:
        """Enter what was computed for a chunk, in the place of what was there."""
        known = self._state.chunks.get(chunk.key)
        if known is not None and [part.record for part in parts] == known.parts:
            self.done.reused += 1
            self._carry_of(known)
            return
        kept = {name for part in parts if part.folder is None for name in part.record.files}
        for name in known.files if known else []:
            if name in self._live and name not in kept:
                transaction.remove(self._live[name])
        for part in parts:
            if part.folder is None:
                continue
            for name in part.record.files:
                path = part.folder / name
                transaction.adopt(TABLE, path, date=chunk.date, compacted=True)
            for name in (part.record.runs, part.record.carry):
                self._state.take(part.folder / name)
        base, sources = self._base(chunk)
        record = ChunkRecord(
            base=base, sources=sorted(sources), parts=[part.record for part in parts]
        )
        pending.found.append((chunk.key, record, parts))
        pending.changed = True
        self._carry_of(record)

    def _publish(self, transaction: Transaction, pending: _Pending) -> None:
        names = iter(transaction.commit())
        self._live = {self._lake.name_of(file): file for file in self._lake.files(TABLE)}
        for key, record, parts in pending.found:
            for number, part in enumerate(parts):
                if part.folder is not None:
                    files = [next(names) for _ in part.record.files]
                    record.parts[number] = replace(part.record, files=files)
            self._state.chunks[key] = record
            packets = [row for part in record.parts for row in part.packets]
            self._state.notes[key] = packet_notes(packets, self._lake.inputs())
            self.done.computed.append(key)
        self._state.save(sweep=False)
        for _, _, parts in pending.found:
            for part in parts:
                self._store.drop(part)

    def _task(self, chunks: Sequence[Chunk], bounds: Bounds) -> RangeTask:
        steps = []
        for chunk in chunks:
            base, _ = self._base(chunk)
            known = self._state.chunks.get(chunk.key)
            parts = known.parts if known is not None and self._intact(known) else []
            records = [self._inventory.record(file) for file in chunk.files]
            step = Step(
                chunk=chunk,
                base=base,
                facts=self._facts_in(chunk, bounds),
                null_rate=any(record.null_rate for record in records),
                deltas=any(record.deltas for record in records),
                known=next((part for part in parts if (part.low, part.high) == bounds), None),
            )
            steps.append(step)
        return RangeTask(
            root=self._lake.root,
            low=bounds[0],
            high=bounds[1],
            steps=tuple(steps),
            carry=self._carry_in(bounds),
            rules=self._work.rules,
            memory=self._work.worker_memory if self._work.executor else self._work.memory,
            threads=self._work.worker_threads if self._work.executor else self._work.threads,
            source=source_digest(),
        )

    def _ranges(self, chunks: list[Chunk]) -> list[Bounds]:
        """How chunks are cut: as the shards did, or as those before, or evenly."""
        links = sorted(
            {port.link for chunk in self._chunks.values() for port in self._links(chunk).values()}
        )
        if self._work.shard is not None:
            return cut(links, self._work.shard.count)
        made = self._store.ranges(chunks[0].key)
        if made:
            return tiled(made)
        rows = max(sum(file.rows for file in chunk.files) for chunk in chunks)
        count = max(1, min(self._work.workers, rows // RANGE_ROWS))
        before = [bounds for bounds, _ in self._carry]
        return before if len(before) == count else cut(links, count)

    # What a chunk rests on

    def _base(self, chunk: Chunk) -> tuple[str, set[str]]:
        """Digest of what a chunk rests on beside what is handed on to it; and its sources."""
        origin = self._state.origin(self._lake.name_of(file) for file in chunk.files)
        _, facts = self._facts_of(chunk)
        sources = {source for file in chunk.files for source in file.sources}
        return digest(self._code, chunk.key, origin, facts), sources

    def _facts_of(self, chunk: Chunk) -> tuple[dict[str, PortFacts], str]:
        sets = self._sets(chunk)
        if sets not in self._facts:
            facts = {
                link: self._inventory.port(link, chunk.start_ns, chunk.end_ns)
                for file in chunk.files
                for link in self._inventory.links(file)
            }
            shown = [(raw, repr(port)) for raw, port in sorted(facts.items())]
            self._facts[sets] = facts, digest(shown)
        return self._facts[sets]

    def _sets(self, chunk: Chunk) -> tuple[str, ...]:
        """Which links a chunk has, and which clocks are off in it."""
        links = {self._inventory.record(file).links for file in chunk.files}
        return (*sorted(links), self._inventory.clocks.mark(chunk.start_ns, chunk.end_ns))

    def _links(self, chunk: Chunk) -> dict[str, PortFacts]:
        return self._facts_of(chunk)[0]

    def _facts_in(self, chunk: Chunk, bounds: Bounds) -> dict[str, PortFacts]:
        """Facts of a range; one object for all chunks with the same links, which travels once."""
        sets = self._sets(chunk)
        if (sets, bounds) not in self._of_range:
            self._of_range[sets, bounds] = {
                raw: port for raw, port in self._links(chunk).items() if within(port.link, bounds)
            }
        return self._of_range[sets, bounds]

    def _carry_of(self, record: ChunkRecord) -> None:
        self._carry = [((part.low, part.high), part.carry) for part in record.parts]

    def _carry_in(self, bounds: Bounds) -> str:
        """Name of what is handed on to a range; empty where there is nothing before."""
        for known, name in self._carry:
            if known == bounds:
                return name
        if not self._carry:
            return ""
        tables = [pq.read_table(self._state.path(name)) for _, name in self._carry]
        rows = pa.concat_tables(tables).sort_by("link")
        low, high = bounds
        if low is not None:
            rows = rows.filter(pc.greater_equal(rows["link"], low))
        if high is not None:
            rows = rows.filter(pc.less(rows["link"], high))
        return self._state.keep_table("carry", rows)

    def _valid(self, known: ChunkRecord, base: str) -> bool:
        """Whether a chunk is in the lake as it would be computed now."""
        return (
            known.base == base
            and self._intact(known)
            and all(
                part.inputs == part_digest(base, *bounds, self._carry_in(bounds))
                for part in known.parts
                for bounds in [(part.low, part.high)]
            )
        )

    def _kept(self, chunk: Chunk) -> bool:
        """Whether a chunk stays as it is because telemetry of it was pruned."""
        known = self._state.chunks.get(chunk.key)
        if known is None or not self._intact(known):
            return False
        return self._pruned(known, {s for file in chunk.files for s in file.sources})

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
            self._carry_of(record)
            return False
        if self._work.shard is not None:
            return False
        for name in record.files:
            if name in self._live:
                transaction.remove(self._live[name])
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
        if record is not None and self._state.has(record.stored):
            self._carry_of(record)

    def _intact(self, record: ChunkRecord) -> bool:
        return (
            all(name in self._live for name in record.files)
            and all(bool(part.files) == bool(part.rows) for part in record.parts)
            and self._state.has(record.stored)
        )


def _within(chunk: Chunk, since_ns: int, until_ns: int) -> bool:
    return chunk.end_ns > since_ns and chunk.start_ns < until_ns

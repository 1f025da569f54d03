"""Any sequence of writes, removals, commits, aborts and reopenings against a plain dict."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from xtune.lake import Lake, Transaction, inspect
from xtune.tables import TABLES

NS = st.one_of(st.none(), st.integers(0, 3 * 86_400 * 10**9))


class LakeMachine(RuleBasedStateMachine):
    """``live`` is what the lake holds: file path -> steps; ``pending`` what a commit would do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="xtune-model-"))
        self.now_ns = 10**18
        self.lake = Lake.open(self.folder / "lake", create=True, clock=self.tick)
        self.transaction: Transaction | None = None
        self.live: Counter[int] = Counter()
        self.written: Counter[int] = Counter()
        self.removed: dict[Path, Counter[int]] = {}
        self.next = 0

    def tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    @precondition(lambda self: self.transaction is None)
    @rule()
    def begin(self) -> None:
        self.transaction = self.lake.begin()
        self.written, self.removed = Counter(), {}

    @precondition(lambda self: self.transaction is not None)
    @rule(times=st.lists(NS, max_size=6), compacted=st.booleans())
    def write(self, times: list[int | None], compacted: bool) -> None:
        assert self.transaction is not None
        steps = list(range(self.next, self.next + len(times)))
        self.next += len(times)
        ts = pa.array(times, pa.int64()).cast(pa.timestamp("ns", "UTC"))
        data = pa.table({"ts": ts, "step": pa.array(steps, pa.int64())})
        self.transaction.write("steps", data, compacted=compacted)
        self.written.update(steps)

    @precondition(lambda self: self.transaction is not None)
    @rule(pick=st.integers(0, 100))
    def remove(self, pick: int) -> None:
        assert self.transaction is not None
        files = self.lake.files("steps")
        if files:
            file = files[pick % len(files)]
            self.transaction.remove(file)
            self.removed[file.path] = self.steps_of([file.path])

    @precondition(lambda self: self.transaction is not None)
    @rule()
    def commit(self) -> None:
        assert self.transaction is not None
        self.transaction.commit()
        self.transaction = None
        self.live += self.written
        for steps in self.removed.values():
            self.live -= steps

    @precondition(lambda self: self.transaction is not None)
    @rule()
    def abort(self) -> None:
        assert self.transaction is not None
        self.transaction.abort()
        self.transaction = None

    @rule()
    def checkpoint(self) -> None:
        if self.lake.ledger.exists:
            with self.lake.ledger.lock():
                self.lake.ledger.checkpoint()

    @rule()
    def sweep(self) -> None:
        self.lake.sweep(grace_ns=0)

    @precondition(lambda self: self.transaction is None and self.lake.ledger.exists)
    @rule()
    def reopen(self) -> None:
        self.lake = Lake.open(self.lake.root, clock=self.tick)

    def steps_of(self, paths: list[Path]) -> Counter[int]:
        import pyarrow.parquet as pq

        found: Counter[int] = Counter()
        for path in paths:
            found.update(pq.ParquetFile(path).read(["step"])["step"].to_pylist())
        return found

    @invariant()
    def holds_what_was_committed(self) -> None:
        read = self.lake.read("steps")
        assert Counter(read["step"].to_pylist()) == self.live
        assert read.schema.equals(TABLES["steps"].schema)
        for file in self.lake.files("steps"):
            assert file.path.parent.name == f"date={file.date}"
            assert file.path.stat().st_size == file.bytes
        if self.transaction is None and self.lake.ledger.exists:
            assert inspect(self.lake).unfinished == ()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestLakeMachine = LakeMachine.TestCase
TestLakeMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)

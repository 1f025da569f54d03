"""What every collector keeps, ours and other people's.

A test file subclasses :class:`CollectorConformance`, says which collector, how to write a small
valid input and what rows that holds, and pytest does the rest::

    class TestMine(CollectorConformance):
        name = "mine"
        rows = {"steps": 2}

        def fixture(self, folder: Path) -> Path:
            path = folder / "train.log"
            path.write_text("...")
            return path
"""

from __future__ import annotations

import gzip
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from xtune.collectors import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    Rows,
    Source,
    Unknown,
    all_collectors,
    claim_best,
)
from xtune.tables import TABLES

NOW_NS = 1_750_000_000_000_000_000
CUTS = 16


class CollectorConformance(ABC):
    """Subclass it as ``class TestName(CollectorConformance)``.

    Attributes:
        name: The collector's.
        rows: Rows by table that the fixture holds, counted by hand.
        context: What the fixture needs to be told, as fields of ``Context``.
        claimed: Whether content tells it; False where only ``--kind`` does.
    """

    name: ClassVar[str]
    rows: ClassVar[Mapping[str, int]]
    context: ClassVar[Mapping[str, Any]] = {}
    claimed: ClassVar[bool] = True

    @abstractmethod
    def fixture(self, folder: Path) -> Path:
        """Write a small valid input below an empty folder; returns the file or folder."""

    @property
    def collector(self) -> Collector:
        """The collector, as ``xtune collect`` finds it."""
        return all_collectors()[self.name]

    def read(self, path: Path, **more: Any) -> list[Item]:
        """All items of an input."""
        fields: dict[str, Any] = {"now_ns": lambda: NOW_NS, **self.context, **more}
        return list(self.collector.read(Source(path, path.name), Context(**fields)))

    def test_says_what_it_is(self) -> None:
        collector = self.collector
        assert collector.name == self.name
        assert collector.version >= 1
        for text in (collector.title, collector.produce, collector.gives, collector.lacks):
            assert text, "title, produce, gives and lacks are for xtune collect --list"
            assert "\n" not in text

    def test_reads_its_fixture(self, tmp_path: Path) -> None:
        assert count(self.read(self.fixture(tmp_path))) == dict(self.rows)

    def test_rows_have_the_schema_of_their_table(self, tmp_path: Path) -> None:
        for item in self.read(self.fixture(tmp_path), labels={"site": "a"}):
            assert isinstance(item, Rows | Reject | Note | Unknown)
            if isinstance(item, Rows):
                table = TABLES[item.table]
                assert not table.derived, "a collector fills raw tables"
                fields = [f for f in table.schema if f.name != "source"]
                assert item.batch.schema.equals(pa.schema(fields))
                item.batch.validate(full=True)
                labels = item.batch.column("labels").to_pylist()
                assert all(("site", "a") in (row or []) for row in labels)

    def test_reads_alike_twice(self, tmp_path: Path) -> None:
        path = self.fixture(tmp_path)
        assert [plain(item) for item in self.read(path)] == [
            plain(item) for item in self.read(path)
        ]

    def test_claims_its_fixture_before_all_others(self, tmp_path: Path) -> None:
        path = self.fixture(tmp_path)
        best = claim_best(path, Source(path, path.name).head())
        if self.claimed:
            assert best is not None
            assert best[0].name == self.name
            assert 0 < best[1] <= 1

    def test_claims_nothing_that_is_not_its_own(self, tmp_path: Path) -> None:
        noise = random.Random(0).randbytes(4096)
        for content in (b"", b"\n", b"\0" * 100, noise, b"lorem ipsum\n" * 9, b"{}", b"[]"):
            path = tmp_path / "other"
            path.write_bytes(content)
            assert self.collector.claim(path, content) < 0.5
        assert self.collector.claim(tmp_path, b"") < 0.5

    def test_gzip_is_undone(self, tmp_path: Path) -> None:
        path = self.fixture(tmp_path)
        if path.is_file():
            packed = tmp_path / "packed" / path.name
            packed.parent.mkdir()
            packed.write_bytes(gzip.compress(path.read_bytes()))
            assert count(self.read(packed)) == dict(self.rows)

    def test_survives_a_cut_and_noise(self, tmp_path: Path) -> None:
        path = self.fixture(tmp_path)
        if path.is_dir():
            return
        whole = path.read_bytes()
        for number in range(CUTS):
            path.write_bytes(whole[: len(whole) * number // CUTS])
            self.read(path)
            path.write_bytes(random.Random(number).randbytes(len(whole)))
            self.read(path)


def plain(item: Item) -> object:
    """An item in a form in which a NaN equals itself."""
    if isinstance(item, Rows):
        return item.table, item.batch.serialize().to_pybytes()
    return item


def count(items: list[Item]) -> dict[str, int]:
    """Rows by table."""
    rows: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Rows):
            rows[item.table] += item.batch.num_rows
    return {table: n for table, n in rows.items() if n}

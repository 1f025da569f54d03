"""Takes the rows of some inputs out of files that may hold other inputs' rows too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from xtune.lake._parquet import conform, open_parquet, table_named
from xtune.lake._part import Part
from xtune.lake._records import DataFile


@dataclass
class Rewritten:
    """Files that hold rows of ``sources``, and what stands in their place.

    Attributes:
        sources: The inputs whose rows go.
        removed: Live files that hold rows of them.
        added: Those files without these rows, as temporary file and record; a file that holds
            nothing else has none.
    """

    sources: frozenset[str]
    removed: list[DataFile] = field(default_factory=list)
    added: list[tuple[Path, DataFile]] = field(default_factory=list)

    def fits(self, files: Iterable[DataFile]) -> bool:
        """Whether exactly these live files still hold rows of the inputs."""
        if not self.sources:
            return True
        now = {file.path for file in files if not self.sources.isdisjoint(file.sources)}
        return now == {file.path for file in self.removed}

    def discard(self) -> None:
        """Delete what was written."""
        for temporary, _ in self.added:
            temporary.unlink(missing_ok=True)


def without_sources(
    files: Iterable[DataFile], sources: frozenset[str], temporary: Callable[[], Path]
) -> Rewritten:
    """Write each file that holds rows of ``sources`` anew without them; order is kept.

    Memory does not grow with the files: it is done batch by batch.
    """
    result = Rewritten(sources)
    if not sources:
        return result
    for file in files:
        if sources.isdisjoint(file.sources):
            continue
        result.removed.append(file)
        if sources.issuperset(file.sources):
            continue
        table = table_named(file.table)
        part = Part(table, file.date, temporary(), compacted=file.compacted)
        gone = pa.array(sorted(sources), pa.string())
        with open_parquet(file.path) as stream:
            for batch in stream.iter_batches():
                keep = pc.invert(pc.is_in(batch.column("source"), gone))
                part.add(conform(table, batch.filter(keep)))
        part.close()
        result.added.append((part.temporary, part.data_file(part.temporary)))
    return result

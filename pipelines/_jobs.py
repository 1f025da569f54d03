"""What each raw file says of the size of jobs, so that each is read once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from xtune.lake import DataFile, Lake
from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._state import State

_QUERIES = {
    "collectives": (
        "SELECT job, max(comm_size) AS size, list(DISTINCT rank ORDER BY rank)"
        " FILTER (WHERE rank IS NOT NULL) AS ranks"
        " FROM {} WHERE extra['program'] IS NULL GROUP BY job ORDER BY job"
    ),
    "steps": "SELECT DISTINCT job, NULL::INTEGER AS size, NULL::INTEGER[] AS ranks FROM {}"
    " ORDER BY job",
}


class Jobs:
    """Ranks of every job of a lake: its largest communicator, or the ranks seen if more."""

    def __init__(self, lake: Lake, session: Session, state: State) -> None:
        self._lake = lake
        self._state = state
        self._rows: dict[str, list[dict[str, Any]]] = {}
        files = {lake.name_of(f): (t, f) for t in _QUERIES for f in lake.files(t)}
        for name in state.jobs.keys() - files.keys():
            del state.jobs[name]
        for name, (table, file) in files.items():
            if name in state.jobs and state.has([state.jobs[name]]):
                continue
            found = session.arrow(_QUERIES[table].format(files_relation([file.path])))
            state.jobs[name] = state.keep_table("jobs", found)
        sizes: dict[str | None, int] = {}
        ranks: dict[str | None, set[int]] = {}
        for name in sorted(set(state.jobs.values())):
            for row in self._of(name):
                job = row["job"]
                sizes[job] = max(sizes.get(job, 0), row["size"] or 0)
                ranks.setdefault(job, set()).update(row["ranks"] or ())
        self._sizes = {job: max(size, len(ranks[job])) for job, size in sizes.items()}

    def sizes(self, files: Iterable[DataFile]) -> dict[str | None, int]:
        """Ranks of the jobs that these files name, as all of the lake tells."""
        names = {self._state.jobs[self._lake.name_of(file)] for file in files}
        jobs = {row["job"] for name in names for row in self._of(name)}
        return {job: self._sizes[job] for job in sorted(jobs, key=str) if self._sizes.get(job)}

    def _of(self, name: str) -> list[dict[str, Any]]:
        if name not in self._rows:
            self._rows[name] = pq.read_table(self._state.path(name)).to_pylist()
        return self._rows[name]

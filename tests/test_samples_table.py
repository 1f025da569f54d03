"""Every public sample file gives the rows that another route counts in it."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import pytest

from tests.expected._expected import Expected, tables
from tests.samples import samples
from xtune.collectors import Context
from xtune.ingest import IngestSummary, collect
from xtune.ingest.summary import FileResult
from xtune.lake import Lake

pytestmark = [pytest.mark.shared_samples, pytest.mark.xdist_group("samples")]
TABLES = tables()
ROWS = [
    pytest.param(folder, path, expected, id=f"{folder}/{path}")
    for folder, table in TABLES.items()
    for path, expected in table.items()
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake.open(tmp_path_factory.mktemp("samples") / "lake", create=True)


@cache
def read(lake: Lake, folder: Path) -> IngestSummary:
    return collect(lake, [str(folder)], context=Context(now_ns=time.time_ns), dry_run=True)


def results(lake: Lake, folder: str) -> dict[str, FileResult]:
    root = samples(folder)
    found = {f.path.removeprefix(f"{root}/"): f for f in read(lake, root).files}
    # A folder that a collector reads whole is its own input.
    return {"." if path == str(root) else path: f for path, f in found.items()}


@pytest.mark.parametrize(("folder", "path", "expected"), ROWS)
def test_rows(lake: Lake, folder: str, path: str, expected: Expected) -> None:
    found = results(lake, folder).get(path)
    if found is None:
        pytest.skip(f"{folder}/{path} is not among the samples")
    assert (found.collector, found.state, dict(found.rows), found.rejects) == (
        expected.kind,
        expected.state,
        dict(expected.rows),
        expected.rejects,
    ), found.reasons
    assert expected.reason in (found.reasons[0].reason if found.reasons else "")


def test_each_sample_is_read_or_says_why_not(lake: Lake) -> None:
    for folder in sorted(path.name for path in samples().iterdir() if path.is_dir()):
        for path, found in results(lake, folder).items():
            if found.state in ("rejected", "unknown"):
                assert found.reasons, (folder, path)
            assert not any("a bug of" in reason.hint for reason in found.reasons), (folder, path)

"""Every public sample file through every collector: no traceback, and once is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.toy import context
from tests.samples import samples
from xtune.ingest import collect
from xtune.lake import Lake, inspect
from xtune.tables import RAW_TABLES


@pytest.mark.shared_samples
def test_all_samples_twice(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    root = samples()
    first = collect(lake, [str(root)], context=context(), debug=True)
    rows = {table: lake.read(table).num_rows for table in (*RAW_TABLES, "rejected")}
    assert first.rows == {
        table: count for table, count in rows.items() if count and table in RAW_TABLES
    }
    assert sum(first.rows.values()) > 1000
    for result in first.files:
        assert result.state in ("read", "rejected", "unknown", "unchanged"), result
        assert "failed:" not in "".join(reject.reason for reject in result.reasons), result
    second = collect(lake, [str(root)], context=context())
    assert second.rows == {}
    assert {t: lake.read(t).num_rows for t in rows} == rows
    assert second.rejects == first.rejects
    health = inspect(lake)
    assert (health.damaged, health.unfinished) == ((), ())

"""Memory holds a window, not the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import context
from tests.collectors_ib.test_prometheus import NODE, matrix, series
from xtune.collectors import Rows, Source, all_collectors


def telegraf_file(path: Path, size: int) -> int:
    lines = size * 18_000
    with path.open("w") as out:
        for i in range(lines):
            head = f"infiniband,device=mlx5_{i % 8},host=h,port=1"
            out.write(f"{head} port_xmit_data={i}i,link_downed=0i {10**18 + i // 8}\n")
    return lines


def prometheus_file(path: Path, size: int) -> int:
    found = [
        series(f"node_infiniband_{name}_total", {**NODE, "device": f"mlx5_{port}"}, *range(300))
        for name in ("link_downed", "symbol_error", "port_transmit_wait")
        for port in range(120 * size)
    ]
    path.write_text(matrix(*found))
    return 120 * size * 300


def peak(kind: str, path: Path) -> tuple[int, int]:
    tracemalloc.start()
    try:
        rows = 0
        for item in all_collectors()[kind].read(Source(path, "x"), context()):
            if isinstance(item, Rows) and item.table == "link_counters":
                rows += item.batch.num_rows
        return tracemalloc.get_traced_memory()[1], rows
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "write"), [("telegraf", telegraf_file), ("prometheus", prometheus_file)]
)
def test_peak_memory_does_not_grow_with_the_file(kind: str, write: object, tmp_path: Path) -> None:
    path = tmp_path / "input"
    peaks = []
    for size in (1, 2):
        wanted = write(path, size)  # type: ignore[operator]
        found, rows = peak(kind, path)
        assert rows == wanted
        peaks.append(found)
    assert peaks[1] < 1.25 * peaks[0]

"""Memory does not grow with an input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.lake.toy import COLLECTORS, context
from tests.memory import peak_bytes
from xtune.ingest import collect
from xtune.lake import Lake

summary = collect(
    Lake.open(Path(sys.argv[1]), create=True), [sys.argv[2]], context=context(),
    collectors=COLLECTORS,
)
print(summary.rows["steps"], peak_bytes() >> 20)
"""


def peak_mib(folder: Path, rows: int) -> int:
    path = folder / f"{rows}.txt"
    with path.open("wb") as file:
        file.write(b"#steps\n")
        for step in range(rows):
            file.write(b"%d %d 0.5\n" % (1_700_000_000_000_000_000 + step * 10**9, step))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / f"lake-{rows}"), str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found, peak = map(int, done.stdout.split())
    assert found == rows
    return peak


@pytest.mark.slow
def test_three_times_the_file_needs_no_more_memory(tmp_path: Path) -> None:
    # 1 million rows fill the buffers (64 MiB) and several row groups.
    small, large = peak_mib(tmp_path, 1_000_000), peak_mib(tmp_path, 3_000_000)
    assert large < small + 60, (small, large)

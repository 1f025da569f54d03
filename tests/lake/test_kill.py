"""kill -9 at every step on the disk: the lake is readable, and the same command completes it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.lake.toy import COLLECTORS, context, lines
from xtune.ingest import collect
from xtune.lake import Lake, inspect

ROOT = Path(__file__).parents[2]
A, GROWN, B = range(5), range(8), range(100, 105)


def steps(lake: Lake) -> Counter[int]:
    return Counter(lake.read("steps")["step"].to_pylist())


def test_killed_at_every_step(tmp_path: Path) -> None:
    before = tmp_path / "inputs" / "before"
    before.mkdir(parents=True)
    (before / "a.txt").write_bytes(lines(*A))
    (before / "b.txt").write_bytes(lines(*B))
    (tmp_path / "inputs" / "a-grown.txt").write_bytes(lines(*GROWN))
    done = subprocess.run(
        [sys.executable, "-m", "tests.lake.crash", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    tried = int(done.stdout)
    assert tried > 40  # three commits with a dozen steps each
    # What the lake may hold: each input whole or not at all, the grown one instead of the first.
    allowed = [Counter(x) for x in ((), A, [*A, *B], [*GROWN, *B])]
    (before / "a.txt").write_bytes(lines(*GROWN))
    seen = set()
    for step in range(1, tried + 1):
        lake = Lake.open(tmp_path / str(step), create=True)
        found = steps(lake)
        assert found in allowed, f"step {step}: {found}"
        seen.add(len(found))
        collect(lake, [str(before)], context=context(), collectors=COLLECTORS)
        assert steps(lake) == Counter([*GROWN, *B]), f"step {step}"
        health = inspect(lake)
        assert health.damaged == ()
        assert health.unfinished == (), f"step {step}"
        leftovers = [p for p in lake.root.rglob("*.tmp")]
        assert leftovers == [], f"step {step}"
    assert seen == {0, 5, 10, 13}


def test_killed_at_any_time(tmp_path: Path) -> None:
    """The same with a clock instead of a counter, so also inside Arrow's own writes."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    expected: Counter[int] = Counter()
    for number in range(12):
        rows = range(number * 1000, number * 1000 + 500)
        (inputs / f"{number}.txt").write_bytes(lines(*rows))
        expected.update(rows)
    script = (
        "import sys; from pathlib import Path; from tests.lake.toy import *;"
        "from xtune.lake import Lake; from xtune.ingest import collect;"
        "lake = Lake.open(Path(sys.argv[1]), create=True); print('go', flush=True);"
        "collect(lake, [sys.argv[2]], context=context(), collectors=COLLECTORS)"
    )
    lake = Lake.open(tmp_path / "lake", create=True)
    for milliseconds in (3, 20, 45, 80):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(lake.root), str(inputs)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            try:
                child.wait(milliseconds / 1000)
            except subprocess.TimeoutExpired:
                child.kill()
        found = steps(lake)
        assert len(found) % 500 == 0 and found <= expected
        assert inspect(lake).damaged == ()
    collect(lake, [str(inputs)], context=context(), collectors=COLLECTORS)
    assert steps(lake) == expected
    assert inspect(lake).unfinished == ()

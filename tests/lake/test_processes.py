"""Several collectors on one lake at once: nothing is lost, nothing is there twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

from tests.lake.toy import COLLECTORS, context, lines
from xtune.ingest import collect
from xtune.lake import ConflictError, Lake, inspect

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.lake.toy import COLLECTORS, context
from xtune.ingest import collect
from xtune.lake import Lake

lake = Lake.open(Path(sys.argv[1]), create=True)
print("ready", flush=True)
sys.stdin.readline()
given = {"tz": sys.argv[3]} if len(sys.argv) > 3 else {}
for path in sys.argv[2].split(","):
    result = collect(lake, [path], context=context(**given), collectors=COLLECTORS)
    print(*(file.state for file in result.files))
"""


def run_together(*arguments: list[str]) -> list[list[str]]:
    """Start processes, let them go at the same moment; their lines of states."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *given],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for given in arguments
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return results


def test_each_loses_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    paths: list[list[str]] = []
    for process in range(3):
        folder = tmp_path / str(process)
        folder.mkdir()
        for number in range(30):  # more commits than a checkpoint takes
            first = process * 10_000 + number * 10
            (folder / f"{number}.txt").write_bytes(lines(*range(first, first + 10)))
        paths.append([str(lake), str(folder)])
    states = run_together(*paths)
    assert states == [["read"] * 30] * 3
    rows = Counter(Lake.open(lake).read("steps")["step"].to_pylist())
    assert rows == Counter(p * 10_000 + n for p in range(3) for n in range(300))
    assert inspect(Lake.open(lake)).unfinished == ()


def test_the_same_input_is_read_once(tmp_path: Path) -> None:
    files = []
    for number in range(10):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(lines(*range(number * 10, number * 10 + 10)))
        files.append(str(path))
    arguments = [str(tmp_path / "lake"), ",".join(files)]
    first, second = run_together(arguments, arguments)
    assert Counter(first + second) == {"read": 10, "unchanged": 10}
    rows = Counter(Lake.open(tmp_path / "lake").read("steps")["step"].to_pylist())
    assert rows == Counter(range(100))


def test_two_ways_of_reading_end_with_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(lines(*range(1000)))
    lake = str(tmp_path / "lake")
    run_together([lake, str(path), "UTC"], [lake, str(path), "Asia/Shanghai"])
    opened = Lake.open(tmp_path / "lake")
    assert Counter(opened.read("steps")["step"].to_pylist()) == Counter(range(1000))
    assert len(opened.inputs()) == 1


def test_compaction_meanwhile_is_noticed_by_both_sides(tmp_path: Path) -> None:
    """An input is read anew between the listing and the commit of a compaction, and after it."""
    lake = Lake.open(tmp_path / "lake", create=True)
    for name in ("a", "b"):
        first = 0 if name == "a" else 100
        (tmp_path / name).write_bytes(lines(*range(first, first + 5)))
        collect(lake, [str(tmp_path / name)], context=context(), collectors=COLLECTORS)

    def compact(lake: Lake, meanwhile: str | None) -> None:
        files = lake.files("steps")
        rows = pa.concat_tables([pa.Table.from_batches(lake.read("steps").to_batches())])
        with lake.begin() as transaction:
            for file in files:
                transaction.remove(file)
            transaction.write("steps", rows.sort_by("step"), compacted=True)
            if meanwhile:
                again = context(tz=meanwhile)
                collect(lake, [str(tmp_path / "a")], context=again, collectors=COLLECTORS)
            transaction.commit()

    expected = Counter([*range(5), *range(100, 105)])
    try:
        compact(lake, "UTC")
    except ConflictError:
        compact(lake, None)
    else:
        raise AssertionError("the compaction would have brought replaced rows back")
    (file,) = lake.files("steps")
    assert file.compacted and len(file.sources) == 2
    assert Counter(lake.read("steps")["step"].to_pylist()) == expected
    (result,) = collect(
        lake, [str(tmp_path / "a")], context=context(tz="Asia/Tokyo"), collectors=COLLECTORS
    ).files
    assert result.state == "replaced"
    assert Counter(lake.read("steps")["step"].to_pylist()) == expected
    assert sorted(f.compacted for f in lake.files("steps")) == [False, True]

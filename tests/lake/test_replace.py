"""The ledger's key: what adds, what replaces, what changes nothing."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake.toy import COLLECTORS, HEAD, Lines, context, lines
from xtune.collectors._base import Collector, Context, Item, Reject, Source
from xtune.ingest import FileResult, HostMap, collect
from xtune.lake import Lake

T0 = 1_700_000_000_000_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def run(
    lake: Lake,
    path: Path,
    *,
    kind: str | None = None,
    host_map: HostMap | None = None,
    dry_run: bool = False,
    collectors: dict[str, Collector] = COLLECTORS,
    **flags: object,
) -> FileResult:
    (result,) = collect(
        lake,
        [str(path)],
        context=context(**flags),
        kind=kind,
        host_map=host_map,
        dry_run=dry_run,
        collectors=collectors,
    ).files
    return result


def steps(lake: Lake) -> list[int]:
    return sorted(lake.read("steps")["step"].to_pylist())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(lines(1, 2, 3))
    return path


def test_twice_adds_nothing(lake: Lake, file: Path) -> None:
    first, second = run(lake, file), run(lake, file)
    assert (first.state, dict(first.rows)) == ("read", {"steps": 3})
    assert (second.state, dict(second.rows)) == ("unchanged", {})
    assert first.source == second.source == lake.read("steps")["source"][0].as_py()
    assert len(first.source) == 12
    assert steps(lake) == [1, 2, 3]


def test_a_copy_and_its_gzip_are_the_same_input(lake: Lake, file: Path) -> None:
    run(lake, file)
    copy = file.with_name("b.log.1.gz")
    copy.write_bytes(gzip.compress(file.read_bytes()))
    assert run(lake, copy).state == "unchanged"


@pytest.mark.parametrize(
    "flags", [{"tz": "UTC"}, {"time_from": "now"}, {"column_map": {"a": "b"}}]
)
def test_flags_that_say_how_replace(lake: Lake, file: Path, flags: dict[str, Any]) -> None:
    first = run(lake, file)
    second = run(lake, file, **flags)
    assert (second.state, steps(lake)) == ("replaced", [1, 2, 3])
    assert set(lake.read("steps")["source"].to_pylist()) == {second.source}
    assert list(lake.inputs()) == [second.source] != [first.source]
    assert run(lake, file, **flags).state == "unchanged"
    assert run(lake, file).state == "replaced"


@pytest.mark.parametrize(
    "flags", [{"host": "a"}, {"job": "a"}, {"rank": 0}, {"run": "a"}, {"labels": {"k": "v"}}]
)
def test_flags_that_say_whose_add(lake: Lake, file: Path, flags: dict[str, Any]) -> None:
    run(lake, file)
    assert run(lake, file, **flags).state == "read"
    assert steps(lake) == [1, 1, 2, 2, 3, 3]
    assert run(lake, file, **flags).state == "unchanged"


def test_how_replaces_only_the_same_owner(lake: Lake, file: Path) -> None:
    run(lake, file, job="one")
    run(lake, file, job="two")
    run(lake, file, job="two", tz="UTC")
    assert Counter(lake.read("steps")["job"].to_pylist()) == {"one": 3, "two": 3}
    assert len(lake.inputs()) == 2


def test_a_newer_collector_replaces_and_an_older_does_not(lake: Lake, file: Path) -> None:
    class Newer(Lines):
        version = 2

    run(lake, file)
    newer = run(lake, file, collectors={"lines": Newer()})
    assert newer.state == "replaced"
    older = run(lake, file)
    assert (older.state, older.source) == ("unchanged", newer.source)
    assert steps(lake) == [1, 2, 3]


def test_kind_replaces(lake: Lake, file: Path) -> None:
    run(lake, file)
    assert run(lake, file, kind="lines").state == "unchanged"  # the same collector either way
    assert run(lake, file, kind="named").state == "replaced"
    assert steps(lake) == [1, 2, 3]


def test_a_wrong_kind_takes_nothing_away(lake: Lake, file: Path) -> None:
    class Refuses(Lines):
        name = "refuses"

        def read(self, source: Source, context: Context) -> Iterator[Item]:
            yield Reject("file", "not mine")

    collectors: dict[str, Collector] = {**COLLECTORS, "refuses": Refuses()}
    run(lake, file)
    assert run(lake, file, kind="refuses", collectors=collectors).state == "rejected"
    assert steps(lake) == [1, 2, 3]
    assert run(lake, file).state == "unchanged"
    assert run(lake, file, kind="named").state == "replaced"
    assert steps(lake) == [1, 2, 3]
    assert lake.read("rejected").num_rows == 0


def test_host_map_replaces(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    file.write_bytes(HEAD + b"1 1 0.5 Pod-1\n")
    run(lake, file)
    assert lake.read("gpu_samples")["host"].to_pylist() == ["pod-1"]
    result = run(lake, file, host_map=HostMap({"pod-1": "node7"}))
    assert (result.state, dict(result.notes)) == ("replaced", {})
    other = run(lake, file, host_map=HostMap({"pod-2": "node7"}))
    assert dict(other.notes) == {"host pod-1 is not in the host map: kept as read": 1}
    run(lake, file, host_map=HostMap({"pod-1": "node7"}))
    assert lake.read("gpu_samples")["host"].to_pylist() == ["node7"]


def test_a_file_that_grew_adds_its_tail(lake: Lake, file: Path) -> None:
    run(lake, file)
    file.write_bytes(lines(1, 2, 3, 4))
    assert run(lake, file).state == "replaced"
    assert steps(lake) == [1, 2, 3, 4]
    file.write_bytes(lines(1, 2, 3, 4, 5))
    run(lake, file, tz="UTC")
    assert steps(lake) == [1, 2, 3, 4, 5]


def test_a_log_that_grew_and_was_rotated_is_known_by_its_beginning(
    lake: Lake, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(*range(200)))  # longer than the 4 KiB that tell a log from a snapshot
    run(lake, log)
    rotated = tmp_path / "a.log.1.gz"
    rotated.write_bytes(gzip.compress(lines(*range(300))))
    log.write_bytes(lines(1000))
    assert run(lake, rotated).state == "replaced"
    assert run(lake, log).state == "read"
    assert steps(lake) == [*range(300), 1000]


@pytest.mark.parametrize("names", [("a.log", "b.log"), ("b.log", "a.log")])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_beside_a_copy_of_its_beginning(
    lake: Lake, tmp_path: Path, names: tuple[str, str], packed: bool
) -> None:
    """``cp train.log train.log.bak`` in the middle of a run; then the folder, several times."""
    (tmp_path / "logs").mkdir()
    copy, log = (tmp_path / "logs" / name for name in names)
    copy.write_bytes(gzip.compress(lines(*range(2000))) if packed else lines(*range(2000)))
    log.write_bytes(lines(*range(3000)))
    for _ in range(3):
        paths = [str(tmp_path / "logs")]
        states = {
            Path(result.path).name: result.state
            for result in collect(lake, paths, context=context(), collectors=COLLECTORS).files
        }
        assert steps(lake) == [*range(3000)]
    assert set(states.values()) == {"unchanged"}
    log.write_bytes(lines(*range(4000)))
    assert run(lake, log).state == "replaced"
    assert run(lake, copy).state == "unchanged"
    assert run(lake, copy, job="other").state == "read"
    assert steps(lake) == sorted([*range(4000), *range(2000)])


def test_beginnings_in_an_archive(lake: Lake, tmp_path: Path) -> None:
    """In the order of their names, and packed in an archive of archives."""
    for name, count in (("1.log", 300), ("2.log", 200), ("3.log", 250), ("4.log", 400)):
        (tmp_path / name).write_bytes(lines(*range(count)))
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        for path in sorted(tmp_path.glob("*.log")):
            archive.add(path, path.name)
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
        archive.add(tmp_path / "logs.tar", "logs.tar")
    for _ in range(2):
        collect(lake, [str(tmp_path / "all.tgz")], context=context(), collectors=COLLECTORS)
        assert steps(lake) == [*range(400)]


def test_logs_that_differ_late_are_two(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(lines(*range(300), 7, *range(3000, 5000)))
    (tmp_path / "b").write_bytes(lines(*range(300), 8))
    assert (run(lake, tmp_path / "a").state, run(lake, tmp_path / "b").state) == ("read", "read")


def test_a_log_whose_longer_one_was_written_anew_is_read(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(lines(*range(300)))
    run(lake, tmp_path / "a")
    (tmp_path / "a").write_bytes(lines(*range(250), 9000, 9001))
    (tmp_path / "b").write_bytes(lines(*range(250)))
    assert run(lake, tmp_path / "b").state == "read"  # what a was read for is not there to look


def test_a_name_that_tells_something_is_no_longer_copy(lake: Lake, tmp_path: Path) -> None:
    content = b"#named\n" + lines(*range(300))[len(HEAD) :]
    (tmp_path / "dump_0").write_bytes(content)
    (tmp_path / "dump_1").write_bytes(content + b"300 1 0.5\n")
    for order in (("dump_0", "dump_1"), ("dump_1", "dump_0")):
        for name in order:
            run(lake, tmp_path / name)
        assert len(steps(lake)) == 601


def test_short_files_that_begin_alike_are_two(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(lines(1))
    (tmp_path / "b").write_bytes(lines(1, 2))
    run(lake, tmp_path / "a")
    assert run(lake, tmp_path / "b").state == "read"
    assert steps(lake) == [1, 1, 2]


def test_other_content_at_the_same_path_adds(lake: Lake, file: Path) -> None:
    run(lake, file)
    file.write_bytes(lines(4, 5))
    assert run(lake, file).state == "read"
    assert steps(lake) == [1, 2, 3, 4, 5]


def test_snapshots_with_equal_content_at_two_times_are_two(lake: Lake, tmp_path: Path) -> None:
    for name, mtime in (("a", T0), ("b", T0 + 1)):
        path = tmp_path / name
        path.write_bytes(lines(1))
        os.utime(path, ns=(mtime, mtime))
    assert run(lake, tmp_path / "a", time_from="mtime").state == "read"
    assert run(lake, tmp_path / "b", time_from="mtime").state == "read"
    assert run(lake, tmp_path / "a", time_from="mtime").state == "unchanged"
    os.utime(tmp_path / "a", ns=(T0 + 2, T0 + 2))  # the same file, now said to be of another time
    assert run(lake, tmp_path / "a", time_from="mtime").state == "replaced"
    assert steps(lake) == [1, 1]


def test_a_name_that_tells_something_keeps_equal_files_apart(lake: Lake, tmp_path: Path) -> None:
    for name in ("dump_0", "dump_1"):
        (tmp_path / name).write_bytes(b"#named\n1 1 0.5\n")
        assert run(lake, tmp_path / name).state == "read"
    assert run(lake, tmp_path / "dump_1").state == "unchanged"
    assert steps(lake) == [1, 1]


def test_a_folder_is_one_input_known_by_its_tree(lake: Lake, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "MARK").write_text("x")
    assert (run(lake, tree).state, run(lake, tree).state) == ("read", "unchanged")
    (tree / "port").write_text("UP")
    assert run(lake, tree).state == "read"  # a snapshot at another moment, not a longer one
    (tree / "port").rename(tree / "other")
    assert run(lake, tree).state == "read"
    assert lake.read("ports").num_rows == 1 + 2 + 2


def test_replacing_takes_rejects_along(lake: Lake, file: Path) -> None:
    file.write_bytes(lines(1) + b"bad\nworse\n")
    assert run(lake, file).rejects == 2
    assert run(lake, file).rejects == 2
    assert lake.read("rejected").num_rows == 2
    file.write_bytes(lines(1) + b"bad\nworse\n5 5 0.5\n")
    assert run(lake, file).rejects == 2
    assert lake.read("rejected").num_rows == 2
    assert steps(lake) == [1, 5]


def test_an_unknown_format_is_tried_again(lake: Lake, file: Path) -> None:
    assert run(lake, file, collectors={}).state == "unknown"
    assert run(lake, file, collectors={}).state == "unknown"
    assert lake.read("rejected").num_rows == 1
    assert run(lake, file).state == "replaced"
    assert lake.read("rejected").num_rows == 0
    # Where no collector claims it, what --kind read before stays.
    assert run(lake, file, collectors={}).state == "unchanged"
    assert steps(lake) == [1, 2, 3]


def test_a_dry_run_says_what_would_happen_and_does_nothing(lake: Lake, file: Path) -> None:
    result = run(lake, file, dry_run=True)
    assert (result.state, dict(result.rows)) == ("read", {"steps": 3})
    assert not lake.root.exists()
    run(lake, file)
    assert run(lake, file, dry_run=True, tz="UTC").state == "replaced"
    assert run(lake, file, dry_run=True).state == "unchanged"
    assert steps(lake) == [1, 2, 3]

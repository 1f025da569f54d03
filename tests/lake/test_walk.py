"""Paths of every kind: one line each, never a traceback, and the good beside the bad is kept."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake.toy import COLLECTORS, HEAD, Lines, context, lines
from xtune.collectors._base import Context, Item, Source
from xtune.errors import InputError, LakeError, UsageError
from xtune.ingest import IngestSummary, collect
from xtune.lake import Lake, inspect

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    (path / "good.txt").write_bytes(lines(1, 2))
    return path


def run(lake: Lake, *paths: Path | str, **options: object) -> IngestSummary:
    given = {"context": context(), "collectors": COLLECTORS, **options}
    return collect(lake, [str(path) for path in paths], **given)  # type: ignore[arg-type]


def outcome(summary: IngestSummary) -> dict[str, tuple[str, str]]:
    """Name -> state and first reason."""
    return {
        Path(file.path).name: (file.state, file.reasons[0].reason if file.reasons else "")
        for file in summary.files
    }


def test_a_missing_path_stops_before_anything_is_read(lake: Lake, folder: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        run(lake, folder, folder / "missing")
    with pytest.raises(InputError, match="matches no file"):
        run(lake, folder, folder / "*.csv")
    assert not lake.root.exists()


def test_bad_neighbours_cost_a_line_each(lake: Lake, folder: Path) -> None:
    (folder / "empty").touch()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "up").symlink_to(folder)
    os.mkfifo(folder / "fifo")
    (folder / "notes.md").write_text("# notes")
    (folder / "bug").write_bytes(b"#broken")
    (folder / "binary").write_bytes(bytes(range(256)) * 300)
    summary = run(lake, folder)
    assert outcome(summary) == {
        "good.txt": ("read", ""),
        "empty": ("rejected", "is empty"),
        "loop": ("rejected", "cannot be opened: Too many levels of symbolic links"),
        "dangling": ("rejected", "cannot be opened: No such file or directory"),
        "fifo": ("rejected", "is not a regular file"),
        "notes.md": ("unknown", "no collector knows this format"),
        "bug": ("read", "collector broken failed: RuntimeError: a bug over two lines"),
        "binary": ("unknown", "no collector knows this format"),
    }
    rejected = lake.read("rejected", ["file", "offset", "reason"]).to_pylist()
    assert len(rejected) == 7
    assert {Path(row["file"]).name for row in rejected} == set(outcome(summary)) - {"good.txt"}
    assert all(row["reason"] and row["offset"] for row in rejected)
    assert sorted(lake.read("steps")["step"].to_pylist()) == [1, 1, 2]

    again = run(lake, folder)
    assert again.rows == {} and again.rejects == summary.rejects == 7
    expected = outcome(summary)
    expected["good.txt"] = ("unchanged", "")
    expected["bug"] = ("unchanged", expected["bug"][1])
    assert outcome(again) == expected
    assert lake.read("rejected").num_rows == 7


def test_what_was_unreadable_is_read_when_it_can_be(lake: Lake, folder: Path) -> None:
    target = folder / "later.txt"
    (folder / "link.txt").symlink_to(target)
    assert outcome(run(lake, folder))["link.txt"][0] == "rejected"
    target.write_bytes(lines(7))
    run(lake, folder / "link.txt")
    assert lake.read("rejected").num_rows == 0


def test_a_cut_gzip_keeps_what_came_before(lake: Lake, folder: Path) -> None:
    noise = random.Random(0)
    content = HEAD + b"".join(b"%d 1 0.5\n" % noise.getrandbits(40) for _ in range(5000))
    whole = gzip.compress(content)
    (folder / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (result,) = run(lake, folder / "cut.gz").files
    assert result.state == "read"
    assert "damaged gzip" in result.reasons[0].reason
    kept = result.rows["steps"]
    assert 1000 < kept < 5000
    # When the rest arrives, it is the same input, grown.
    (folder / "cut.gz").write_bytes(whole)
    (result,) = run(lake, folder / "cut.gz").files
    assert (result.state, result.rows["steps"]) == ("replaced", 5000)
    assert lake.read("steps").num_rows == 5000
    assert lake.read("rejected").num_rows == 0


def test_a_gzip_of_nothing_and_one_of_noise(lake: Lake, folder: Path) -> None:
    (folder / "nothing.gz").write_bytes(gzip.compress(b""))
    (folder / "noise.gz").write_bytes(b"\x1f\x8b" + b"noise" * 100)
    reason = "has no content: empty or damaged gzip"
    found = outcome(run(lake, folder))
    assert found["nothing.gz"] == found["noise.gz"] == ("rejected", reason)


def test_an_interrupt_keeps_what_was_finished(lake: Lake, folder: Path) -> None:
    class Interrupted(Lines):
        def read(self, source: Source, context: Context) -> Iterator[Item]:
            for item in super().read(source, context):
                yield item
                if source.path.name == "second.txt":
                    raise KeyboardInterrupt

    (folder / "second.txt").write_bytes(lines(3, 4))
    with pytest.raises(KeyboardInterrupt):
        run(lake, folder, collectors={"lines": Interrupted()})
    assert sorted(lake.read("steps")["step"].to_pylist()) == [1, 2]
    assert inspect(lake).unfinished == ()
    run(lake, folder)
    assert sorted(lake.read("steps")["step"].to_pylist()) == [1, 2, 3, 4]


def test_each_file_once_however_it_is_reached(lake: Lake, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link").symlink_to(folder / "good.txt")
    os.link(folder / "good.txt", folder / "hard.txt")
    summary = run(lake, folder, folder / "good.txt", str(folder / "*.txt"))
    assert len(summary.files) == 1


def test_patterns(lake: Lake, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.txt").write_bytes(lines(3))
    (folder / "[odd].txt").write_bytes(lines(4))  # exists by that very name
    summary = run(lake, str(folder / "**" / "d*.txt"), str(folder / "[odd].txt"))
    assert sorted(outcome(summary)) == ["[odd].txt", "deep.txt"]


def test_a_claimed_folder_is_not_walked(lake: Lake, folder: Path) -> None:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "MARK").write_bytes(lines(9))
    summary = run(lake, folder)
    assert [(file.collector, Path(file.path).name) for file in summary.files] == [
        ("lines", "good.txt"),
        ("folder", "tree"),
    ]


def test_the_lake_is_not_collected_into_itself(lake: Lake, folder: Path) -> None:
    run(lake, folder)
    summary = run(lake, lake.root.parent)
    assert [Path(file.path).name for file in summary.files] == ["good.txt"]


def test_standard_input(lake: Lake) -> None:
    (result,) = run(lake, "-", stdin=io.BytesIO(lines(1, 2))).files
    assert (result.path, result.state, dict(result.rows)) == ("-", "read", {"steps": 2})
    (result,) = run(lake, "-", stdin=io.BytesIO(lines(1, 2))).files
    assert result.state == "unchanged"
    (result,) = run(lake, "-", stdin=io.BytesIO()).files
    assert (result.state, result.reasons[0].reason) == ("rejected", "is empty")


def test_equal_answers_in_a_pipe_are_samples_of_two_times(lake: Lake) -> None:
    """``while sleep 10; do ethtool -S eth0 | xtune collect - --time-from now; done``."""
    for n in (1, 2):
        at = Context(now_ns=lambda n=n: n, time_from="now")  # type: ignore[misc]
        (result,) = run(lake, "-", context=at, stdin=io.BytesIO(lines(1, 2))).files
        assert result.state == "read"
    assert lake.read("steps").num_rows == 4


def test_a_pipe_of_the_shell(lake: Lake, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, lines(1, 2, 3))
    os.close(writing)
    (result,) = run(lake, f"/dev/fd/{reading}").files
    os.close(reading)
    assert (result.state, dict(result.rows)) == ("read", {"steps": 3})


def test_debug_lets_a_bug_through(lake: Lake, folder: Path) -> None:
    (folder / "bug").write_bytes(b"#broken")
    with pytest.raises(RuntimeError, match="a bug"):
        run(lake, folder / "bug", debug=True)
    assert lake.read("steps").num_rows == 0


def test_wrong_flags_are_refused(lake: Lake, folder: Path) -> None:
    with pytest.raises(UsageError, match="did you mean lines"):
        run(lake, folder, kind="line")
    with pytest.raises(UsageError, match="no such time zone"):
        run(lake, folder, context=context(tz="Mars/Olympus"))
    with pytest.raises(UsageError, match="mtime, name or now"):
        run(lake, folder, context=context(time_from="ctime"))


def test_strict_is_an_exit_code(lake: Lake, folder: Path) -> None:
    assert run(lake, folder, strict=True).exit_code == 0
    (folder / "x").write_text("?")
    assert run(lake, folder).exit_code == 0
    assert run(lake, folder, strict=True).exit_code == 3
    assert run(lake, folder, strict=True).exit_code == 3  # also when it is known already


def test_many_rejects_are_counted_and_the_first_stored(lake: Lake, folder: Path) -> None:
    (folder / "bad.txt").write_bytes(HEAD + b"x\n" * 5000)
    summary = run(lake, folder / "bad.txt")
    assert (summary.files[0].state, summary.rejects) == ("rejected", 5000)
    rows = lake.read("rejected", ["file", "offset", "reason"]).to_pylist()
    assert len(rows) == 1001
    assert rows[-1]["reason"].startswith("4000 more")
    assert rows[0]["offset"] == "line 2"


def test_the_summary_is_json(lake: Lake, folder: Path) -> None:
    (folder / "x").write_text("?")
    seen: list[str] = []
    summary = run(
        lake, folder, context=context(tz="UTC"), on_file=lambda file: seen.append(file.path)
    )
    document = json.loads(json.dumps(summary.to_json()))
    assert document["schema"] == 1
    assert [file["path"] for file in document["files"]] == seen
    assert document["totals"]["states"] == {
        "read": 1,
        "replaced": 0,
        "unchanged": 0,
        "rejected": 0,
        "unknown": 1,
    }
    assert document["totals"]["rows"] == {"steps": 2}
    assert document["totals"]["notes"] == [{"text": "zone UTC", "count": 1}]


def test_what_a_user_may_not_read(lake: Lake, tmp_path: Path, folder: Path) -> None:
    """Rights do not bind root, so the reading is done by a process without them."""
    (folder / "secret.txt").write_bytes(lines(5))
    (folder / "secret.txt").chmod(0)
    (folder / "closed").mkdir(mode=0)
    script = (
        "import os, sys; from pathlib import Path; from tests.lake.toy import *\n"
        "from xtune.lake import Lake; from xtune.ingest import collect\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from xtune.errors import LakeError\n"
        "try: Lake.open(Path(sys.argv[2]) / 'closed' / 'lake', create=True)\n"
        "except LakeError as error: print(str(error).rpartition(': ')[2])\n"
        "lake = Lake.open(Path(sys.argv[1]), create=True)\n"
        "result = collect(lake, sys.argv[2:], context=context(), collectors=COLLECTORS)\n"
        "for file in result.files:\n"
        "    print(Path(file.path).name, file.state, *(r.reason for r in file.reasons))\n"
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent == Path(tempfile.gettempdir()) or parent.stat().st_uid != os.getuid():
            break
        parent.chmod(parent.stat().st_mode | 0o055)
    folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", script, str(shared / "lake"), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    (folder / "closed").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Permission denied (name another with --lake)",
        "closed rejected cannot be listed: Permission denied",
        "good.txt read",
        "secret.txt rejected cannot be read: Permission denied",
    ]


def test_a_lake_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="cannot be read"):
        Lake.open(tmp_path / "file" / "lake", create=True)

"""Followed files give the rows that collecting them at the end would give, each once."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake.toy import COLLECTORS, lines
from xtune.collectors import all_collectors
from xtune.collectors._base import Context
from xtune.errors import InputError, LakeError, UsageError
from xtune.ingest import Follower, collect
from xtune.lake import ConflictError, Lake, Transaction, inspect
from xtune.tables import TABLES

KNOWN = {**COLLECTORS, "decisions": all_collectors()["decisions"]}


def context() -> Context:
    return Context(now_ns=time.time_ns)


def decision(number: int, pad: int = 0) -> bytes:
    record = {"xtune_decision": 1, "ts_ns": 10**18 + number, "step": number, "kind": "level"}
    return (
        json.dumps({**record, "before": "0", "after": "1", "reason": "x" * pad}).encode() + b"\n"
    )


class Steps:
    """A clock that moves far enough between two polls for everything to be due."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


def follower_of(lake: Lake, *paths: Path | str, **given: Any) -> Follower:
    given = {"clock": Steps(), "collectors": KNOWN, **given}
    return Follower(lake, [str(path) for path in paths], context=context(), **given)


def content(lake: Lake) -> dict[str, Counter[str]]:
    """All rows and rejects, without what differs from one collection to the next."""
    found = {}
    for name in [name for name in TABLES if "/" not in name] + ["rejected"]:
        table = lake.read(name)
        drop = {"source"} | ({"ts"} if name == "rejected" else set())
        table = table.select([c for c in table.column_names if c not in drop])
        for at, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
        if table.num_rows:
            found[name] = Counter(repr(row) for row in table.to_pylist())
    return found


def collected(tmp_path: Path, *paths: Path) -> dict[str, Counter[str]]:
    lake = Lake.open(tmp_path / f"once-{random.random()}", create=True)
    collect(lake, [str(p) for p in paths], context=context(), collectors=KNOWN)
    return content(lake)


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", Lake.open(tmp_path / "lake", create=True)
    path.write_bytes(decision(0))
    follower = follower_of(lake, path)
    follower.poll()
    assert lake.read("decisions")["step"].to_pylist() == [0]
    with path.open("ab") as file:
        file.write(decision(1) + b"nonsense\n" + decision(2)[:30])
        file.flush()
        follower.poll()
        assert lake.read("decisions")["step"].to_pylist() == [0, 1]  # a cut last line waits
        file.write(decision(2)[30:] + b"more\n")
        file.flush()
        follower.poll()
    follower.finish()
    assert content(lake) == collected(tmp_path, path)
    assert [o.split()[1] for o in lake.read("rejected")["offset"].to_pylist()] == ["3", "5"]
    assert len(lake.inputs()) == 1
    again = collect(lake, [str(path)], context=context(), collectors=KNOWN)
    assert [file.state for file in again.files] == ["unchanged"]


def test_the_last_line_without_an_end_is_read_at_the_end(tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", Lake.open(tmp_path / "lake", create=True)
    path.write_bytes(decision(0) + decision(1)[:-1])
    follower = follower_of(lake, path)
    follower.poll()
    assert lake.read("decisions").num_rows == 1
    follower.finish()
    assert content(lake) == collected(tmp_path, path)
    with path.open("ab") as file:  # the writer goes on with that line
        file.write(b"\n" + decision(2))
    follower = follower_of(lake, path)
    follower.poll()
    follower.finish()
    assert content(lake) == collected(tmp_path, path)


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path, lake = tmp_path / "d.jsonl", Lake.open(tmp_path / "lake", create=True)
    path.write_bytes(b"")
    for number in range(6):
        with path.open("ab") as file:
            file.write(decision(number, pad=1500) + b"bad\n")
        follower = follower_of(Lake.open(lake.root, create=True), path)
        follower.poll()  # and then it is gone, without a word
    assert content(lake) == collected(tmp_path, path)
    assert len(lake.inputs()) == 1
    path.write_bytes(path.read_bytes() + decision(9))
    (result,) = collect(lake, [str(path)], context=context(), collectors=KNOWN).files
    assert result.state == "replaced" and content(lake) == collected(tmp_path, path)


@pytest.mark.parametrize("pad", [0, 5000])
def test_rotation_by_renaming(pad: int, tmp_path: Path) -> None:
    folder, lake = tmp_path / "logs", Lake.open(tmp_path / "lake", create=True)
    folder.mkdir()
    log = folder / "d.jsonl"
    follower = follower_of(lake, folder)
    number = 0
    with log.open("ab", buffering=0) as writer:
        for _ in range(2):
            writer.write(decision(number, pad))
            number += 1
        follower.poll()
        log.rename(folder / "d.jsonl.1")
        writer.write(decision(number, pad))  # the writer has not noticed yet
        number += 1
        log.write_bytes(decision(100, pad))
        follower.poll()
    with log.open("ab") as file:
        file.write(decision(101, pad))
    follower.poll()
    follower.finish()
    assert sorted(lake.read("decisions")["step"].to_pylist()) == [0, 1, 2, 100, 101]
    again = follower_of(lake, folder)
    again.poll()
    again.finish()
    assert content(lake) == collected(tmp_path, folder)
    collect(lake, [str(folder)], context=context(), collectors=KNOWN)
    assert content(lake) == collected(tmp_path, folder)


def test_rotated_out_of_sight_loses_no_line(tmp_path: Path) -> None:
    log, lake = tmp_path / "d.jsonl", Lake.open(tmp_path / "lake", create=True)
    log.write_bytes(decision(0))
    follower = follower_of(lake, log)
    follower.poll()
    with log.open("ab") as file:
        file.write(decision(1))
    log.rename(tmp_path / "d.jsonl.1")
    follower.poll()
    log.write_bytes(decision(2))
    follower.poll()
    log.unlink()
    follower.poll()
    follower.finish()
    assert lake.read("decisions")["step"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("longer", [False, True])
def test_copied_and_truncated(longer: bool, tmp_path: Path) -> None:
    log, lake = tmp_path / "d.jsonl", Lake.open(tmp_path / "lake", create=True)
    log.write_bytes(decision(0) + decision(1))
    follower = follower_of(lake, log)
    follower.poll()
    os.truncate(log, 0)
    with log.open("ab") as file:
        for number in range(2, 9 if longer else 3):
            file.write(decision(number))
    follower.poll()
    follower.finish()
    assert lake.read("decisions")["step"].to_pylist() == list(range(9 if longer else 3))


def test_files_read_whole_replace_their_rows(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", Lake.open(tmp_path / "lake", create=True)
    folder.mkdir()
    follower = follower_of(lake, str(folder / "*.txt"))
    follower.poll()  # a pattern may match nothing yet
    for count in (2, 5, 9):
        (folder / "a.txt").write_bytes(lines(*range(count)))
        (folder / f"{count}.txt").write_bytes(lines(count + 100))
        for _ in range(4):
            follower.poll()
        assert content(lake) == collected(tmp_path, *folder.iterdir())
    (folder / "a.txt").write_bytes(lines(*range(12)))
    follower.finish()  # what changed since is read at the end
    assert content(lake) == collected(tmp_path, *folder.iterdir())
    assert inspect(lake).damaged == ()


def test_a_half_written_gzip_waits(tmp_path: Path) -> None:
    whole = gzip.compress(lines(*range(3000)))
    path, lake = tmp_path / "a.txt.gz", Lake.open(tmp_path / "lake", create=True)
    follower = follower_of(lake, path.parent / "*.gz", clock=time.monotonic, flush_s=0.0)
    for end in range(100, len(whole), 500):
        path.write_bytes(whole[:end])
        follower.poll()
    assert lake.inputs() == {}
    path.write_bytes(whole)
    for _ in range(4):
        follower.poll()
    assert lake.read("steps").num_rows == 3000
    follower.finish()
    assert content(lake) == collected(tmp_path, path)


def test_a_text_that_never_rests_is_read_all_the_same(tmp_path: Path) -> None:
    path, lake = tmp_path / "a.txt", Lake.open(tmp_path / "lake", create=True)
    follower = follower_of(lake, path.parent / "*.txt")
    for count in range(1, 6):
        path.write_bytes(lines(*range(count)))
        follower.poll()
    assert lake.read("steps").num_rows > 1


def test_reading_whole_takes_a_tenth_of_the_time(tmp_path: Path) -> None:
    class Slow(Steps):
        def __call__(self) -> float:
            self.now += 1.0
            return self.now

    path, lake = tmp_path / "a.txt", Lake.open(tmp_path / "lake", create=True)
    follower = follower_of(lake, path.parent / "*.txt", clock=Slow(), flush_s=0.0)
    reads = 0
    for count in range(1, 60):
        before = lake.ledger.load().last
        path.write_bytes(lines(*range(count)))
        follower.poll()
        reads += lake.ledger.load().last != before
    assert 1 < reads < 20


def test_two_followers_and_a_collect_of_one_file(tmp_path: Path) -> None:
    path, root = tmp_path / "d.jsonl", tmp_path / "lake"
    path.write_bytes(decision(0))
    followers = [follower_of(Lake.open(root, create=True), path) for _ in range(2)]
    for number in range(1, 12):
        followers[number % 2].poll()
        if number == 6:
            collect(Lake.open(root, create=True), [str(path)], context=context(), collectors=KNOWN)
        with path.open("ab") as file:
            file.write(decision(number))
        followers[0].poll()
        followers[1].poll()
        followers[0].poll()
    for follower in followers:
        follower.finish()
    assert content(Lake.open(root, create=True)) == collected(tmp_path, path)


def test_a_copy_is_not_read_twice(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(decision(0, 5000))
    second.write_bytes(decision(0, 5000))
    follower = follower_of(lake, first, second)
    follower.poll()
    follower.finish()
    assert lake.read("decisions").num_rows == 1


def test_what_is_wrong_at_the_start_is_one_line(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with pytest.raises(InputError, match="no such file"):
        follower_of(lake, tmp_path / "gone")
    with pytest.raises(UsageError, match="standard input"):
        follower_of(lake, "-")


def test_a_fifo_and_a_loop_of_links_hold_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(".")
    (folder / "a.jsonl").write_bytes(decision(0))
    lake = Lake.open(tmp_path / "lake", create=True)
    follower = follower_of(lake, folder)
    follower.poll()
    follower.finish()
    states = {Path(file.path).name: file.state for file in follower.summary().files}
    assert states == {"a.jsonl": "read", "fifo": "rejected"}


def test_an_end_that_others_never_let_come_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(decision(0))
    follower = follower_of(Lake.open(tmp_path / "lake", create=True), path)
    follower.poll()

    def conflict(*_: Any, **__: Any) -> None:
        raise ConflictError("another was first")

    with path.open("ab") as file:
        file.write(decision(1))
    monkeypatch.setattr(Transaction, "commit", conflict)
    with pytest.raises(LakeError, match="all the time"):
        follower.finish()


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_events_gives_the_same_lake(seed: int, tmp_path: Path) -> None:
    """Growth in pieces of any size, restarts, new files, a plain collect between."""
    random_ = random.Random(seed)
    folder, root = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    texts = {
        "a.jsonl": b"".join(decision(n, random_.choice([0, 900])) for n in range(30)),
        "b.jsonl": b"".join(decision(100 + n) + b"bad\n" * (n % 3 == 0) for n in range(20)),
        "c.txt": lines(*range(40)),
        "d.jsonl": b"".join(decision(200 + n) for n in range(5)) + decision(300)[:20],
    }
    at = dict.fromkeys(texts, 0)
    follower = follower_of(Lake.open(root, create=True), folder)
    while any(at[name] < len(text) for name, text in texts.items()):
        name = random_.choice([n for n in texts if at[n] < len(texts[n])])
        size = random_.choice([1, 50, 400, 3000])
        with (folder / name).open("ab") as file:
            file.write(texts[name][at[name] : at[name] + size])
        at[name] += size
        event = random_.random()
        if event < 0.4:
            follower.poll()
        elif event < 0.5:
            follower = follower_of(Lake.open(root, create=True), folder)
        elif event < 0.55:
            collect(
                Lake.open(root, create=True), [str(folder)], context=context(), collectors=KNOWN
            )
    follower.poll()
    follower.finish()
    assert content(Lake.open(root, create=True)) == collected(tmp_path, folder)
    assert inspect(Lake.open(root, create=True)).damaged == ()


NORMS = b"".join(
    b'{"xtune_layer_gradients":1,"ts_ns":%d,"step":%d,"rank":2,"layer":["a","b"],"depth":[0,1],'
    b'"elements":[4,4],"norm":[2.5,"nan"],"density":[0.25,1]}\n' % (n + 1, n)
    for n in range(6)
)
PROBES = b"".join(
    b'{"xtune_probe":1,"src":"h0","dst":"h1","path":3,"link":"l0","name":"h0>l0","ts_ns":%d,'
    b'"rtt_ns":%s,"occupancy":0.5,"error_rate":null,"signal_margin":null,"lost":%s}\n'
    % (n + 1, b"null" if n % 2 else b"70000", b"true" if n % 2 else b"false")
    for n in range(6)
)
STANDING_ALONE = {
    "decisions": b"".join(decision(n) for n in range(6)),
    "layer_gradients": NORMS,
    "probes": PROBES,
}


@pytest.mark.parametrize(
    "name", sorted(name for name, c in all_collectors().items() if c.tail_lines)
)
def test_collectors_that_say_so_read_each_line_alone(name: str, tmp_path: Path) -> None:
    """A collector that is followed line by line needs an example here."""
    text = STANDING_ALONE[name]
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    pieces.mkdir()
    (whole / "file").write_bytes(text)
    for number, line in enumerate(text.splitlines(keepends=True)):
        (pieces / f"{number}").write_bytes(line)
    found = []
    for folder in (whole, pieces):
        lake = Lake.open(folder / "lake", create=True)
        paths = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
        collect(lake, paths, context=context(), kind=name)
        found.append(content(lake))
    assert found[0] == found[1] and found[0]


def test_norms_are_followed_as_a_job_logs_them(tmp_path: Path) -> None:
    path, lake = tmp_path / "norms.jsonl", Lake.open(tmp_path / "lake", create=True)
    follower = follower_of(lake, path.parent / "*.jsonl", collectors=all_collectors())
    for line in NORMS.splitlines(keepends=True):
        with path.open("ab") as file:
            file.write(line)
        follower.poll()
    follower.finish()
    rows = lake.read("layer_gradients").sort_by([("step", "ascending"), ("layer", "ascending")])
    assert rows["step"].to_pylist() == [n for n in range(6) for _ in range(2)]
    assert len(lake.inputs()) == 1


def test_more_files_than_may_be_open_are_followed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xtune.ingest._follow.allow_many", lambda: 6)
    folder, lake = tmp_path / "in", Lake.open(tmp_path / "lake", create=True)
    folder.mkdir()
    follower = follower_of(lake, folder)
    for round_ in range(3):
        for rank in range(7):
            with (folder / f"{rank}.jsonl").open("ab") as file:
                file.write(decision(100 * rank + round_))
        for _ in range(4):
            follower.poll()
        assert lake.read("decisions").num_rows == 7 * (round_ + 1)
    follower.finish()
    assert content(lake) == collected(tmp_path, folder)

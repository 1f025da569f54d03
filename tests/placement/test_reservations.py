"""Reservations on disk: concurrent writers, killed ones, expiry, damage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xtune.errors import LakeError, XtuneError
from xtune.placement import Reservation, Reservations


def made(job: str, expires_ns: int = 100, ranks: int = 8) -> Reservation:
    return Reservation(
        job=job, hosts={"h": ranks}, links={"l/1": 0.5}, made_ns=0, expires_ns=expires_ns
    )


def add(store: Reservations, row: Reservation, now_ns: int = 1) -> None:
    with store.locked():
        store.add(row, now_ns)


def test_what_was_added_is_read_by_another_reader_until_it_expires(tmp_path: Path) -> None:
    add(Reservations(tmp_path), made("b"))
    add(Reservations(tmp_path), made("a", expires_ns=50))
    other = Reservations(tmp_path)
    assert [row.job for row in other.read(49)] == ["a", "b"]
    assert other.read(50) == [made("b")]
    assert other.read(100) == []


def test_a_release_leaves_what_was_there_before(tmp_path: Path) -> None:
    store = Reservations(tmp_path)
    add(store, made("a"))
    before = (tmp_path / "placement" / "reservations.json").read_bytes()
    add(store, made("b"))
    with store.locked():
        assert store.remove("b", 1) == made("b")
    assert (tmp_path / "placement" / "reservations.json").read_bytes() == before


def test_a_job_has_one_and_an_expired_one_makes_room(tmp_path: Path) -> None:
    store = Reservations(tmp_path)
    add(store, made("a", expires_ns=50))
    with pytest.raises(XtuneError, match="a has a reservation already"):
        add(store, made("a"))
    add(store, made("a", expires_ns=200), now_ns=50)
    assert store.read(150) == [made("a", expires_ns=200)]
    with pytest.raises(XtuneError, match=r"no reservation of b \(there are: a\)"), store.locked():
        store.remove("b", 60)


def test_nothing_is_written_where_nothing_was_reserved(tmp_path: Path) -> None:
    assert Reservations(tmp_path).read(0) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 2, "reservations": []}', '{"schema": 1}',
     '{"schema": 1, "reservations": [{"job": "a"}]}',
     '{"schema": 1, "reservations": [{"job": "a", "hosts": {"h": -1}, "links": {},'
     ' "made_ns": 0, "expires_ns": 9}]}',
     '{"schema": 1, "reservations": [{"job": "a", "hosts": {}, "links": {"l": NaN},'
     ' "made_ns": 0, "expires_ns": 9}]}'],
)  # fmt: skip
def test_a_damaged_file_is_one_line_and_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / "placement" / "reservations.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(LakeError, match="is damaged or of another version"):
        Reservations(tmp_path).read(0)
    with pytest.raises(LakeError):
        add(Reservations(tmp_path), made("a"))
    assert path.read_text() == text


ADDER = """
import sys
from pathlib import Path
from xtune.placement import Reservation, Reservations
store = Reservations(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(25):
    with store.locked():
        job = f"{sys.argv[2]}-{number}"
        store.add(Reservation(job=job, hosts={}, links={}, made_ns=0, expires_ns=9), 1)
"""


def started(script: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_two_writers_at_once_lose_none(tmp_path: Path) -> None:
    writers = [started(ADDER, str(tmp_path), str(i)) for i in range(2)]
    for writer in [ready(writer) for writer in writers]:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    jobs = {row.job for row in Reservations(tmp_path).read(1)}
    assert jobs == {f"{i}-{number}" for i in range(2) for number in range(25)}


HOLDER = """
import sys, time
from pathlib import Path
from xtune.placement import Reservations
with Reservations(Path(sys.argv[1])).locked():
    (Path(sys.argv[1]) / "placement" / ".reservations.json.0a.tmp").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_under_the_lock_leaves_it_free_and_the_file_whole(tmp_path: Path) -> None:
    store = Reservations(tmp_path)
    add(store, made("a"))
    holder = ready(started(HOLDER, str(tmp_path)))
    assert store.read(1) == [made("a")]  # a reader does not wait
    holder.kill()
    holder.communicate(timeout=60)
    add(store, made("b"))
    assert store.read(1) == [made("a"), made("b")]
    names = {path.name for path in (tmp_path / "placement").iterdir()}
    assert names == {"reservations.json", "reservations.lock"}

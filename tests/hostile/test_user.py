"""Hostile inputs as a user meets them: through the command line, into a real lake."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.seeds import SEEDS

ROOT = Path(__file__).parents[2]
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
STEPS = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n'


def xtune(
    *words: str | Path, cwd: Path, check: bool = True, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command; it ends in time, and nothing it prints steers a terminal."""
    done = subprocess.run(
        [
            *before,
            sys.executable,
            "-c",
            "import sys; from xtune.cli import main; sys.exit(main())",
            *map(str, words),
        ],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(cwd)},
    )
    for text in (done.stdout, done.stderr):
        assert not [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160], text
    assert "Traceback" not in done.stderr, done.stderr
    assert not check or done.returncode == 0, done.stderr
    return done


def collected(cwd: Path, *words: str | Path, **options: Any) -> dict[str, dict[str, Any]]:
    """``xtune collect --json``: results by file name."""
    done = xtune("collect", *words, "--lake", cwd / "lake", "--json", cwd=cwd, **options)
    found = json.loads(done.stdout)["files"]
    assert len({file["path"] for file in found}) == len(found), "a file was said twice"
    return {Path(file["path"]).name: file for file in found}


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


class Touch:
    """A pickle of it, loaded, makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_folder_of_traps(tmp_path: Path) -> None:
    here = tmp_path / "in"
    here.mkdir()
    marker = tmp_path / "executed"
    (here / "good.jsonl").write_bytes(STEPS)
    (here / "loop").symlink_to("loop")
    (here / "down").mkdir()
    (here / "down" / "up").symlink_to("..")
    (here / "gone").symlink_to("nowhere")
    (here / f"name\n{ESCAPE}.txt").write_text(f"hello {ESCAPE}\n")
    (here / f"rows{ESCAPE}.jsonl").write_bytes(STEPS + b'{"step": "\x1b[2J"}\n' + STEPS)
    os.mkfifo(here / "fifo")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.path.relpath(here / "socket"))
    for protocol in range(6):
        (here / f"class{protocol}.pkl").write_bytes(pickle.dumps(Touch(marker), protocol))
    dump = {"pg_config": {}, "pg_status": {}, "nccl_version": "2", "entries": [Touch(marker)]}
    (here / "dump.pkl").write_bytes(pickle.dumps(dump))
    (here / "deep.json").write_bytes(b'{"traceEvents": ' + b"[" * 100_000)
    (here / "deep.pkl").write_bytes(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    (here / "twice.gz").write_bytes(gzip.compress(gzip.compress(STEPS)))
    (here / "nul").write_bytes(bytes(100_000))
    (here / "latin.log").write_bytes(b"\xe9\xff iter 1: loss 3.5, time 1.0ms\n" * 3)
    if os.geteuid() == 0:
        os.mknod(here / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: no end
    try:
        found = collected(tmp_path, here)
    finally:
        sock.close()
    assert not marker.exists()
    assert found["good.jsonl"]["rows"] == {"steps": 2}
    assert {found[name]["reasons"][0]["reason"] for name in ("fifo", "socket")} == {
        "is not a regular file"
    }
    assert "within gzip" in found["twice.gz"]["reasons"][0]["reason"]
    assert found["dump.pkl"]["state"] == "rejected"
    for name in ("deep.json", "deep.pkl", "nul", "gone", "loop"):
        assert found[name]["reasons"], name
    assert found[f"rows{ESCAPE}.jsonl"]["rows"]["steps"] >= 2
    xtune("collect", here, "--lake", tmp_path / "other", cwd=tmp_path)
    odd = [path for path in here.iterdir() if ESCAPE in path.name]
    shown = xtune("collect", *odd, "--lake", tmp_path / "other", cwd=tmp_path)
    assert "\\x1b" in shown.stderr  # said, not obeyed
    assert not marker.exists()


def test_what_a_user_may_not_read_costs_a_line(tmp_path: Path) -> None:
    (tmp_path / "in" / "closed").mkdir(parents=True)
    (tmp_path / "in" / "good.jsonl").write_bytes(STEPS)
    (tmp_path / "in" / "secret.jsonl").write_bytes(STEPS)
    (tmp_path / "in" / "secret.jsonl").chmod(0)
    (tmp_path / "in" / "closed").chmod(0)
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:  # whom nothing is forbidden, unless it gives that up
        before = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
        if shutil.which("setpriv") is None:
            pytest.skip("runs as root, and setpriv is not here to give up its rights")
    found = collected(tmp_path, tmp_path / "in", before=before)
    assert found["good.jsonl"]["rows"] == {"steps": 2}
    assert "Permission denied" in found["secret.jsonl"]["reasons"][0]["reason"]
    assert "cannot be listed" in found["closed"]["reasons"][0]["reason"]


NAMES = (
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "a/../../b",
    "con\0trol",
    "date=2020-01-01/x",
    "'; DROP TABLE steps; --",
    '"><script>alert(1)</script>',
    "${HOME}`id`$(id)%s%n",
    ESCAPE,
    "x" * 300,
)


def test_names_inside_files_are_text_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [
        {"xtune_decision": 1, "ts_ns": 1_700_000_000_000_000_000 + n, "job": name, "kind": name}
        for n, name in enumerate(NAMES)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "in" / "decisions.jsonl").write_text(text)
    counters = [
        f'node_infiniband_link_downed_total{{device={json.dumps(name)},port="1"}} 1\n'
        for name in NAMES
        if "\0" not in name and ESCAPE not in name
    ]
    (tmp_path / "in" / "exposition.prom").write_text("".join(counters))
    before = files_of(tmp_path)
    found = collected(tmp_path, tmp_path / "in", "--job", NAMES[0], "--host", NAMES[1])
    assert found["decisions.jsonl"]["rows"] == {"decisions": len(NAMES)}
    assert found["exposition.prom"]["rows"]["link_counters"] == len(counters)
    lake = tmp_path / "lake"
    made = files_of(tmp_path) - before
    assert made and all(path.is_relative_to(lake) for path in made)
    tables = {path.relative_to(lake).parts[0] for path in made}
    assert tables <= {"decisions", "link_counters", "ports", "ledger", "rejected", "notes"}
    xtune("rebuild", "--lake", lake, cwd=tmp_path)
    sql = "SELECT job FROM decisions ORDER BY ts"
    asked = json.loads(xtune("query", sql, "--lake", lake, "--json", cwd=tmp_path).stdout)
    assert [row["job"] for row in asked["rows"]] == [name[:256] for name in NAMES]
    xtune("query", "SELECT * FROM link_counters", "--lake", lake, cwd=tmp_path)
    xtune("report", "--lake", lake, "--out", tmp_path / "r", cwd=tmp_path, check=False)
    for page in tmp_path.rglob("*.html"):
        assert "<script>alert(1)" not in page.read_text()
    outside = files_of(tmp_path) - before
    assert all(p.is_relative_to(lake) or p.is_relative_to(tmp_path / "r") or p.name.startswith("r")
               for p in outside)  # fmt: skip


def test_a_lake_of_a_hostile_name(tmp_path: Path) -> None:
    name = "-it's %s;$(id) *[a]?new\nline\x1b[2Jé\u202e"
    (tmp_path / "a.jsonl").write_bytes(STEPS)
    lake = tmp_path / name
    xtune("collect", "a.jsonl", "--lake", lake, cwd=tmp_path)
    xtune("rebuild", "--lake", lake, cwd=tmp_path)
    sql = "SELECT count(*) AS n FROM steps"
    asked = xtune("query", sql, "--lake", lake, "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["rows"] == [{"n": 2}]
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", name}


@pytest.mark.parametrize("lake", ["a.jsonl", "a.jsonl/x", "/dev/null", "/proc/x", "/dev/null/x"])
def test_a_lake_that_cannot_be_is_one_line(lake: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(STEPS)
    done = xtune("collect", "a.jsonl", "--lake", lake, cwd=tmp_path, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) <= 2, done.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == STEPS


def _member(name: str, data: bytes = STEPS, **fields: Any) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, io.BytesIO(data)


def test_a_tar_archive_of_traps(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    absolute = tmp_path / "absolute.jsonl"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(*_member("good.jsonl"))
        archive.addfile(*_member(str(absolute)))
        archive.addfile(*_member("../up.jsonl"))
        archive.addfile(*_member("link", b"", type=tarfile.SYMTYPE, linkname=str(tmp_path)))
        archive.addfile(*_member("link/through.jsonl"))
        archive.addfile(*_member("hard", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd"))
        archive.addfile(*_member("null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5))
        archive.addfile(*_member("fifo", b"", type=tarfile.FIFOTYPE))
        archive.addfile(*_member(f"name{ESCAPE}\n", b"x"))
        archive.addfile(*_member("suid.jsonl", STEPS + b'{"step": 3, "loss": 1}\n', mode=0o6777))
    before = files_of(tmp_path)
    found = collected(tmp_path, path)
    assert found["good.jsonl"]["rows"] == {"steps": 2}
    made = files_of(tmp_path) - before
    assert made and all(p.is_relative_to(tmp_path / "lake") for p in made)
    said = json.dumps(list(found.values()))
    for trap in ("absolute", "up.jsonl", "null", "fifo", "hard"):
        assert trap in said, trap


def test_a_tar_archive_that_claims_too_much(tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge.jsonl")
    info.size = 1 << 42
    path = tmp_path / "a.tar"
    path.write_bytes(_first(tmp_path) + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    found = collected(tmp_path, path)
    assert "unpacks to more than" in json.dumps(list(found.values()))
    assert found["good.jsonl"]["rows"] == {"steps": 2}


def _first(folder: Path) -> bytes:
    """A member as it stands in an archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(*_member("good.jsonl"))
    return out.getvalue()[:1024]


def test_a_gzip_bomb_is_one_reject_that_says_what_to_do(tmp_path: Path) -> None:
    begun = SEEDS["decisions"].inputs[0]
    with gzip.open(tmp_path / "bomb.gz", "wb", 9) as file:
        file.write(begun)
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert (tmp_path / "bomb.gz").stat().st_size < 1 << 20
    found = collected(tmp_path, tmp_path / "bomb.gz")["bomb.gz"]
    assert found["rows"] == {"decisions": begun.count(b"\n")}
    assert "gunzip" in found["reasons"][-1]["reason"]

"""Archives of telemetry: each member is an input, and nothing lands outside."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import port_tree
from xtune.collectors import Context
from xtune.ingest import IngestSummary, _archive, collect
from xtune.lake import Lake

LOSS = b"step,loss\n" + b"".join(b"%d,%.2f\n" % (n, 9 - n / 10) for n in range(5))


def run(lake: Path, path: Path | str, stdin: bytes = b"") -> IngestSummary:
    context = Context(now_ns=time.time_ns)
    opened = Lake.open(lake, create=True)
    return collect(opened, [str(path)], context=context, stdin=io.BytesIO(stdin))


def write(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_each_member_is_an_input(tmp_path: Path, mode: str) -> None:
    inner = write(tmp_path / "inner.tar", ("deep/c.txt", LOSS.replace(b"9.00", b"9.01")))
    path = write(
        tmp_path / "logs.tar",
        ("a/one.txt", LOSS),
        ("a/two.bin", b"\0nothing"),
        ("inner.tar", inner.read_bytes()),
        mode=mode,
    )
    summary = run(tmp_path / "lake", path)
    states = {result.path.removeprefix(f"{path}/"): result.state for result in summary.files}
    assert states == {"a/one.txt": "read", "a/two.bin": "unknown", "inner.tar/deep/c.txt": "read"}
    assert summary.rows == {"steps": 10}
    again = run(tmp_path / "lake", path)
    assert {result.state for result in again.files} == {"unchanged", "unknown"}


def test_a_member_is_the_file_it_was(tmp_path: Path) -> None:
    write(tmp_path / "logs.tgz", ("one.txt", LOSS), mode="w:gz")
    (tmp_path / "one.txt").write_bytes(LOSS)
    run(tmp_path / "lake", tmp_path / "logs.tgz")
    (result,) = run(tmp_path / "lake", tmp_path / "one.txt").files
    assert result.state == "unchanged"


def test_nothing_lands_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(LOSS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    fifo = tarfile.TarInfo("pipe")
    fifo.type = tarfile.FIFOTYPE
    path = write(
        tmp_path / "evil.tar",
        ("../up.txt", LOSS),
        (f"{outside}/absolute.txt", LOSS),
        link("way", str(outside)),
        ("way/through.txt", LOSS),
        link("way/link", "/etc/passwd"),
        link("step", "way/../.."),
        link("loop", "loop"),
        fifo,
        ("good.txt", LOSS),
    )
    summary = run(tmp_path / "lake", path)
    assert [p.name for p in outside.iterdir()] == ["secret.txt"]
    assert sorted(os.listdir(tmp_path)) == ["evil.tar", "lake", "outside", "scratch"]
    read = {result.path.removeprefix(f"{path}/") for result in summary.files if result.rows}
    assert read == {"good.txt"} or read == {"good.txt", "way/through.txt"}
    refused = " ".join(result.path for result in summary.files if result.state == "rejected")
    for name in ("../up.txt", "absolute.txt", "pipe"):
        assert name in refused
    assert not any(scratch.iterdir())


def test_a_cut_archive_keeps_the_members_before(tmp_path: Path) -> None:
    noise = os.urandom(200_000)
    path = write(tmp_path / "logs.tgz", ("a.txt", LOSS), ("b.bin", noise), mode="w:gz")
    path.write_bytes(path.read_bytes()[:100_000])
    summary = run(tmp_path / "lake", path)
    assert summary.rows == {"steps": 5}
    assert any("damaged archive" in result.reasons[0].reason for result in summary.files[:1])


def test_each_refused_member_is_told_once(tmp_path: Path) -> None:
    """Also of an archive within one, which is unpacked elsewhere each time."""
    fifo, device = tarfile.TarInfo("pipe"), tarfile.TarInfo("device")
    fifo.type, device.type = tarfile.FIFOTYPE, tarfile.CHRTYPE
    inner = write(tmp_path / "inner.tar", ("../a.txt", LOSS), ("/b.txt", LOSS), fifo, device)
    path = write(tmp_path / "logs.tar", ("inner.tar", inner.read_bytes()))
    for _ in range(2):
        summary = run(tmp_path / "lake", path)
        members = ("../a.txt", "/b.txt", "pipe", "device")
        names = [f"{path}/inner.tar, member {member}" for member in members]
        assert [result.path for result in summary.files] == names
        rejected = Lake.open(tmp_path / "lake").read("rejected")
        assert sorted(rejected["file"].to_pylist()) == sorted(names)


def test_archives_too_deep_are_refused_not_read_as_text(tmp_path: Path) -> None:
    content, name = LOSS, "loss.txt"
    for depth in range(4):
        path = write(tmp_path / f"{depth}.tar", (name, content))
        content, name = path.read_bytes(), path.name
    (result,) = run(tmp_path / "lake", path).files
    assert (result.path, result.state) == (f"{path}/2.tar/1.tar/0.tar", "rejected")
    assert result.reasons[0].reason == "an archive within 3 archives"
    assert run(tmp_path / "other", tmp_path / "2.tar").rows == {"steps": 5}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_in_a_pipe(tmp_path: Path, mode: str) -> None:
    """``tar -c logs | xtune collect -``."""
    path = write(tmp_path / "a.tar", ("a.txt", LOSS), ("b.bin", b"\0nothing"), mode=mode)
    first = run(tmp_path / "lake", "-", path.read_bytes())
    assert [result.path for result in first.files] == ["-/a.txt", "-/b.bin"]
    assert first.rows == {"steps": 5}
    second = run(tmp_path / "lake", "-", path.read_bytes())
    assert [result.state for result in second.files] == ["unchanged", "unknown"]


def test_a_zip_archive_of_plain_text_is_no_log(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.txt", b"".join(b"{'loss': %d, 'epoch': 0.1}\n" % n for n in range(9)))
    (result,) = run(tmp_path / "lake", tmp_path / "logs.zip").files
    assert (result.state, result.reasons[0].reason) == ("unknown", "is a zip archive")


def test_a_member_that_no_file_can_be_costs_itself(tmp_path: Path) -> None:
    late, odd = tarfile.TarInfo("late"), tarfile.TarInfo("odd")
    late.mtime, odd.mtime = 2**62, 0
    odd.pax_headers = {"mtime": "nan"}
    nul = tarfile.TarInfo("nul")
    nul.pax_headers = {"path": "a\0b"}
    way, lead = link("way", "good.txt"), link("lead", "good.txt")
    way.pax_headers, lead.pax_headers = {"path": "c\0d"}, {"linkpath": "a\0b"}
    members = (("n" * 300, LOSS), ("d/" + "m" * 300 + "/a", LOSS), late, odd, nul, way, lead)
    path = write(tmp_path / "logs.tar", *members, ("good.txt", LOSS))
    for _ in range(2):
        summary = run(tmp_path / "lake", path)
        refused = [result for result in summary.files if ", member " in result.path]
        assert len(refused) == 5
        assert {result.reasons[0].reason for result in refused} == {
            "cannot be unpacked: File name too long",
            "its name cannot be one of a file",
            "a link to good.txt: not followed",
            "a link to a\0b: not followed",
        }
        (good,) = (result for result in summary.files if result.path == f"{path}/good.txt")
        assert good.state in ("read", "unchanged")
    assert Lake.open(tmp_path / "lake").read("rejected").num_rows == 5 + 2  # two are empty


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archive, "FREE_BYTES", 1000)
    monkeypatch.setattr(_archive, "RATIO", 10)
    path = write(tmp_path / "b.tgz", ("a.txt", LOSS), ("z.bin", bytes(10**6)), mode="w:gz")
    summary = run(tmp_path / "lake", path)
    assert summary.rows == {"steps": 5}
    assert "unpacks to more than" in summary.files[0].reasons[0].reason


def test_a_sysfs_tree_in_an_archive(tmp_path: Path) -> None:
    """``tar -cz /sys/class/infiniband``: one input, as the folder is."""
    tree = tmp_path / "tree"
    port_tree(tree / "class" / "infiniband", counters={"port_xmit_data": 2**40, "symbol_error": 0})
    subprocess.run(["tar", "-czf", tmp_path / "sys.tgz", "-C", tree, "."], check=True)
    plain = run(tmp_path / "plain", tree)
    packed = run(tmp_path / "packed", tmp_path / "sys.tgz")
    assert packed.rows == plain.rows
    assert packed.rows["link_counters"] == 1

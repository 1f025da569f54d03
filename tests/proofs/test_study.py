"""A folder of runs: what is done is not done again, and only one works in it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.proofs.small import corpus, settings
from xtune.errors import InputError, StudyError, UsageError
from xtune.proofs import convergence
from xtune.proofs.corpus import Corpus
from xtune.proofs.study import Study

LIMIT_S = 120.0
_PROGRAM = """
import sys
from pathlib import Path
from tests.proofs.small import settings
from xtune.proofs.study import Study
if __name__ == "__main__":
    Study(Path(sys.argv[1]), settings(steps=4000)).run(["fp32"], [0], 1)
"""


def _folder(path: Path) -> Path:
    path.mkdir()
    corpus().save(path / "corpus.npz")
    return path


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "out")
    Study(folder, settings())
    Study(folder, settings())
    with pytest.raises(UsageError, match="other settings"):
        Study(folder, settings(steps=41))


def test_a_folder_at_work_is_refused(tmp_path: Path) -> None:
    study = Study(_folder(tmp_path / "out"), settings())
    with (study.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StudyError, match="another process"):
            study.run(["fp32"], [0], 1)


def test_a_corpus_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = corpus()
    made.save(tmp_path / "c.npz")
    found = Corpus.load(tmp_path / "c.npz")
    assert (found.train == made.train).all() and (found.held_out == made.held_out).all()
    assert found.about == made.about and found.bytes_per_token == 2.0


def test_an_unknown_method_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = convergence.main(["--methods", "q5", "--out", str(tmp_path / "out")])
    assert status == UsageError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: no method q5 (there are fp32, ") and said.count("\n") == 1


def test_no_method_and_no_folder_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status = convergence.main(["--methods", ",", "--out", str(tmp_path / "out")])
    assert status == UsageError.exit_code
    (tmp_path / "file").write_text("")
    assert convergence.main(["--methods", "fp32", "--out", str(tmp_path / "file" / "x")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("error: --methods names none")
    assert said[-1].startswith("error: ") and str(tmp_path / "file") in said[-1]
    assert len(said) == 2


@pytest.mark.parametrize("flag", ["--jobs", "--seeds", "--steps", "--warm"])
def test_none_of_something_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        convergence.main([flag, "0"])
    assert f"{flag}: '0' is not a whole number of at least 1" in capsys.readouterr().err


def test_a_response_without_what_the_simulator_reads_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept.json"
    asked = ["--methods", "fp32,q4_8_g0.5,drop_35", "--out", str(out), "--response", str(kept)]
    assert convergence.main(asked) == UsageError.exit_code
    assert capsys.readouterr().err.splitlines() == [
        "error: --response: no method of kind drop_residual, shared is chosen"
    ]
    assert not out.exists()
    assert not kept.exists()


def test_without_a_corpus_one_line_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["--out", str(tmp_path / "out"), "--corpus", str(tmp_path / "nothing.txt")]
    assert convergence.main(asked) == InputError.exit_code
    said = capsys.readouterr().err.splitlines()[-1]
    assert "nothing.txt: not there (name a text file" in said


@pytest.mark.slow
def test_runs_are_made_once_and_the_table_names_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = Study(_folder(tmp_path / "out"), settings())
    study.run(["fp32", "q4_g1"], [0, 1], 2)
    said = capfd.readouterr().err
    assert "2 runs of 5 iterations" in said and "4 runs of 40 iterations" in said
    assert "q4_g1.seed1: 40/40, held-out loss" in said
    files = sorted(path.name for path in (study.folder / "runs").iterdir())
    assert files == [f"{m}.seed{s}.json" for m in ("fp32", "q4_g1") for s in (0, 1)]
    assert not list((study.folder / "checkpoints").iterdir())
    study.run(["fp32", "q4_g1"], [0, 1], 2)
    assert capfd.readouterr().err == ""
    document = convergence.write(study, ["fp32", "q4_g1", "q4_off"], command="test")
    kept = json.loads((study.folder / "response.json").read_text(encoding="utf-8"))
    assert kept["methods"].keys() == document["methods"].keys() == {"fp32", "q4_g1"}
    assert kept["methods"]["q4_g1"]["gain"] == 1.0
    assert kept["provenance"]["seeds"] == [0, 1]
    out = capfd.readouterr().out
    assert "q4_g1: 4 bits, error feedback 1" in out
    assert "q4_g1" in (study.folder / "table.md").read_text(encoding="utf-8")
    assert "q4_g1" in (study.folder / "plot.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_study_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "out")
    root = Path(__file__).parents[2]
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, str(program), str(folder)], env=environment)
    checkpoint = folder / "checkpoints" / "fp32.seed0.pt"
    deadline = time.monotonic() + LIMIT_S
    while not checkpoint.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The run's process ends with it, so the checkpoint stands still from some moment on.
    while time.monotonic() < deadline:
        before = checkpoint.stat().st_mtime_ns
        time.sleep(1.0)
        if checkpoint.stat().st_mtime_ns == before:
            break
    else:
        pytest.fail("the run goes on without the study")
    assert not (folder / "runs" / "fp32.seed0.json").exists()
    Study(folder, settings(steps=4000)).run([], [0], 1)  # the lock is free again

"""``xtune place`` as a person and a script see it, on the small lake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.lakes import new_lake, put
from tests.placement.lakes import rates, small_lake, topology
from xtune.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run ``xtune place`` beside the lake; status, stdout, stderr."""
    small_lake(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xtune", "place", *words])
        status = main()
        out, err = capsys.readouterr()
        return status, out, err

    return call


def document(run: Run, *words: str) -> dict[str, Any]:
    status, out, err = run(*words, "--json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert found["schema"] == 1
    return found


def test_each_choice_has_its_reason(run: Run) -> None:
    status, out, err = run("--ranks", "16", "--share", "0.25")
    assert status == 0
    assert err == "note: hosts of 6 adapters are named by their descriptions alone\n"
    why = "25.0% busy in the mean, 25.0% at high load; 0 h of episodes in 0.333 h"
    [line] = [line for line in out.splitlines() if line.split()[:3] == ["a2", "leafa", "8"]]
    assert line.split(maxsplit=4)[3:] == ["75.0%", f"a2 mlx5_0:1 is {why}"]
    assert "16 ranks on 2 hosts of 2 leaves; 50.0% left on the fullest link" in out
    assert "not taken" in out  # leaf b
    assert "sick links c1 mlx5_0:1" in out


def test_json_says_all_of_it(run: Run) -> None:
    found = document(run, "--ranks", "8", "--pattern", "all-to-all")
    assert [(h["host"], h["leaf"], h["ranks"], h["spare"]) for h in found["hosts"]] == [
        ("b1", "leafb", 8, 0.875)
    ]
    assert (found["pattern"], found["headroom"], found["reservation"]) == (
        "all-to-all",
        0.875,
        None,
    )
    leaf = {row["leaf"]: row for row in found["leaves"]}["leafb"]
    assert leaf["reason"].startswith("8 ranks on 1 hosts, all of the job: nothing crosses")
    # b2 is unknown: neither its ranks nor its share are counted as free.
    assert (leaf["hosts"], leaf["unknown_hosts"], leaf["free_ranks"]) == (2, 1, 8)
    assert leaf["spare"] == 0.875


def test_a_leaf_without_readings_is_unknown_not_free(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = new_lake(tmp_path / "other")
    put(lake, "topology_links", topology())
    put(lake, "derived/link_rates", rates("x/1", [0.5]))
    found = document(run, "--lake", "other")
    assert {row["state"] for row in found["leaves"]} == {"unknown"}
    assert {row["free_ranks"] for row in found["leaves"]} == {None}
    assert {row["spare"] for row in found["leaves"]} == {None}
    status, out, err = run("--lake", "other", "--ranks", "1")
    assert (status, out) == (1, "")
    [line] = err.splitlines()
    assert "no room for 1 ranks: 0 on known and sound hosts; of 6 hosts 6 are unknown" in line
    assert "no port of theirs has a reading in the time looked at" in line


def test_a_span_without_readings_is_told(run: Run) -> None:
    told = "no port of theirs has a reading in the time looked at"
    span = ["--since", "2999-01-01T00:00:00Z", "--until", "2999-01-02T00:00:00Z"]
    status, out, err = run("--ranks", "8", *span)
    assert (status, out) == (1, "") and told in err
    status, _, err = run("--ranks", "4096")
    assert status == 1 and "no room" in err and told not in err


def test_reserve_subtracts_and_release_returns(run: Run) -> None:
    before = document(run, "--ranks", "16")
    mine = document(run, "--ranks", "16", "--reserve", "llm", "--for", "8h")
    assert mine["hosts"] == before["hosts"]
    assert mine["reservation"]["ranks"] == 16
    later = document(run, "--ranks", "16")
    assert not {h["host"] for h in later["hosts"]} & {h["host"] for h in mine["hosts"]}
    assert later["reservations"] == [mine["reservation"]]
    again = run("--ranks", "16", "--reserve", "llm")
    assert (again[0], again[1]) == (1, "")
    assert "llm has a reservation already (xtune place --release llm returns it)" in again[2]
    assert run("--release", "llm") == (0, "released llm: 16 ranks on 2 hosts\n", "")
    assert document(run, "--ranks", "16") == before
    assert run("--release", "llm")[0] == 1


def test_a_reservation_expires(run: Run) -> None:
    before = document(run, "--ranks", "8")
    document(run, "--ranks", "8", "--reserve", "short", "--for", "1ms")
    assert document(run, "--ranks", "8") == before


@pytest.mark.parametrize(
    "words",
    ["--ranks 0", "--ranks -8", "--ranks many", "--ranks 8 --pattern star", "--ranks 8 --share 0",
     "--ranks 8 --share 1.5", "--ranks 8 --share nan", "--ranks 8 --reserve j --for soon",
     "--ranks 8 --for 8h", "--reserve j", "--release j --ranks 8", "--ranks 8 --ranks-per-host 0",
     "--since 2026-01-02 --until 2026-01-01", "--since soon"],
)  # fmt: skip
def test_wrong_usage_is_told_and_nothing_is_written(words: str, run: Run, tmp_path: Path) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert not (tmp_path / "lake" / "placement").exists()


def test_what_cannot_be_placed_is_not_reserved(run: Run) -> None:
    status, out, err = run("--ranks", "4096", "--reserve", "big")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert document(run)["reservations"] == []


def test_an_empty_lake_says_what_to_collect(run: Run, tmp_path: Path) -> None:
    put(new_lake(tmp_path / "bare"), "ports", [])
    status, out, err = run("--lake", "bare", "--ranks", "8")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "no link rates" in err and "xtune collect" in err and "xtune rebuild" in err
    put(new_lake(tmp_path / "flat"), "derived/link_rates", rates("x/1", [0.5]))
    status, out, err = run("--lake", "flat", "--ranks", "8")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "ibnetdiscover" in err


def test_history_of_a_span_alone(run: Run) -> None:
    """Readings end at T0 + 20 minutes; after them nothing is known of any host."""
    found = document(run, "--since", "2026-03-02T10:20:00Z", "--until", "2026-03-02T11:00:00Z")
    assert {row["state"] for row in found["leaves"]} == {"unknown"}
    found = document(run, "--since", "2026-03-02T10:02:00Z")  # the sick stretch has ended by then
    assert [row["sick_hosts"] for row in found["leaves"]] == [0, 0, 0]


def test_two_calls_at_once_take_different_ranks(tmp_path: Path) -> None:
    small_lake(tmp_path / "lake")
    calls = [
        subprocess.Popen(
            [sys.executable, "-m", "xtune", "place", "--json", "--ranks", "8", "--reserve", job],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for job in ("one", "two")
    ]  # fmt: skip
    found = [json.loads(call.communicate(timeout=120)[0]) for call in calls]
    assert [call.returncode for call in calls] == [0, 0]
    one, two = ({host["host"] for host in answer["hosts"]} for answer in found)
    assert len(one) == len(two) == 1 and not one & two
    kept = json.loads((tmp_path / "lake" / "placement" / "reservations.json").read_text())
    assert [row["job"] for row in kept["reservations"]] == ["one", "two"]

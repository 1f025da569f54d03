"""``xtune episodes``: what a person and a script see of tables that were written by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_output import on_terminal
from tests.pipelines.lakes import at, new_lake, put
from xtune.cli import main
from xtune.lake import Lake
from xtune.tables import TABLES

A, B, C = "0x00000000000000aa/1", "0x00000000000000bb/2", "0x00000000000000bb/3"
SICK = {"errors_per_s": 12.0, "errors_counted_by": B, "receiver": B, "root_wait_fraction": 0.25}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command in a folder with a lake of two episodes; status, stdout, stderr."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", [_cable(A, "leaf01", B, "node7 mlx5_0")])
    put(
        lake,
        "derived/episodes",
        [
            _episode("aa11", 0, 30, A, "sick_link", SICK, ["llm"], 2.5, 1.5, [A, C]),
            _episode(
                "aa22", 100, 160, None, "unknown", {"why": "no topology"}, [], None, None, [C]
            ),
        ],
    )
    put(
        lake,
        "derived/link_episodes",
        [
            _member("m1", "aa11", A, 0, 30, "root"),
            _member("m2", "aa11", C, 0, 20, "victim"),
            _member("m3", "aa22", C, 100, 160, "unknown"),
        ],
    )
    put(
        lake,
        "derived/link_totals",
        [
            {
                "ts": at(5),
                "link": A,
                "sent_bytes": 10**12,
                "lost_bytes": 10**11,
                "lost_to_sent": 0.1,
            },
            {
                "ts": None,
                "link": B,
                "sent_bytes": 10**9,
                "lost_bytes": 5 * 10**8,
                "lost_to_sent": 0.5,
            },
            {"ts": at(5), "link": C, "errors": 3},
        ],
    )
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xtune", *words])
        status = main()
        out, err = capsys.readouterr()
        return status, out, err

    return call


def _cable(near: str, near_name: str, far: str, far_name: str) -> dict[str, Any]:
    (guid, port), (far_guid, far_port) = near.split("/"), far.split("/")
    return {
        "src_guid": guid, "src_port": int(port), "src_name": near_name,
        "dst_guid": far_guid, "dst_port": int(far_port), "dst_name": far_name,
    }  # fmt: skip


def _episode(
    name: str, start: float, end: float, root: str | None, cause: str, evidence: dict[str, Any],
    jobs: list[str], slowdown: float | None, hours: float | None, links: list[str],
) -> dict[str, Any]:  # fmt: skip
    return {
        "episode_id": name, "start_ts": at(start), "end_ts": at(end), "links": links,
        "root_link": root, "cause": cause, "evidence": json.dumps(evidence), "jobs": jobs,
        "collectives": 4, "slowdown": slowdown, "idle_gpu_hours": hours, "steps_affected": 2,
    }  # fmt: skip


def _member(
    name: str, episode: str, link: str, start: float, end: float, role: str
) -> dict[str, Any]:
    return {
        "link_episode_id": name, "episode_id": episode, "link": link, "start_ts": at(start),
        "end_ts": at(end), "peak_level": 2, "mean_wait_fraction": 0.25, "bytes": 3 * 10**9,
        "role": role,
    }  # fmt: skip


def test_a_line_an_episode_the_costliest_first(run: Run) -> None:
    status, out, err = run("episodes")
    assert (status, err) == (0, "")
    heading, _, first, second, total = out.splitlines()
    assert heading.split("  ")[0] == "" and "victims" in heading
    for word in (
        "aa11",
        "2026-03-02 10:00:00",
        "30",
        "sick_link",
        "leaf01:1",
        "llm",
        "2.5",
        "1.5",
    ):
        assert word in first
    assert "12 errors/s at 0x00000000000000bb/2; waits 25% of the time" in first
    assert second.split()[:5] == ["aa22", "2026-03-02", "10:01:40", "60", "unknown"]
    assert second.endswith("no topology")
    assert total == "2 episodes, 1.5 idle GPU hours (unknown for 1 of them)"


def test_json_has_the_columns_of_the_two_tables(run: Run) -> None:
    status, out, _ = run("episodes", "--json")
    document = json.loads(out)
    assert (status, list(document)) == (0, ["schema", "episodes", "link_episodes"])
    assert [row["episode_id"] for row in document["episodes"]] == ["aa11", "aa22"]
    for name in ("episodes", "link_episodes"):
        assert list(document[name][0]) == TABLES[f"derived/{name}"].schema.names
    assert document["episodes"][0]["start_ts"] == "2026-03-02T10:00:00.000000000Z"
    assert document["episodes"][1]["idle_gpu_hours"] is None
    assert [row["link_episode_id"] for row in document["link_episodes"]] == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--top", "1"), ["aa11"]),
        (("--job", "llm"), ["aa11"]),
        (("--job", "nobody"), []),
        (("--link", C), ["aa11", "aa22"]),
        (("--link", A), ["aa11"]),
        (("--link", "leaf01:1"), ["aa11"]),
        (("--since", "2026-03-02T10:00:30Z"), ["aa22"]),  # the first ends at that instant
        (("--since", "2026-03-02T10:00:29.999999Z"), ["aa11", "aa22"]),
        (("--until", "2026-03-02T10:01:40Z"), ["aa11"]),
        (("--until", "2026-03-02T11:01:41+01:00"), ["aa11", "aa22"]),
        (("--explain", "aa2"), ["aa22"]),
    ],
)
def test_what_is_selected(run: Run, words: tuple[str, ...], found: list[str]) -> None:
    status, out, _ = run("episodes", "--json", *words)
    assert status == 0
    assert [row["episode_id"] for row in json.loads(out)["episodes"]] == found


def test_a_filter_that_leaves_nothing_says_what_there_is(run: Run) -> None:
    assert run("episodes", "--job", "nobody")[2] == "note: jobs with episodes: llm\n"
    assert "2 episodes without these filters" in run("episodes", "--since", "2027-01-01")[2]


def test_one_episode_in_full(run: Run) -> None:
    status, out, _ = run("episodes", "--explain", "aa11")
    assert status == 0
    assert out.startswith("episode aa11: sick_link\n")
    values = {k.strip(): v.strip() for k, _, v in (x.rpartition("   ") for x in out.splitlines())}
    assert values["root"] == f"leaf01:1 ({A})"
    assert values["evidence: errors_per_s"] == "12"
    assert values["steps affected"] == "2"
    [root, victim] = [line for line in out.splitlines() if "2026-03-02 10:00:00" in line]
    assert root.split()[:2] == ["leaf01:1", "root"] and victim.split()[:2] == [C, "victim"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--explain", "zz"), 1, "no episode zz"),
        (("--explain", "aa"), 2, "aa begins 2 ids"),
        (("--top", "0"), 2, ""),
        (("--since", "yesterday"), 2, "--since"),
        (("--since", "2026-03-02", "--until", "2026-03-01"), 2, "is not before"),
        (("--ports", "--job", "llm"), 2, "--job selects episodes"),
        (("--lake", "elsewhere"), 1, "elsewhere"),
    ],
)
def test_exit_status(run: Run, words: tuple[str, ...], status: int, message: str) -> None:
    found, out, err = run("episodes", *words)
    assert (found, out) == (status, "")
    assert message in err and "Traceback" not in err


def test_hot_ports(run: Run) -> None:
    status, out, _ = run("episodes", "--ports")
    rows = out.splitlines()
    assert status == 0
    assert [row.split()[0] for row in rows[2:5]] == [B, "leaf01:1", C]
    assert "0.5" in rows[2] and "100" in rows[3].split()
    assert rows[5].startswith("3 of 3 ports")
    document = json.loads(run("episodes", "--ports", "--top", "1", "--json")[1])
    assert [row["lost_to_sent"] for row in document["ports"]] == [0.5]
    assert list(document["ports"][0]) == TABLES["derived/link_totals"].schema.names


@pytest.mark.parametrize("columns", [80, 240])
def test_narrow_and_wide_terminals(
    run: Run, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: size)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run("episodes")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", out)
    lines = [line for line in out.splitlines() if line.strip()]
    if columns == 240:
        assert len(lines) == 5
    else:
        assert lines[0].split() == ["aa11", "2026-03-02", "10:00:00", "30", "s", "sick_link"]
        assert max(map(len, lines)) <= columns
        assert [line[:4] == "    " for line in lines].count(False) == 3


def test_a_lake_never_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    put(new_lake(tmp_path / "lake"), "steps", [{"ts": at(0), "step": 1}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["xtune", "episodes"])
    assert main() == 0
    assert "xtune rebuild" in capsys.readouterr().err


def test_a_scheduler_belongs_to_dask(run: Run) -> None:
    """A rebuild that was meant for a cluster does not silently run here."""
    status, _, said = run("rebuild", "--scheduler", "tcp://head:8786")
    assert status == 2
    assert "--engine dask" in said


def test_switches_of_one_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    """Switches that nobody named all describe themselves by their model."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", [_cable("0x00000000000000cc/1", "leaf01", C, "node8 mlx5_0")])
    _, shown, _ = run("episodes", "--ports")
    assert "leaf01 0x00000000000000aa:1" in shown


@pytest.mark.parametrize("days", [1, 2])
def test_a_narrow_terminal_breaks_no_time(run: Run, tmp_path: Path, days: int) -> None:
    lake = Lake.open(tmp_path / "lake")
    start, end = at(86400 * (days - 1)), at(86400 * (days - 1) + 20)
    put(
        lake,
        "derived/link_episodes",
        [{**_member("m4", "aa11", B, 0, 20, "victim"), "start_ts": start, "end_ts": end}],
    )
    words = on_terminal(tmp_path, 80, "episodes", "--explain", "aa11").split()
    assert "2026-03-02T10:00:00.000000000Z" in words
    if days == 1:
        assert words.count("10:00:00") == 3
    else:
        assert words.count("2026-03-02") == 2 and words.count("2026-03-03") == 1

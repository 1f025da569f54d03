"""The command line's promises: flags, exit status, one line for an error, JSON alone on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import xtune

FLAGS = {
    "collect": "debug dry-run duration fabric follow help host host-map interval job json kind "
    "label lake list map procfs rank run since step strict sysfs time-from tz until url",
    "rebuild": "debug dry-run engine help json lake scheduler shard since until workers",
    "episodes": "debug explain help job json lake link ports since top until",
    "query": "debug help json lake",
    "calibrate": "debug held-out help job json lake response",
    "simulate": "debug help iterations json lake policy scenario seed seeds workers",
    "tune": "debug engine help json lake seed storage study timeout trials workers",
    "export": "debug dry-run help json lake name out study trial with-names",
    "report": "debug help json lake lang out since strict study until",
    "place": "debug for help json lake pattern ranks ranks-per-host release reserve share since "
    "until",
    "prune": "debug dry-run help json keep lake",
    "doctor": "debug help json lake",
    "config": "debug help json",
    "demo": "data debug help out",
}


def test_flags_are_frozen() -> None:
    """Knobs belong in xtune.toml; a new flag is a decision, so this test must be changed too."""
    import typer

    from xtune.cli import app

    group = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        options = [p for p in command.params if p.param_type_name == "option"]
        flags = {o.lstrip("-") for p in options for o in p.opts} | {"help"}
        found[name] = " ".join(sorted(flags))
    assert found == {name: " ".join(sorted(flags.split())) for name, flags in FLAGS.items()}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--help",), 0),
        (("--version",), 0),
        ((), 2),
        (("collect", "--nonsense"), 2),
        (("nonsense",), 2),
        (("query", "select 1"), 1),
        (("collect", "not-there"), 1),
        (("collect", "--time-from", "guess", "x"), 2),
        (("collect", "--tz", "Middle/Earth", "x"), 2),
        (("prune", "--keep", "soon"), 2),
        (("rebuild", "--since", "2026-03-02", "--until", "2026-03-01"), 2),
        (("report", "--since", "2026-03-02", "--until", "2026-03-02"), 2),
        (("collect", "--rank", "99999999999999999999", "x"), 2),
        (("tune", "--study", "nonsense"), 1),
        (("report", "--lang", "fr"), 1),
    ],
)
def test_exit_status_and_one_line(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    done = xtune(*words, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    if status == 1:
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "status"), [(["--version"], 0), (["query", "select 1"], 1), (["nonsense"], 2)]
)
def test_the_process_ends_with_that_status(words: list[str], status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xtune", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)


@pytest.mark.parametrize(
    "words",
    [
        "--dry-run --duration 1s",  # would have written
        "--kind ethtool --duration 1s",
        "--time-from mtime --duration 1s",
        "--strict --duration 1s",
        "--step 5s",
        "x --duration 1s",
        "x --interval 1s",
        "x --sysfs /sys",
        "x --since 2026-01-01",
        "--follow",
        "--follow x --dry-run",
        "--follow x --procfs /proc",
        "--fabric --follow",
        "--fabric --dry-run",
        "--fabric --sysfs /sys",
        "--fabric x",
        "--url http://127.0.0.1:1 x",
        "--url http://127.0.0.1:1 --follow",
        "--url http://127.0.0.1:1 --fabric",
        "--url http://127.0.0.1:1 --duration 1s",
        "--url http://127.0.0.1:1 --kind ethtool",
    ],
)
def test_a_flag_that_would_do_nothing_is_wrong_usage(words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"step": 1, "loss": 2.0}\n')
    done = xtune("collect", *words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    "words", ["--lake here rebuild", "--lake=here rebuild", "--json episodes"]
)
def test_an_option_before_the_command_is_told_its_place(words: str, tmp_path: Path) -> None:
    done = xtune(*words.split(), cwd=tmp_path)
    flag = words.split()[0].partition("=")[0]
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"xtune: {flag} stands after the command's name")


def test_config_tells_where_each_setting_is_from(tmp_path: Path) -> None:
    (tmp_path / "xtune.toml").write_text("seed = 5\n[episodes]\nmax_gap_s = 7\n")
    done = xtune("config", "--json", cwd=tmp_path, XTUNE_WORKERS="3", XTUNE_SEED="9")
    document = json.loads(done.stdout)
    settings = {s["name"]: (s["value"], s["origin"]) for s in document["settings"]}
    assert document["schema"] == 1
    assert settings["seed"] == (9, "XTUNE_SEED")
    assert settings["workers"] == (3, "XTUNE_WORKERS")
    assert settings["episodes.max_gap_s"] == (7.0, str(tmp_path / "xtune.toml"))
    assert settings["lake"] == ("lake", "default")


def test_config_hides_passwords(tmp_path: Path) -> None:
    done = xtune("config", cwd=tmp_path, XTUNE_STORAGE="postgresql://me:s3cret@db/x")
    assert "s3cret" not in done.stdout + done.stderr
    assert "me:***@db" in done.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("x://me:a@b:c/d@host:5432/db", "x://me:***@host:5432/db"),
        ("x://host:1/db?user=me&password=a&z=1", "x://host:1/db?user=me&password=***&z=1"),
        ("x://me:nothost", "x://me:***"),
        ("http://host:9090/a, http://other:1", "http://host:9090/a, http://other:1"),
    ],
)
def test_secrets_are_hidden_and_ports_are_not(text: str, hidden: str) -> None:
    from xtune.config import hide_secrets

    assert hide_secrets(text) == hidden


def test_a_memory_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    done = xtune("config", cwd=tmp_path, XTUNE_MEMORY="lots")
    assert done.returncode == 2
    assert "XTUNE_MEMORY: memory = 'lots'" in done.stderr


def test_unknown_setting_names_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "xtune.toml").write_text("sed = 5\n")
    done = xtune("config", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean seed?" in done.stderr


def test_list_names_every_collector(tmp_path: Path) -> None:
    from xtune.collectors import all_collectors

    document = json.loads(xtune("collect", "--list", "--json", cwd=tmp_path).stdout)
    assert {f["name"] for f in document["formats"]} == set(all_collectors())

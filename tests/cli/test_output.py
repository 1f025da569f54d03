"""What reaches a reader: any value as JSON, a row as a line, and a name as one line of text."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tests.commands import xtune
from tests.pipelines.lakes import A, at, new_lake, port_rows, put
from xtune.collectors import all_collectors
from xtune.console import json_rows, rfc3339, table, visible
from xtune.lake import Lake
from xtune.pipelines import query, rebuild


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a lake of one step."""
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.begin() as transaction:
        rows = {"step": [7], "source": ["0" * 12], "labels": [[("a", "b")]]}
        schema = pa.schema(
            {
                "step": pa.int64(),
                "source": pa.string(),
                "labels": pa.map_(pa.string(), pa.string()),
            }
        )
        transaction.write("steps", pa.table(rows, schema=schema))
        transaction.commit()
    return tmp_path


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("sum(step)", 7),  # of BIGINT: HUGEINT, which Arrow has as a decimal
        ("1.25::DECIMAL(9, 3)", 1.25),
        ("'a'::BLOB", "61"),
        ("[TIMESTAMP '2026-01-01']", ["2026-01-01T00:00:00.000000000Z"]),
        ("{'t': TIMESTAMP '2026-01-01', 'n': NULL}", None),
        ("MAP {'t': TIMESTAMP_NS '2026-01-01 00:00:00.123456789'}", None),
        ("TIMESTAMP '0001-01-01'", "0001-01-01T00:00:00.000000000Z"),
        ("TIMESTAMP '9999-12-31'", "9999-12-31T00:00:00.000000000Z"),
        ("TIMESTAMPTZ 'infinity'", None),
        ("'nan'::DOUBLE", None),
        ("DATE '2026-01-01'", "2026-01-01"),
        ("[1, NULL]::INTEGER[2]", [1, None]),
        ("any_value(labels)", {"a": "b"}),
    ],
)
def test_every_type_is_json(here: Path, sql: str, value: object) -> None:
    found = json_rows(query(Lake.open(here / "lake"), f"SELECT {sql} AS x FROM steps"))
    wanted = {
        "{'t'": {"t": "2026-01-01T00:00:00.000000000Z", "n": None},
        "MAP {": {"t": "2026-01-01T00:00:00.123456789Z"},
    }.get(sql[:4] if sql[0] == "{" else sql[:5], value)
    if sql.startswith("'nan'"):
        assert str(found[0]["x"]) == "nan"  # null only in the document
    else:
        assert found == [{"x": wanted}]
    json.dumps(found)


def test_columns_of_one_name_are_told_apart(here: Path) -> None:
    done = xtune("query", "SELECT 1 AS a, 2 AS a, 3 AS a_1", "--json", cwd=here)
    assert json.loads(done.stdout) == {
        "schema": 1,
        "columns": ["a", "a_2", "a_1"],
        "rows": [{"a": 1, "a_2": 2, "a_1": 3}],
    }
    assert xtune("query", "SELECT 1 AS a, 2 AS a", cwd=here).returncode == 0


def test_a_row_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"[/column {n}]" for n in range(80)]  # no markup
    table("", names, [["x" * 100, *range(79)], ["a\nb\x1b[31m", *range(79)]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(name in lines[0] for name in names)
    assert "a\\nb\\x1b[31m " in lines[3]


@pytest.mark.slow
def test_a_large_result_is_written_as_it_comes(here: Path) -> None:
    """A million rows: held at once they take more than 500 MB."""
    for words in (("--json",), ()):
        code = (
            "import sys; from xtune.cli import main; from tests.memory import peak_bytes;"
            f"sys.argv[1:] = ['query', 'SELECT range AS x FROM range(1000000)', *{words!r}];"
            "status = main(); print(peak_bytes(), file=sys.stderr); sys.exit(status)"
        )
        with (here / "out").open("w") as out:
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=here, stdout=out, stderr=subprocess.PIPE,
                text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            )  # fmt: skip
        assert int(done.stderr) < 300e6
        text = (here / "out").read_text()
        if words:
            assert [row["x"] for row in json.loads(text)["rows"]] == list(range(1_000_000))
        else:
            assert text.splitlines()[-1].strip() == "999999"


def test_a_query_that_fails_at_once_leaves_stdout_empty(here: Path) -> None:
    done = xtune("query", "SELECT error('no') FROM steps", "--json", cwd=here)
    assert (done.returncode, done.stdout) == (1, "")


def test_names_stay_one_line() -> None:
    assert visible("a\nb\x1b[2J\x9b é") == "a\\nb\\x1b[2J\\x9b é"
    assert visible(os.fsdecode(b"\xff")) == "\\udcff"


def test_a_strange_file_name_is_one_line_and_valid_json(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a\n\xff 'b\".txt"
    Path(os.fsdecode(name)).write_text("nothing known")
    done = xtune("collect", os.fsdecode(name), cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    document = json.loads(xtune("collect", os.fsdecode(name), "--json", cwd=tmp_path).stdout)
    assert document["files"][0]["path"].endswith("/a\n\\udcff 'b\".txt")
    assert document["files"][0]["state"] == "unknown"  # known from before, not read again


def test_errors_of_sql_are_one_line(here: Path) -> None:
    for sql in ("SELECT nothing FROM steps", "SELECT * FROM nothing", "SELEC 1"):
        done = xtune("query", sql, cwd=here)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error(here: Path) -> None:
    command = f"{sys.executable} -m xtune query 'SELECT * FROM range(200000)' | head -1"
    shell = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(shell, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line(here: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "xtune", "query", "SELECT 1", "--json"]
        done = subprocess.run(command, cwd=here, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"bug" not in done.stderr and done.stderr.count(b"\n") == 1


def test_an_interrupt_ends_a_long_statement(here: Path) -> None:
    """DuckDB alone sees the signal late, and then raises a RuntimeError."""
    code = (
        "import sys; from xtune.cli import main; print(flush=True);"
        "sys.argv[1:] = ['query', "
        "'SELECT count(*) FROM range(1000000000000) t(x) WHERE x = 1'];"
        "sys.exit(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        time.sleep(4.0)  # well inside the statement, which takes minutes; any moment will do
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert process.stderr.read().startswith(b"interrupted")


@pytest.mark.parametrize(
    "words",
    [
        ("collect", "--tz", "Mars/Phobos", "."),  # a KeyError of zoneinfo
        ("collect", "--tz", "../UTC", "."),
        ("prune", "--keep", "99999999999d"),
    ],
)
def test_odd_values_are_wrong_usage(words: tuple[str, ...], here: Path) -> None:
    assert xtune(*words, cwd=here).returncode == 2


def test_times_before_the_epoch() -> None:
    assert rfc3339(-1) == "1969-12-31T23:59:59.999999999Z"


def test_a_cost_that_nobody_knows_is_no_number(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    waits = [0.5 if 100 <= second < 160 else 0.0 for second in range(300)]
    put(lake, "link_counters", port_rows(A, waits))
    rebuild(lake)
    assert "1 episodes, idle GPU hours unknown" in xtune("episodes", cwd=tmp_path).stdout
    put(lake, "steps", [{"ts": at(50), "job": "llm", "step": 0, "step_time_s": 2.0}])
    rebuild(lake)  # a job ran, and not during the episode
    assert "1 episodes, 0 idle GPU hours" in xtune("episodes", cwd=tmp_path).stdout


def test_one_reading_is_no_rate_and_the_report_says_what_is_missing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0.0])[:1])
    rebuild(lake)
    found = xtune("report", cwd=tmp_path)
    assert found.returncode == 1
    assert "two readings" in found.stderr


@pytest.mark.parametrize("columns", [80, 160])
def test_commands_stay_whole_on_a_terminal(tmp_path: Path, columns: int) -> None:
    """``xtune collect --list`` is there to copy from."""
    screen = on_terminal(tmp_path, columns, "collect", "--list")
    for collector in all_collectors().values():
        assert f"  how to produce it   {collector.produce}\n" in screen
        assert f"  format              {collector.name}\n" in screen


def test_progress_shows_names_as_they_are(tmp_path: Path) -> None:
    """Not as markup, nor as what a terminal obeys; and it counts."""
    folder = tmp_path / "logs[" / "\x1b[31mred"
    folder.mkdir(parents=True)
    for number in range(3):  # long enough to be shown
        rows = (f"{n},{n + number}\n" for n in range(100_000))
        (folder / f"bold]{number}.csv").write_text("step,loss\n" + "".join(rows))
    screen = on_terminal(tmp_path, 200, "collect", "logs[")
    assert "3 inputs: 3 read" in screen and "1/?" in screen
    assert "\x1b[31mred" not in screen and "logs[/\\x1b[31mred/bold]" in screen


def on_terminal(cwd: Path, columns: int, *words: str) -> str:
    """What the command writes to a terminal of that many columns."""
    size = struct.pack("HHHH", 40, columns, 0, 0)
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, size)
    command = [sys.executable, "-m", "xtune", *words]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    written = b""
    with subprocess.Popen(
        command, cwd=cwd, stdin=child, stdout=child, stderr=child, env=environment
    ) as process:
        os.close(child)
        with suppress(OSError):  # EIO: the other side is closed
            while part := os.read(parent, 65536):
                written += part
    os.close(parent)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    done = xtune("collect", "logs", cwd=tmp_path)
    assert done.stdout == "0 inputs: there is no file below the paths\n"


def test_more_rejects_than_shown_can_be_listed(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.bin").write_bytes(bytes(99 + number))
    paths = sorted(path.name for path in tmp_path.iterdir())
    done = xtune("collect", *paths, cwd=tmp_path)
    told = '12 pieces were rejected in all; xtune query "FROM rejected" lists them\n'
    assert done.stderr.endswith(told)
    assert json.loads(xtune("query", "FROM rejected", "--json", cwd=tmp_path).stdout)["rows"]

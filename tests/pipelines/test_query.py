"""query: every table by its bare name, one SELECT, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.pipelines.lakes import A, B, new_lake, port_rows, put
from xtune.collectors import Context
from xtune.errors import LakeError, UsageError, XtuneError
from xtune.ingest import collect
from xtune.lake import Lake
from xtune.pipelines import list_episodes, query, rebuild
from xtune.pipelines.query import answer
from xtune.tables import TABLES


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = new_lake(tmp_path_factory.mktemp("query") / "lake")
    put(made, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    put(made, "link_counters", port_rows(B, [0, 0.2, 0.2, 0.2, 0.2, 0.2]), source="1" * 12)
    rebuild(made)
    return made


def test_every_table_by_its_bare_name(lake: Lake) -> None:
    for table in TABLES.values():
        found = query(lake, f"SELECT * FROM {table.bare_name} LIMIT 3")
        assert found.column_names == table.schema.names


def test_files_that_are_gone_are_missed_by_who_asks_for_them(tmp_path: Path) -> None:
    made = new_lake(tmp_path / "lake")
    put(made, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    rebuild(made)
    shutil.rmtree(made.root / "derived")
    counted = "SELECT count(*) AS n FROM link_counters"
    assert query(made, counted).to_pylist() == [{"n": 6}]
    with pytest.raises(LakeError, match=r"link_rates: 1 of 1 files are missing.*xtune rebuild"):
        query(made, f"SELECT a.n FROM ({counted}) AS a, link_rates")


def test_what_was_rejected(tmp_path: Path) -> None:
    made = Lake.open(tmp_path / "lake", create=True)
    counted = "SELECT count(*) AS n, any_value(reason) AS reason FROM rejected"
    assert query(made, counted).to_pylist() == [{"n": 0, "reason": None}]
    (tmp_path / "noise.bin").write_bytes(bytes(100))
    collect(made, [str(tmp_path / "noise.bin")], context=Context(now_ns=lambda: 1))
    reason = "no collector knows this format"
    assert query(made, counted).to_pylist() == [{"n": 1, "reason": reason}]


def test_figures(lake: Lake) -> None:
    sql = "SELECT link, count(*) AS n, max(wait_fraction) AS w FROM link_rates GROUP BY link"
    found = query(lake, f"{sql} ORDER BY link").to_pylist()
    assert found == [{"link": A, "n": 5, "w": 0.6}, {"link": B, "n": 6, "w": 0.2}]
    assert query(lake, "FROM link_episodes SELECT link ORDER BY 1;")["link"].to_pylist() == [A, B]
    assert query(lake, "WITH x AS (SELECT 1 AS a) SELECT * FROM x").to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW link_rates",
        "COPY link_rates TO 'x.parquet'",
        "SET threads = 1",
        "INSERT INTO link_rates SELECT * FROM link_rates",
        "ATTACH 'x.duckdb'",
        "PRAGMA database_size",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY link_rates TO 'x.parquet'",
        "",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY link_rates TO 'x.parquet'",
        "EXECUTE something",
        "PREPARE p AS SELECT 1",
        "CREATE SECRET (TYPE s3)",
        "EXPORT DATABASE 'x'",
        "VACUUM",
        "RESET memory_limit",
    ],
)
def test_only_one_select(lake: Lake, sql: str) -> None:
    with pytest.raises(UsageError, match="a query is"):
        query(lake, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('../**/*.parquet')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_json('https://example.com/x.json')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''x.csv'' ')",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'') ')",
        "WITH x AS (DELETE FROM link_rates RETURNING *) SELECT * FROM x",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM read_duckdb('x.duckdb')",
        "SELECT getenv('HOME')",
    ],
)
def test_nothing_outside_the_lake(lake: Lake, sql: str) -> None:
    with pytest.raises(XtuneError):
        query(lake, sql)


def test_nothing_of_python_can_be_seen(lake: Lake) -> None:
    secret = query(lake, "SELECT 1 AS x")
    with pytest.raises(XtuneError):
        query(lake, "SELECT * FROM secret")
    assert secret.num_rows == 1


def test_a_pivot_that_looks_for_its_columns_says_how_to_name_them(lake: Lake) -> None:
    with pytest.raises(UsageError, match="PIVOT episodes ON cause IN"):
        query(lake, "PIVOT episodes ON cause USING count(*)")
    sql = "PIVOT episodes ON cause IN ('unknown') USING count(*) GROUP BY peak"
    found = query(lake, sql.replace("episodes", "(SELECT cause, 1 AS peak FROM episodes)"))
    assert found.to_pylist() == [{"peak": 1, "unknown": 2}]


def test_rows_come_as_they_are_made(lake: Lake) -> None:
    """The last of these rows never exist: reading them all would take 8 TB."""
    with answer(lake, "SELECT range AS x FROM range(1000000000000)") as found:
        first, second = next(found.batches), next(found.batches)
    assert found.columns == ["x"]
    assert first["x"][0].as_py() == 0 and second["x"][0].as_py() == first.num_rows


def test_an_error_on_the_way_is_one_line(lake: Lake) -> None:
    sql = "SELECT CASE WHEN range < 100000 THEN range ELSE error('too far') END AS x"
    with answer(lake, f"{sql} FROM range(200000)", threads=1) as found:
        with pytest.raises(XtuneError, match="too far") as raised:
            list(found.batches)
        assert "\n" not in str(raised.value)


def test_what_does_not_fit_leaves_nothing_behind(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sql = "SELECT max(x) AS x FROM (SELECT range AS x FROM range(8000000) ORDER BY hash(range))"
    assert query(lake, sql, memory="60MB", threads=1).to_pylist() == [{"x": 7_999_999}]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_column_gets_duckdbs_candidates(lake: Lake) -> None:
    with pytest.raises(XtuneError, match=r'Candidate bindings: .*"utilization"'):
        query(lake, "SELECT utilisation FROM link_rates")
    with pytest.raises(XtuneError, match="syntax error"):
        query(lake, "SELEC 1")


def test_listing(lake: Lake) -> None:
    episodes, members = list_episodes(lake)
    assert episodes["links"].to_pylist() == [[B], [A]]  # no cost is known: the longest first
    assert members["link"].to_pylist() == [B, A]
    assert episodes.schema.names == TABLES["derived/episodes"].schema.names
    assert members.schema.names == TABLES["derived/link_episodes"].schema.names
    episodes, members = list_episodes(lake, top=1)
    assert members["link"].to_pylist() == [B]
    assert list_episodes(lake, link=A)[0]["links"].to_pylist() == [[A]]
    assert list_episodes(lake, job="llm")[0].num_rows == 0


def test_listing_a_lake_never_rebuilt(tmp_path: Path) -> None:
    episodes, members = list_episodes(new_lake(tmp_path / "lake"))
    assert (episodes.num_rows, members.num_rows) == (0, 0)

"""SQL models: headers, contracts, audits."""

from __future__ import annotations

import pytest

from xtune.errors import UsageError, XtuneError
from xtune.pipelines import EpisodeRules
from xtune.pipelines._engine import connect, duck_type, empty_relation, literal
from xtune.pipelines._model import Audit, Model, load_model, model_names, parse_model
from xtune.tables import DERIVED_TABLES, TABLES

FILLED = ("link_rates", "link_episodes", "episodes", "collective_impact")


def test_every_model_is_found_by_its_name() -> None:
    names = model_names()
    assert {*FILLED, "samples_direct", "samples_merged", "link_runs"} <= set(names)
    for name in names:
        model = load_model(name)
        assert model.name == name
        assert model.grain
        assert (model.table is not None) == (f"derived/{name}" in DERIVED_TABLES)


@pytest.mark.parametrize("name", FILLED)
def test_a_model_of_a_table_says_what_must_hold(name: str) -> None:
    model = load_model(name)
    assert model.table is not None
    assert any(audit.kind in ("key", "sorted_key", "not_null", "range") for audit in model.audits)


def test_header() -> None:
    text = (
        "-- name: m\n-- grain: one x\n-- inputs: a, b\n"
        "-- audits: key(x, y); range(x, 0, ..)\n-- audits: not_null(y)\n-- about: no field\n"
        "SELECT 1 AS x;\n"
    )
    model = parse_model("m", text)
    assert (model.grain, model.inputs) == ("one x", ("a", "b"))
    assert [str(audit) for audit in model.audits] == [
        "key(x, y)",
        "range(x, 0, ..)",
        "not_null(y)",
    ]
    assert model.sql.endswith("SELECT 1 AS x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- name: m\n-- inputs: a\nSELECT 1", "lacks audits, grain"),
        ("-- name: other\n-- grain: g\n-- inputs: a\n-- audits: none: x\nSELECT 1", "names other"),
    ],
)
def test_a_wrong_header_is_refused(text: str, message: str) -> None:
    with pytest.raises(XtuneError, match=message):
        parse_model("m", text)


def test_an_unknown_model_names_the_others() -> None:
    with pytest.raises(XtuneError, match=r"no SQL model nothing .*link_rates"):
        load_model("nothing")


def test_binding_finds_what_is_wrong_before_anything_runs() -> None:
    with connect() as session:
        with pytest.raises(XtuneError, match=r"model link_episodes does not bind: .*members"):
            session.bind("link_episodes")
        session.execute(
            "CREATE TEMP TABLE episode_members AS SELECT 'a' AS link_episode_id,"
            " 'b' AS episode_id, 'l' AS link, 0 AS start_ns, 1 AS end_ns, 1::BIGINT AS peak_level,"
            " 0.5::DOUBLE AS mean_wait_fraction, 0.5::DOUBLE AS peak_utilization,"
            " 1::DOUBLE AS bytes, 'root' AS role, 'unknown' AS cause, '{}' AS evidence"
        )
        with pytest.raises(XtuneError, match=r"columns of its table: .*peak_level.*BIGINT"):
            session.bind("link_episodes")


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        (Audit(kind="key", arguments=("k",)), r"1 rows break key\(k\), such as \(1,\)"),
        (Audit(kind="sorted_key", arguments=("k",)), r"1 rows break sorted_key\(k\)"),
        (Audit(kind="not_null", arguments=("v", "k")), r"1 rows break not_null\(v, k\)"),
        (Audit(kind="range", arguments=("v", "0", "1")), r"2 rows break range\(v, 0, 1\)"),
        (Audit(kind="range", arguments=("v", "..", "1")), r"1 rows break range\(v, .., 1\)"),
    ],
)
def test_a_broken_promise_is_one_plain_line(audit: Audit, message: str) -> None:
    model = Model(name="m", grain="", inputs=(), audits=(audit,), sql="")
    with connect() as session:
        session.table("given", "FROM (VALUES (1, 0.5), (1, NULL), (2, 1.5), (3, -0.1)) AS t(k, v)")
        with pytest.raises(XtuneError, match=f"model m: {message}") as raised:
            session.audit(model, "given")
        assert "\n" not in str(raised.value)


def test_a_kept_promise_is_silent() -> None:
    audits = (
        Audit(kind="key", arguments=("k", "v")),
        Audit(kind="sorted_key", arguments=("k", "v")),
        Audit(kind="not_null", arguments=("v",)),
        Audit(kind="range", arguments=("v", "0", "..")),
    )
    model = Model(name="m", grain="", inputs=(), audits=audits, sql="")
    with connect() as session:
        session.table("given", "FROM (VALUES (1, 0.5), (1, 0.6), (2, 0.1)) AS t(k, v)")
        session.audit(model, "given")


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.bare_name)
def test_types_of_every_table_are_known(table: object) -> None:
    from xtune.tables import Table

    assert isinstance(table, Table)
    with connect() as session:
        found = session.rows(f"DESCRIBE FROM {empty_relation(table)}")
        assert [(r[0], r[1]) for r in found] == [(f.name, duck_type(f.type)) for f in table.schema]
        assert session.arrow(f"FROM {empty_relation(table)}").num_rows == 0


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.1, "it's", [1, 2], {"a": "x", "b": 1.5}, [0.02, 0.15, 0.5]]
)
def test_literals_come_back(value: object) -> None:
    with connect() as session:
        [(found,)] = session.rows(f"SELECT {literal(value)}")
        assert found == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enter_wait": (0.5, 0.2, 0.9)}, "rising"),
        ({"exit_wait": (0.03, 0.1, 0.2)}, "must not be above"),
        ({"report_level": 0}, "report_level"),
        ({"min_samples": 0}, "min_samples"),
        ({"max_gap_s": -1.0}, "max_gap_s"),
        ({"busy_utilization": 0.0}, "busy_utilization"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EpisodeRules(**changes)  # type: ignore[arg-type]

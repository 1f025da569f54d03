"""Every SQL model: its header, its case file, and audits that do fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.case_files import FOLDER, Case, check_case, prepare, read_cases, run
from xtune.errors import XtuneError
from xtune.pipelines._engine import Session, connect, literal
from xtune.pipelines._model import Audit, Model, load_model, model_names, parse_model

MODELS = model_names()
_CASES = [
    (path.stem, case)
    for path in sorted(FOLDER.glob("*.toml"))
    if not path.stem.startswith("_")
    for case in read_cases(path)
]


@pytest.mark.parametrize(("name", "case"), _CASES, ids=[f"{n}: {c.name}" for n, c in _CASES])
def test_case(name: str, case: Case) -> None:
    check_case(load_model(name), case)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_names_the_relations_it_reads(name: str) -> None:
    model = load_model(name)
    assert set(model.inputs) == relations_read(model.sql)
    assert len(model.inputs) == len(set(model.inputs))


def relations_read(sql: str) -> set[str]:
    """Relations that a SELECT reads and does not make itself, by DuckDB's own parser."""
    with connect(threads=1) as session:
        [(text,)] = session.rows(f"SELECT json_serialize_sql({literal(sql)})")
    read: set[str] = set()
    made: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item)
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                read.add(node["table_name"])
            made.update(entry["key"] for entry in (node.get("cte_map") or {}).get("map", []))
            walk(list(node.values()))

    tree = json.loads(text)
    assert not tree["error"], tree
    walk(tree)
    return read - made


def test_a_model_has_a_case_file_and_a_case_file_a_model() -> None:
    found = {path.stem for path in FOLDER.glob("*.toml")}
    assert {name for name in found if not name.startswith("_")} == set(MODELS)


def test_a_model_is_one_file_and_one_case_file(tmp_path: Path) -> None:
    """The worked example of CONTRIBUTING.md, held to all that models here are held to."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    [sql] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    [toml] = re.findall(r"```toml\n(\[\[case\]\].*?)```", page, re.DOTALL)
    (tmp_path / "silent_ports.toml").write_text(toml)
    model = parse_model("silent_ports", sql)
    assert set(model.inputs) == relations_read(model.sql)
    cases = read_cases(tmp_path / "silent_ports.toml")
    for case in cases:
        check_case(model, case)
    check_audits(model, cases)


@pytest.mark.parametrize("name", MODELS)
def test_audits_fail_on_bad_rows(name: str) -> None:
    check_audits(load_model(name), [case for of, case in _CASES if of == name])


def check_audits(model: Model, cases: list[Case]) -> None:
    """Each audit of a model, on the rows of one of its cases made wrong in that one way."""
    name = model.name
    untried = list(model.audits)
    for case in (case for case in cases if case.expect and case.expect.rows):
        if not untried:
            break
        with connect(threads=1) as session:
            prepare(session, model, case)
            run(session, model)
            for audit in list(untried):
                session.table("spoiled", f"FROM {name}")
                if not _spoil(session, "spoiled", audit):
                    continue
                untried.remove(audit)
                with pytest.raises(XtuneError, match=re.escape(f"rows break {audit}")):
                    session.audit(replace(model, audits=(audit,)), "spoiled")
    assert not untried, f"no case of {name} gives rows that these can be tried on"


def _spoil(session: Session, relation: str, audit: Audit) -> bool:
    """Make rows break an audit; False where they have no value to spoil."""
    if audit.kind in ("key", "sorted_key"):
        session.execute(f"INSERT INTO {relation} FROM {relation} LIMIT 1")
        return True
    column = audit.arguments[0]
    if audit.kind == "not_null":
        session.execute(f"UPDATE {relation} SET {column} = NULL")
        return True
    _, low, high = audit.arguments
    value = f"{low} - 1" if low != ".." else f"{high} + 1"
    [(known,)] = session.rows(f"SELECT count({column}) FROM {relation}")
    if known:
        session.execute(f"UPDATE {relation} SET {column} = {value} WHERE {column} IS NOT NULL")
    return bool(known)

"""Case files of SQL models: rows in, rows out, as TOML.

``cases/<model>.toml`` holds one or more cases::

    [[case]]
    name = "what the case shows"
    why = "where the expected values come from"
    order = true                          # rows must come in this order (default: any)
    [case.rules]                          # EpisodeRules, and other getvariable('...') values
    max_gap_s = 5.0
    [case.given.link_rates]               # a relation that the model's header lists as input
    columns = ["ts", "link", "level"]     # "name" or "name TYPE"; the others are null
    rows = [[0, "a/1", 2], ["2026-03-02T10:00:01Z", "a/1", "null"]]
    [case.expect]
    columns = ["link", "level"]           # a part of the model's columns
    rows = [["a/1", 2]]

or, instead of ``expect``, ``fails = "key(link)"``: a part of the message of the audit that must
fail.
Types come from the column itself (``"span_ns BIGINT"``), from ``cases/_relations.toml``, or from
the table or model of that name. A raw or derived table that is not given is empty; a model that is
not given is made by running it on what is.

Values: ``"null"``; a time is a number of seconds after 2026-03-02T10:00:00Z or RFC 3339; in an
integer column ``"+1.5s"`` is that instant in nanoseconds since the epoch. Floats are compared to
one part in 1e9. Each case also runs with the rows of all unordered relations reversed and on two
threads: a model must not depend on the order of rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.lakes import at
from xtune.errors import XtuneError
from xtune.pipelines import EpisodeRules
from xtune.pipelines._engine import Session, connect, duck_type, empty_relation, literal, moment
from xtune.pipelines._model import Model, load_model, model_names
from xtune.tables import TABLES

FOLDER = Path(__file__).parent / "cases"
_TIME = "TIMESTAMP WITH TIME ZONE_NS"
_BY_BARE_NAME = {table.bare_name: table for table in TABLES.values()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows as a case file gives them: columns as ``name`` or ``name TYPE``."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.split(" ", 1)[0] for column in self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case of one model.

    Attributes:
        name: What it shows.
        given: Relation -> its rows.
        expect: Rows that must come out; None where an audit must fail.
        fails: Part of that audit's message.
        order: Whether rows must come in the order given.
        rules: Values of variables, EpisodeRules among them.
    """

    name: str
    given: Mapping[str, Rows]
    expect: Rows | None = None
    fails: str | None = None
    order: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict)


def read_cases(path: Path) -> list[Case]:
    """All cases of a file; a key that is not known, or a row of the wrong width, is an error."""
    found = []
    content = tomllib.loads(path.read_text())
    assert content.keys() == {"case"}, f"{path.name}: only [[case]] entries, not {[*content]}"
    for entry in content["case"]:
        known = {"name", "why", "order", "rules", "given", "expect", "fails"}
        label = f"{path.name}: {entry.get('name')}"
        assert entry.keys() <= known, f"{label}: unknown {sorted(entry.keys() - known)}"
        assert entry.get("name") and entry.get("why"), f"{label}: a case has a name and a why"
        assert ("expect" in entry) != ("fails" in entry), f"{label}: expect or fails, not both"
        found.append(
            Case(
                name=entry["name"],
                given={k: _rows(v, f"{label}: {k}") for k, v in entry.get("given", {}).items()},
                expect=_rows(entry["expect"], label) if "expect" in entry else None,
                fails=entry.get("fails"),
                order=entry.get("order", False),
                rules=entry.get("rules", {}),
            )
        )
    names = [case.name for case in found]
    assert len({*names}) == len(names), f"{path.name}: two cases of one name"
    return found


def check_case(model: Model, case: Case) -> None:
    """Run a case in both orders of rows; an AssertionError tells what differs."""
    with connect(threads=1) as session:
        for backwards in (False, True):
            session.execute(f"SET threads = {1 + backwards}")
            prepare(session, model, case, backwards=backwards)
            label = f"{model.name}: {case.name}" + (" (rows reversed)" if backwards else "")
            if case.expect is None:
                with pytest.raises(XtuneError, match=re.escape(case.fails or "")):
                    run(session, model)
                continue
            run(session, model)
            _compare(session, model, case, label)


def prepare(session: Session, model: Model, case: Case, *, backwards: bool = False) -> None:
    """Load variables and every input of a model."""
    known = {f.name for f in fields(EpisodeRules)}
    levels = {k: tuple(v) if isinstance(v, list) else v for k, v in case.rules.items()}
    overrides: dict[str, Any] = {k: v for k, v in levels.items() if k in known}
    rules = EpisodeRules(**overrides)
    session.set_variables(rules.to_json())
    session.set_variables({k: _value(v, "") for k, v in case.rules.items() if k not in known})
    for name in model.inputs:
        _load(session, name, case, backwards)
    unread = case.given.keys() - {*_all_inputs(model, frozenset(case.given))}
    assert not unread, f"{model.name}: {case.name}: no input of the model: {sorted(unread)}"


def run(session: Session, model: Model) -> None:
    """Run a model's SELECT, keep its rows under its name, and audit them."""
    session.table(model.name, model.sql)
    session.audit(model, model.name)


def _load(session: Session, name: str, case: Case, backwards: bool) -> None:
    spec = relations().get(name, {})
    if name in case.given:
        rows = case.given[name]
        types = _types(session, name)
        selects = []
        ordered = spec.get("ordered", False)
        for row in rows.rows if ordered or not backwards else rows.rows[::-1]:
            cells = [_cell(v, c, types) for v, c in zip(row, rows.columns, strict=True)]
            selects.append(f"SELECT {', '.join(cells)}")
        if not selects:
            cells = [_cell("null", column, types) for column in rows.columns]
            selects = [f"SELECT {', '.join(cells)} WHERE false"]
        given = " UNION ALL ".join(selects)
        others = [f'NULL::{kind} AS "{n}"' for n, kind in types.items() if n not in rows.names]
        query = f"SELECT {', '.join(['*', *others])} FROM ({given})"
        if types:
            query = f"SELECT {', '.join(_quoted(types, rows.names))} FROM ({query})"
        session.table(name, query)
    elif name in _BY_BARE_NAME:
        session.table(name, f"FROM {empty_relation(_BY_BARE_NAME[name])}")
    elif name in model_names():
        model = load_model(name)
        for inner in model.inputs:
            _load(session, inner, case, backwards)
        run(session, model)
    else:
        types = _types(session, name)
        assert types, f"{case.name}: relation {name} is not given"
        nothing = ", ".join(f'NULL::{kind} AS "{n}"' for n, kind in types.items())
        session.table(name, f"SELECT {nothing} WHERE false")


def _all_inputs(model: Model, given: frozenset[str]) -> list[str]:
    """Inputs of a model, and of the models that are run because they are not given."""
    found = []
    for name in model.inputs:
        found.append(name)
        if name not in given and name not in _BY_BARE_NAME and name in model_names():
            found += _all_inputs(load_model(name), given)
    return found


@cache
def relations() -> dict[str, dict[str, Any]]:
    """``_relations.toml``: columns and order of what is neither a table nor a model."""
    return tomllib.loads((FOLDER / "_relations.toml").read_text())


def _types(session: Session, name: str) -> dict[str, str]:
    """Columns of a relation; none where nothing says them."""
    spec = relations().get(name, {})
    like = spec.get("like", name)
    types: dict[str, str] = {}
    if like in _BY_BARE_NAME:
        types = {f.name: duck_type(f.type) for f in _BY_BARE_NAME[like].schema}
    elif like in model_names():
        types = dict(_model_types(like))
    without = set(spec.get("without", ()))
    more: dict[str, str] = spec.get("columns", {})
    return {n: t for n, t in types.items() if n not in without} | more


@cache
def _model_types(name: str) -> tuple[tuple[str, str], ...]:
    """Columns of a model, bound over empty inputs."""
    model = load_model(name)
    with connect(threads=1) as session:
        session.set_variables(EpisodeRules().to_json())
        for inner in model.inputs:
            types = _types(session, inner)
            assert types, f"{name}: nothing says the columns of {inner}"
            nothing = ", ".join(f'NULL::{kind} AS "{n}"' for n, kind in types.items())
            session.table(inner, f"SELECT {nothing} WHERE false")
        return tuple((row[0], row[1]) for row in session.rows(f"DESCRIBE {model.sql}"))


def _quoted(types: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    return [f'"{n}"' for n in (*types, *(n for n in names if n not in types))]


def _cell(value: Any, column: str, types: Mapping[str, str]) -> str:
    name, _, kind = column.partition(" ")
    kind = kind or types.get(name, "")
    found = _value(value, kind)
    if kind.startswith("MAP"):
        pairs = ", ".join(f"{literal(k)}: {literal(v)}" for k, v in (found or {}).items())
        text = f"MAP {{{pairs}}}" if found is not None else "NULL"
    elif _is_time(kind):
        text = moment(found) if found is not None else "NULL"
    else:
        text = literal(found)
    return f'{text}::{kind} AS "{name}"' if kind else f'{text} AS "{name}"'


def _value(value: Any, kind: str) -> Any:
    """A value of a case file; times as nanoseconds since the epoch."""
    if value == "null":
        return None
    if isinstance(value, list):
        return [_value(item, "") for item in value]
    if _is_time(kind):
        return at(value) if isinstance(value, (int, float)) else _rfc3339(value)
    if (
        isinstance(value, str)
        and value.startswith("+")
        and value.endswith("s")
        and kind != "VARCHAR"
    ):
        return at(float(value[1:-1]))
    return value


def _is_time(kind: str) -> bool:
    return kind.upper() in ("TIMESTAMPTZ_NS", _TIME)


def _rfc3339(text: str) -> int:
    """Nanoseconds since the epoch of ``2026-03-02T10:00:00.123456789Z``."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(whole + "+00:00").timestamp()
    return round(seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _compare(session: Session, model: Model, case: Case, label: str) -> None:
    assert case.expect is not None
    kinds = {row[0]: row[1] for row in session.rows(f"DESCRIBE {model.name}")}
    lacking = set(case.expect.names) - kinds.keys()
    assert not lacking, f"{label}: the model has no column {sorted(lacking)}"
    picked = [
        f'epoch_ns("{n}") AS "{n}"' if _is_time(kinds[n]) else f'"{n}"' for n in case.expect.names
    ]
    found = session.rows(f"SELECT {', '.join(picked)} FROM {model.name}")
    wanted = [
        tuple(_value(v, kinds[n]) for v, n in zip(row, case.expect.names, strict=True))
        for row in case.expect.rows
    ]
    if not case.order:
        found, wanted = sorted(found, key=_place), sorted(wanted, key=_place)
    shown = f"{label}\n  columns  {case.expect.names}\n  found    {found}\n  expected {wanted}"
    assert len(found) == len(wanted), shown
    for here, there in zip(found, wanted, strict=True):
        same = all(_same(a, b) for a, b in zip(here, there, strict=True))
        assert same, f"{shown}\n  differs: {here} is not {there}"


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, float) and isinstance(found, (int, float)):
        return bool(found == pytest.approx(wanted, rel=1e-9, abs=1e-12, nan_ok=True))
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return bool(found == wanted)


def _place(row: tuple[Any, ...]) -> list[str]:
    """Sorts rows alike on both sides: floats by six digits."""
    return [f"{v:.6g}" if isinstance(v, (int, float)) and abs(v) < 1e12 else str(v) for v in row]


def _rows(entry: Mapping[str, Any], label: str) -> Rows:
    assert entry.keys() <= {"columns", "rows"}, f"{label}: only columns and rows"
    columns, rows = tuple(entry["columns"]), tuple(tuple(row) for row in entry.get("rows", ()))
    for row in rows:
        assert len(row) == len(columns), f"{label}: {row} has not {len(columns)} values"
    return Rows(columns=columns, rows=rows)

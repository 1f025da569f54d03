"""``query``: one read-only SELECT over the live files of every table, with the doors shut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from xtune.errors import UsageError, XtuneError
from xtune.lake import REJECTED, Lake
from xtune.pipelines._engine import Session, connect, empty_relation, files_relation, literal
from xtune.tables import TABLES

if TYPE_CHECKING:
    import duckdb


def query(
    lake: Lake, sql: str, *, memory: str | None = None, threads: int | None = None
) -> pa.Table:
    """Run one SELECT; every table, raw, derived or ``rejected``, by its bare name.

    Nothing outside the lake's live files can be read, nothing written, no setting changed.

    Args:
        lake: Where.
        sql: One SELECT (or WITH, FROM, DESCRIBE, SUMMARIZE).
        memory: Most memory DuckDB uses, such as ``2GB``.
        threads: Threads DuckDB uses.

    Raises:
        UsageError: It is not one SELECT.
        XtuneError: DuckDB's message: unknown column with candidates, syntax, and so on.
    """
    import duckdb

    with connect(threads=threads, memory=memory) as session:
        statements = _statements(session, sql)
        paths = []
        for table in (*TABLES.values(), REJECTED):
            files = lake.files(table.name)
            paths += [str(file.path) for file in files]
            relation = (
                files_relation(file.path for file in files) if files else empty_relation(table)
            )
            session.execute(f'CREATE VIEW "{table.bare_name}" AS FROM {relation}')
        session.execute(f"SET allowed_paths = {literal(paths)}")
        session.execute("SET enable_external_access = false")
        session.execute("SET lock_configuration = true")
        try:
            result: pa.Table = session.arrow(statements[0].query)
        except duckdb.Error as error:
            raise XtuneError(_one_line(error)) from error
    return result.rename_columns(_distinct(result.column_names))


def _one_line(error: duckdb.Error) -> str:
    """DuckDB's message without the excerpt of the query that follows it."""
    return " ".join(str(error).partition("\n\nLINE ")[0].split())


def _distinct(names: list[str]) -> list[str]:
    """Column names, repeated ones numbered as DuckDB does for a table: ``a``, ``a_1``."""
    taken = set(names)
    found: list[str] = []
    for name in names:
        number, free = 0, name
        while free in found or (number and free in taken):
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


def _statements(session: Session, sql: str) -> list[duckdb.Statement]:
    import duckdb

    hint = "one SELECT, such as: SELECT * FROM link_rates LIMIT 10"
    try:
        statements = session.connection.extract_statements(sql)
    except duckdb.Error as error:
        raise XtuneError(_one_line(error)) from error
    if len(statements) != 1:
        raise UsageError(f"a query is one statement, not {len(statements)}", hint)
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(f"a query is a SELECT, not {statements[0].type.name}", hint)
    return list(statements)

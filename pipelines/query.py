"""``query``: one read-only SELECT over the live files of every table, with the doors shut."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from xtune.errors import LakeError, UsageError, XtuneError
from xtune.lake import REJECTED, Lake
from xtune.pipelines._engine import Session, connect, empty_relation, files_relation, literal
from xtune.tables import TABLES

if TYPE_CHECKING:
    import duckdb

# Rows that are held at a time.
BATCH_ROWS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a query gives, computed while it is read.

    Attributes:
        columns: Distinct names.
        batches: Its rows; may raise :class:`XtuneError` on the way.
    """

    columns: list[str]
    batches: Iterator[pa.Table]


@contextmanager
def answer(
    lake: Lake, sql: str, *, memory: str | None = None, threads: int | None = None
) -> Iterator[Answer]:
    """Run one SELECT; every table, raw, derived or ``rejected``, by its bare name.

    Nothing outside the lake's live files can be read, nothing written, no setting changed. What
    does not fit into memory goes to a temporary folder of the system's, and is gone at the end.

    Args:
        lake: Where.
        sql: One SELECT (or WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES).
        memory: Most memory DuckDB uses, such as ``2GB``.
        threads: Threads DuckDB uses.

    Raises:
        UsageError: It is not one SELECT.
        LakeError: Files of a table that it names are gone.
        XtuneError: DuckDB's message: unknown column with candidates, syntax, and so on.
    """
    import duckdb

    with (
        tempfile.TemporaryDirectory(prefix="xtune-query-") as scratch,
        connect(threads=threads, memory=memory, scratch=Path(scratch)) as session,
    ):
        statement = _statement(session, sql)
        try:
            _name_tables(session, lake, session.connection.get_table_names(statement.query))
            schema, batches = session.batches(statement.query, BATCH_ROWS)
        except duckdb.Error as error:
            raise XtuneError(_one_line(error)) from error
        columns = _distinct(schema.names)
        yield Answer(columns=columns, batches=_renamed(batches, schema, columns))


def query(
    lake: Lake, sql: str, *, memory: str | None = None, threads: int | None = None
) -> pa.Table:
    """All rows of :func:`answer` at once."""
    with answer(lake, sql, memory=memory, threads=threads) as found:
        return pa.concat_tables(found.batches)


def _name_tables(session: Session, lake: Lake, asked: Collection[str]) -> None:
    """A view of each table's live files; then nothing else can be opened.

    Raises:
        LakeError: Files of a table that is ``asked`` for are gone.
    """
    paths = []
    for table in (*TABLES.values(), REJECTED):
        files = lake.files(table.name)
        gone = [file for file in files if not file.path.exists()]
        if gone and table.bare_name in asked:
            raise LakeError(
                f"{table.bare_name}: {len(gone)} of {len(files)} files are missing,"
                f" such as {gone[0].path}",
                "run xtune rebuild" if table.derived else "restore them from a backup",
            )
        whole = files and not gone
        paths += [str(file.path) for file in files] if whole else []
        relation = files_relation(file.path for file in files) if whole else empty_relation(table)
        session.execute(f'CREATE VIEW "{table.bare_name}" AS FROM {relation}')
    session.execute("SET python_enable_replacements = false")
    session.execute(f"SET allowed_paths = {literal(paths)}")
    session.execute("SET enable_external_access = false")
    session.execute("SET lock_configuration = true")


def _renamed(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, columns: list[str]
) -> Iterator[pa.Table]:
    """Batches under distinct names; one without rows where there is none."""
    empty = True
    try:
        for batch in batches:
            empty = False
            yield pa.Table.from_batches([batch]).rename_columns(columns)
    except (OSError, pa.ArrowException) as error:  # as what DuckDB's errors come through Arrow
        raise XtuneError(_one_line(error)) from error
    if empty:
        yield schema.empty_table().rename_columns(columns)


def _one_line(error: Exception) -> str:
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


def _statement(session: Session, sql: str) -> duckdb.Statement:
    import duckdb

    hint = "one SELECT, such as: SELECT * FROM link_rates LIMIT 10"
    try:
        statements = session.connection.extract_statements(sql)
    except duckdb.Error as error:
        raise XtuneError(_one_line(error)) from error
    if len(statements) != 1:
        raise UsageError(f"a query is one statement, not {len(statements)}", hint)
    if statements[0].type == duckdb.StatementType.MULTI:
        raise UsageError(
            "a PIVOT that looks for its columns is several statements",
            "name them: PIVOT episodes ON cause IN ('incast', 'sick_link') USING count(*)",
        )
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(f"a query is a SELECT, not {statements[0].type.name}", hint)
    return statements[0]

"""The DuckDB side: connections, and models bound, run and audited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from xtune.errors import XtuneError
from xtune.pipelines._model import Audit, Model, load_model, macros
from xtune.tables import Table

if TYPE_CHECKING:
    import duckdb

_DUCK_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("ns", tz="UTC"): "TIMESTAMPTZ_NS",
}


def connect(
    *, threads: int | None = None, memory_limit: str | None = None, scratch: Path | None = None
) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that keeps the order of rows and spills to ``scratch``.

    Args:
        threads: DuckDB's own default (all cores) where None.
        memory_limit: Such as ``2GB``; DuckDB's own default (80 % of memory) where None.
        scratch: Folder for what does not fit into memory.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    settings: dict[str, Any] = {
        "enable_progress_bar": False,
        "TimeZone": "UTC",
        # Streaming windows see rows in the order of the file.
        "preserve_insertion_order": True,
        # A join's right side is the small one, always: its left side keeps its order.
        "disabled_optimizers": "join_order,build_side_probe_side",
    }
    if threads is not None:
        settings["threads"] = threads
    if memory_limit is not None:
        settings["memory_limit"] = memory_limit
    if scratch is not None:
        settings["temp_directory"] = str(scratch)
    for name, value in settings.items():
        connection.execute(f"SET {name} = {literal(value)}")
    connection.execute(macros())
    return connection


def literal(value: Any) -> str:
    """A SQL literal of a string, number, boolean, None, sequence or mapping."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}::DOUBLE"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    text = str(value).replace("'", "''")
    return f"'{text}'"


def set_variables(connection: duckdb.DuckDBPyConnection, values: Mapping[str, Any]) -> None:
    """Give models their parameters: ``getvariable('name')``."""
    for name, value in values.items():
        connection.execute(f"SET VARIABLE {name} = {literal(value)}")


def files_relation(paths: Iterable[Path]) -> str:
    """A FROM item that reads Parquet files, in the order given."""
    return f"read_parquet({literal([str(path) for path in paths])}, hive_partitioning = false)"


def empty_relation(table: Table) -> str:
    """A FROM item with the columns of a table and no row."""
    columns = ", ".join(f'NULL::{duck_type(f.type)} AS "{f.name}"' for f in table.schema)
    return f"(SELECT {columns} WHERE false)"


def with_inputs(sql: str, **relations: str) -> str:
    """A model's SELECT over other relations than those it names."""
    named = ", ".join(f"{name} AS (FROM {relation})" for name, relation in relations.items())
    return f"WITH {named} FROM ({sql}\n)"


def duck_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type of the table contracts."""
    if pa.types.is_list(kind):
        return f"{duck_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({duck_type(kind.key_type)}, {duck_type(kind.item_type)})"
    return _DUCK_TYPES[kind]


def bind(connection: duckdb.DuckDBPyConnection, name: str) -> Model:
    """Bind a model without running it, and hold it against the table contract.

    Raises:
        XtuneError: It does not bind, or its columns are not the contract's.
    """
    import duckdb

    model = load_model(name)
    try:
        found = [(r[0], r[1]) for r in connection.execute(f"DESCRIBE {model.sql}").fetchall()]
    except duckdb.Error as error:
        raise XtuneError(f"model {name} does not bind: {error}") from error
    if model.table is not None:
        wanted = [(f.name, duck_type(f.type)) for f in model.table.schema]
        if found != wanted:
            wrong = sorted(set(found) ^ set(wanted)) or "the order of columns"
            raise XtuneError(f"model {name} does not give the columns of its table: {wrong}")
    return model


def create(connection: duckdb.DuckDBPyConnection, name: str, *, kind: str = "TABLE") -> Model:
    """Bind a model and keep its rows as a temporary relation of its name, audited if a TABLE."""
    model = bind(connection, name)
    connection.execute(f"CREATE OR REPLACE TEMP {kind} {name} AS {model.sql}")
    if kind == "TABLE":
        audit(connection, model, name)
    return model


def copy(
    connection: duckdb.DuckDBPyConnection, query: str, path: Path, metadata: Mapping[str, str]
) -> int:
    """Write a query's rows to a Parquet file, in order; the number of rows."""
    rows = connection.execute(
        f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd,"
        f" KV_METADATA {literal(dict(metadata))})"
    ).fetchall()
    return int(rows[0][0])


def audit(connection: duckdb.DuckDBPyConnection, model: Model, relation: str) -> None:
    """Check what a model promises of its rows.

    Raises:
        XtuneError: One line: the model, the audit, how many rows break it and one of them.
    """
    for check in model.audits:
        query = _breaking(check, relation)
        # All rows are fetched everywhere: a half-read result blocks its connection.
        [(count, example)] = connection.execute(
            f"SELECT count(*), any_value(broken) FROM ({query})"
        ).fetchall()
        if count:
            raise XtuneError(
                f"model {model.name}: {count} rows break {check}, such as {example}",
                "this is a fault in the pipeline or a table edited by hand: run rebuild again",
            )


def _breaking(check: Audit, relation: str) -> str:
    columns = ", ".join(check.arguments)
    if check.kind == "key":
        return (
            f"SELECT row({columns})::VARCHAR AS broken FROM {relation}"
            f" GROUP BY {columns} HAVING count(*) > 1"
        )
    if check.kind == "sorted_key":
        return (
            f"SELECT here::VARCHAR AS broken FROM (SELECT row({columns}) AS here,"
            f" lag(row({columns})) OVER () AS before FROM {relation}) WHERE before >= here"
        )
    if check.kind == "not_null":
        tests = " OR ".join(f"{c} IS NULL" for c in check.arguments)
        return f"SELECT 'a null' AS broken FROM {relation} WHERE {tests}"
    if check.kind == "range":
        column, low, high = check.arguments
        under = f"{column} < {low}" if low != ".." else "false"
        over = f"{column} > {high}" if high != ".." else "false"
        return f"SELECT {column}::VARCHAR AS broken FROM {relation} WHERE {under} OR {over}"
    raise XtuneError(f"there is no audit {check.kind}")

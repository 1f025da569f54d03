"""The DuckDB side: connections, and models bound, run and audited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from xtune.errors import XtuneError
from xtune.pipelines._model import Audit, Model, load_model, macros
from xtune.tables import Table

if TYPE_CHECKING:
    import duckdb

Result = TypeVar("Result")
# Names of schemas, of whatever database.
_NUMBERS = count(1)

_DUCK_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("ns", tz="UTC"): "TIMESTAMPTZ_NS",
}


@dataclass(kw_only=True)
class Session:
    """An in-memory DuckDB for one rebuild or query; a context manager that closes it.

    Attributes:
        connection: DuckDB's own. All rows of a result are fetched before the next statement: a
            half-read result blocks the connection.
        threads: Threads that DuckDB uses.
        bound: Models that have been held against their contract.
        variables: Values of ``getvariable('name')``.
        schema: Where its relations are; macros are in ``main``.
    """

    connection: duckdb.DuckDBPyConnection
    threads: int = 1
    bound: set[str] = field(default_factory=set)
    variables: dict[str, Any] = field(default_factory=dict)
    schema: str = "main"
    _drops: bool = False
    _constants: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()
        if self._drops:
            self.connection.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self.connection.close()

    def execute(self, sql: str) -> None:
        """Run a statement for its effect."""
        self._run(lambda: self.connection.execute(sql))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        return self._run(lambda: self.connection.sql(sql).fetchall())

    def arrow(self, sql: str) -> pa.Table:
        """Rows of a query as Arrow."""
        return self._run(lambda: self.connection.sql(sql).to_arrow_table())

    def batches(self, sql: str, rows: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Rows of a query as Arrow batches of so many rows, computed while they are read.

        No other statement may run before the last batch.
        """
        reader = self._run(lambda: self.connection.sql(sql).to_arrow_reader(rows))

        def read() -> Iterator[pa.RecordBatch]:
            while (batch := self._run(lambda: next(reader, None))) is not None:
                yield batch

        return reader.schema, read()

    def set_variables(self, values: Mapping[str, Any]) -> None:
        """Give models their parameters: ``getvariable('name')``."""
        known = {name: literal(value) for name, value in self.variables.items()}
        wanted = {name: literal(value) for name, value in values.items()}
        changed = [
            f"SET VARIABLE {k} = {text}" for k, text in wanted.items() if known.get(k) != text
        ]
        if changed:
            self.execute(";".join(changed))
        self.variables |= values

    def constants(self, sql: str) -> tuple[Any, ...]:
        """The one row of a query over nothing but variables; kept as long as they stay."""
        key = sql, literal(self.variables)
        if key not in self._constants:
            [self._constants[key]] = self.rows(sql)
        return self._constants[key]

    def beside(self) -> Session:
        """Another session over the same relations, for another Python thread."""
        other = Session(connection=self.connection.cursor(), bound=self.bound, schema=self.schema)
        return other._begin(self.variables)

    def apart(self, variables: Mapping[str, Any]) -> Session:
        """A session of the same database without a relation; cheaper than a database by far.

        Args:
            variables: All its values of ``getvariable('name')``.
        """
        other = Session(
            connection=self.connection.cursor(),
            threads=self.threads,
            bound=self.bound,
            schema=f"apart_{next(_NUMBERS)}",
            _drops=True,
        )
        other.execute(f"CREATE SCHEMA {other.schema}")
        return other._begin(variables)

    def _begin(self, variables: Mapping[str, Any]) -> Session:
        """Set what each connection to a database has for itself."""
        path = f"{self.schema},main"
        self.execute(f"SET search_path = {literal(path)}; SET enable_progress_bar = false")
        self.set_variables(variables)
        return self

    def view(self, name: str, query: str) -> None:
        """Name a query."""
        self.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")

    def table(self, name: str, query: str) -> None:
        """Keep a query's rows under a name."""
        self.execute(f"CREATE OR REPLACE TABLE {name} AS {query}")

    def load(self, name: str, rows: pa.Table) -> None:
        """Keep Arrow rows under a name."""
        self.connection.register("from_arrow", rows)
        self.table(name, "FROM from_arrow")
        self.connection.unregister("from_arrow")

    def bind(self, name: str) -> Model:
        """Bind a model without running it, once, and hold it against the table contract.

        Raises:
            XtuneError: It does not bind, or its columns are not the contract's.
        """
        import duckdb

        model = load_model(name)
        try:
            self._hold(model, model.sql)
        except duckdb.Error as error:
            raise XtuneError(f"model {name} does not bind: {error}") from error
        return model

    def _hold(self, model: Model, rows: str) -> None:
        """Hold the columns of a model's rows against the table contract, once."""
        if model.name in self.bound:
            return
        found = [(row[0], row[1]) for row in self.rows(f"DESCRIBE {rows}")]
        if model.table is not None:
            wanted = [(f.name, duck_type(f.type)) for f in model.table.schema]
            if found != wanted:
                wrong = sorted(set(found) ^ set(wanted)) or "the order of columns"
                raise XtuneError(
                    f"model {model.name} does not give the columns of its table: {wrong}"
                )
        self.bound.add(model.name)

    def create(self, name: str) -> None:
        """Run a model; its rows are kept under its name, and audited.

        Raises:
            XtuneError: As :meth:`bind` and :meth:`audit`.
        """
        import duckdb

        model = load_model(name)
        try:
            self.table(name, model.sql)
        except duckdb.Error:
            self.bind(name)  # says so where that is why
            raise
        self._hold(model, name)
        self.audit(model, name)

    def copy(self, query: str, path: Path, metadata: Mapping[str, str]) -> int:
        """Write a query's rows to a Parquet file, in order; the number of rows.

        Version 2 keeps counters as differences: smaller, and read in half the time.
        """
        sql = (
            f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, PARQUET_VERSION v2,"
            f" COMPRESSION zstd, KV_METADATA {literal(dict(metadata))})"
        )
        [(rows,)] = self._run(lambda: self.connection.execute(sql).fetchall())
        return int(rows)

    def _run(self, statement: Callable[[], Result]) -> Result:
        """Run a statement so that Ctrl-C ends it at once.

        The thread that waits for DuckDB inside DuckDB sees no signal until a task of the
        statement ends, and then as a RuntimeError; so the statement has a thread of its own.
        """
        running = self._thread.submit(statement)
        try:
            return running.result()
        except KeyboardInterrupt:
            self.connection.interrupt()
            wait([running])
            raise

    def audit(self, model: Model, relation: str) -> None:
        """Check what a model promises of its rows: checks of single rows in one scan.

        Raises:
            XtuneError: One line: the model, the audit, how many rows break it and one of them.
        """
        single = [check for check in model.audits if check.kind in _OF_ONE_ROW]
        suspects = [check for check in model.audits if check.kind not in _OF_ONE_ROW]
        if single:
            counts = ", ".join(f"count(*) FILTER (WHERE {_breaks(check)})" for check in single)
            [found] = self.rows(f"SELECT {counts} FROM {relation}")
            suspects += [check for check, n in zip(single, found, strict=True) if n]
        for check in suspects:
            query = _breaking(check, relation)
            [(rows, example)] = self.rows(f"SELECT count(*), any_value(broken) FROM ({query})")
            if rows:
                raise XtuneError(
                    f"model {model.name}: {rows} rows break {check}, such as {example}",
                    "a fault in the pipeline, or a table edited by hand: run rebuild again",
                )


def connect(
    *, threads: int | None = None, memory: str | None = None, scratch: Path | None = None
) -> Session:
    """An in-memory DuckDB that keeps the order of rows and spills to ``scratch``.

    Args:
        threads: Of DuckDB, and of Arrow in this process; the default (all cores) where None.
        memory: Such as ``2GB``; DuckDB's own default (80 % of memory) where None.
        scratch: Folder for what does not fit into memory.
    """
    import duckdb

    session = Session(connection=duckdb.connect(":memory:"))
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
        pa.set_cpu_count(threads)
    if memory is not None:
        settings["memory_limit"] = memory
    if scratch is not None:
        settings["temp_directory"] = str(scratch)
    for name, value in settings.items():
        session.execute(f"SET {name} = {literal(value)}")
    session.execute(macros())
    [(session.threads,)] = session.rows("SELECT current_setting('threads')")
    return session


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


def moment(ns: int) -> str:
    """A SQL literal of a time, nanoseconds since the epoch."""
    return f"make_timestamp_ns({ns})::TIMESTAMPTZ_NS"


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


_OF_ONE_ROW = ("not_null", "range")


def _breaks(check: Audit) -> str:
    """Condition that a row breaks a check of single rows."""
    if check.kind == "not_null":
        return " OR ".join(f"{column} IS NULL" for column in check.arguments)
    column, low, high = check.arguments
    under = f"{column} < {low}" if low != ".." else "false"
    over = f"{column} > {high}" if high != ".." else "false"
    return f"{under} OR {over}"


def _breaking(check: Audit, relation: str) -> str:
    """Query of the rows, or keys, that break a check."""
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
    if check.kind == "range":
        columns = check.arguments[0]
    return f"SELECT row({columns})::VARCHAR AS broken FROM {relation} WHERE {_breaks(check)}"

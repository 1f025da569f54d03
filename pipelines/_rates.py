"""Runs ``link_rates`` over one chunk: samples in order, what came before, rates, runs, carry."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from xtune.lake import Lake
from xtune.pipelines._chunks import Chunk
from xtune.pipelines._engine import (
    Session,
    duck_type,
    files_relation,
    literal,
    moment,
    with_inputs,
)
from xtune.pipelines._identity import DEFAULT_TICK, PortFacts
from xtune.pipelines._model import load_model
from xtune.tables import LINK_RATES

_FACTS = pa.schema(
    [
        ("raw_link", pa.string()),
        ("link", pa.string()),
        ("rate_gbps", pa.float64()),
        ("tick", pa.float64()),
        ("ethernet", pa.bool_()),
    ]
)
# Rows that are worth a thread of their own.
PART_ROWS = 500_000
# Rows that are enough to see a wrong unit.
PROBE_ROWS = 20_000
_FIGURES = [c.name for c in LINK_RATES.columns if c.name not in ("link", "level")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkInput:
    """What one chunk is computed from.

    Attributes:
        chunk: Its span and raw files.
        facts: Raw link of these files -> what is known of its port.
        null_rate: Whether a row lacks its port's rate.
        deltas: Whether a row holds deltas.
        carry: What the chunk before handed on; None for the first.
        low: First link (one name) of the range that is computed; None for the first of all.
        high: First link after it; None for no end. ``facts`` and ``carry`` are the range's.
    """

    chunk: Chunk
    facts: Mapping[str, PortFacts]
    null_rate: bool
    deltas: bool
    carry: pa.Table | None
    low: str | None = None
    high: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkResult:
    """What one chunk gives.

    Attributes:
        files: Its ``link_rates``, not yet in the lake, by rising link.
        rows: Rows in them.
        runs: Stretches within it, by kind (model ``link_runs``).
        carry: For each link so far, its last sample, level and until when that is known.
    """

    files: tuple[Path, ...]
    rows: int
    runs: pa.Table
    carry: pa.Table


def run_chunk(lake: Lake, session: Session, given: ChunkInput) -> ChunkResult:
    """Compute one chunk; the rules are variables of ``session`` already."""
    scratch = lake.scratch("derived/link_rates")
    _load(session, given)
    sorted_file = _samples(session, given, scratch)
    _seed(session)
    model = session.bind("link_rates")
    paths, rows = _write_rates(lake, session, given, scratch)
    session.view("rates", f"FROM {files_relation(paths)}")
    session.audit(model, "rates")
    session.create("link_runs")
    runs = session.arrow("FROM link_runs ORDER BY ALL")
    carry = session.arrow(_CARRY_OUT)
    if not rows:
        for path in paths:
            path.unlink()
    if sorted_file is not None:
        sorted_file.unlink()
    return ChunkResult(files=tuple(paths) if rows else (), rows=rows, runs=runs, carry=carry)


def _write_rates(
    lake: Lake, session: Session, given: ChunkInput, scratch: Path
) -> tuple[list[Path], int]:
    """Run ``link_rates``, in a thread for each part of the links where there is enough to do.

    A stream in order is the work of one thread, so parts make use of the others.
    """
    links = [row[0] for row in session.rows("SELECT link FROM firsts ORDER BY link")]
    rows = sum(file.rows for file in given.chunk.files)
    parts = max(1, min(session.threads, rows // PART_ROWS, len(links)))
    bounds = [links[len(links) * part // parts] for part in range(1, parts)]
    tests = [
        " AND ".join(
            [f"link >= {literal(low)}"] * (low is not None)
            + [f"link < {literal(high)}"] * (high is not None)
        )
        or "true"
        for low, high in zip([None, *bounds], [*bounds, None], strict=True)
    ]
    paths = [scratch / f"{given.chunk.key}.{part}.parquet.tmp" for part in range(parts)]
    sql, metadata = load_model("link_rates").sql, lake.metadata("derived/link_rates")

    def write(part: int) -> int:
        query = with_inputs(sql, samples=f"all_samples WHERE {tests[part]}")
        return beside[part].copy(query, paths[part], metadata)

    with ExitStack() as stack:
        beside = [stack.enter_context(session.beside()) for _ in paths]
        pool = stack.enter_context(ThreadPoolExecutor(parts))
        try:
            return paths, sum(pool.map(write, range(parts)))
        except BaseException:
            for other in beside:
                other.connection.interrupt()
            raise


def _load(session: Session, given: ChunkInput) -> None:
    """Relations ``raw``, ``port_facts`` and ``carry``."""
    chunk = given.chunk
    load_facts(session, given.facts)
    session.view(
        "raw",
        "SELECT * EXCLUDE (host, device, port, node_guid, labels, extra)"
        f" FROM {files_relation(file.path for file in chunk.files)} WHERE link IS NOT NULL"
        f" AND ts >= {moment(chunk.start_ns)} AND ts < {moment(chunk.end_ns)}"
        + _range_test(given),
    )
    session.set_variables({"tick": DEFAULT_TICK, "rate_gbps": None, "ethernet": False})
    load_carry(session, given.carry)


def _range_test(given: ChunkInput) -> str:
    """Condition of ``raw`` that keeps the links of the range, whatever sources called them."""
    if given.low is None and given.high is None:
        return ""
    if any(raw != port.link for raw, port in given.facts.items()):
        return " AND link IN (SELECT raw_link FROM port_facts)"
    return "".join(
        [f" AND link >= {literal(given.low)}"] * (given.low is not None)
        + [f" AND link < {literal(given.high)}"] * (given.high is not None)
    )


def load_carry(session: Session, carry: pa.Table | None) -> None:
    """Make ``carry``: what came before, or nothing; ``raw`` and its variables are there."""
    if carry is not None:
        session.load("carry", carry)
        return
    sample = session.bind("samples_direct").sql
    session.table(
        "carry",
        "SELECT *, NULL::INTEGER AS level, NULL::BIGINT AS known_end_ns"
        f" FROM ({sample}) WHERE false",
    )


def load_facts(session: Session, facts: Mapping[str, PortFacts]) -> None:
    """Make ``port_facts``: what is known of the port behind each raw link."""
    rows = [
        {
            "raw_link": raw,
            "link": port.link,
            "rate_gbps": port.rate_gbps,
            "tick": port.tick,
            "ethernet": port.ethernet,
        }
        for raw, port in facts.items()
    ]
    session.load("port_facts", pa.Table.from_pylist(rows, schema=_FACTS))


def _samples(session: Session, given: ChunkInput, scratch: Path) -> Path | None:
    """Make ``samples``, sorted by (link, ts) without duplicates, and ``firsts`` and ``lasts``.

    ``firsts`` are each link's first sample, ``lasts`` its last absolute one; ``probe`` is what of
    ``raw`` the packet check looks at.

    Returns:
        The file that had to be written for that; None where a compacted one serves as it is.
    """
    kinds = {(port.tick, port.ethernet) for port in given.facts.values()}
    rates = {port.rate_gbps for port in given.facts.values()}
    direct = (
        not given.deltas
        and len(given.chunk.files) == 1
        and given.chunk.files[0].compacted
        and all(raw == port.link for raw, port in given.facts.items())
        and len(kinds) <= 1
        and (len(rates) <= 1 or not given.null_rate)
        and _in_order(session)
    )
    if not direct:
        return _merged_samples(session, given, scratch)
    tick, ethernet = next(iter(kinds), (DEFAULT_TICK, False))
    rate = next(iter(rates)) if len(rates) == 1 else None
    session.set_variables({"tick": tick, "ethernet": ethernet, "rate_gbps": rate})
    sql = session.bind("samples_direct").sql
    session.view("all_samples", sql)
    session.view("samples", "FROM all_samples")
    session.table("edges", _EDGES.format("all_samples"))
    for name in ("first", "last"):
        session.table(f"{name}s", f"SELECT * EXCLUDE (first, last) FROM edges WHERE {name}")
    [file] = given.chunk.files
    every = max(1, file.rows // PROBE_ROWS)
    session.view(
        "probe",
        f"FROM read_parquet({literal(str(file.path))}, file_row_number = true)"
        f" WHERE file_row_number % {every} = 0",
    )
    return None


def _merged_samples(session: Session, given: ChunkInput, scratch: Path) -> Path:
    path = scratch / f"{given.chunk.key}.samples.tmp"
    model = session.bind("samples_merged")
    session.copy(model.sql, path, {})
    relation = files_relation([path])
    session.audit(model, relation)
    session.view("all_samples", f"SELECT * EXCLUDE (used, is_delta) FROM {relation} WHERE used")
    session.view("samples", "FROM all_samples")
    session.view(
        "absolute", f"SELECT * EXCLUDE (used, is_delta) FROM {relation} WHERE NOT is_delta"
    )
    for name, source in (("first", "samples"), ("last", "absolute")):
        edges = _EDGES.format(source)
        session.table(f"{name}s", f"SELECT * EXCLUDE (first, last) FROM ({edges}) WHERE {name}")
    session.view("probe", "FROM raw")
    return path


# Each link's first and last row of a relation sorted by link.
_EDGES = """
    FROM (
        SELECT
            *,
            lag(link) OVER () IS DISTINCT FROM link AS first,
            lead(link) OVER () IS DISTINCT FROM link AS last
        FROM {}
    )
    WHERE first OR last
"""


def _in_order(session: Session) -> bool:
    """Whether ``raw`` as it is read is sorted by (link, ts) without a duplicate."""
    [(count,)] = session.rows(
        "SELECT count(*) FROM (SELECT link, ts, lag(link) OVER () AS p_link,"
        " lag(ts) OVER () AS p_ts FROM raw)"
        " WHERE p_link > link OR (p_link = link AND p_ts >= ts)"
    )
    return bool(count == 0)


def _seed(session: Session) -> None:
    """Make ``seed``: the interval from each link's carried sample to its first one here.

    The same model computes it, over two rows a link.
    """
    session.table(
        "edge_samples",
        "FROM (SELECT * EXCLUDE (level, known_end_ns) FROM carry"
        " WHERE ts IS NOT NULL AND link IN (SELECT link FROM firsts)"
        " UNION ALL BY NAME FROM firsts) ORDER BY link, ts",
    )
    schema = LINK_RATES.schema
    nothing = [f"NULL::{duck_type(schema.field(name).type)} AS {name}" for name in _FIGURES]
    session.table(
        "edge_seed",
        f"SELECT link, level, known_end_ns, {', '.join(nothing)}, NULL::INTEGER AS first_level"
        " FROM carry",
    )
    sql = with_inputs(load_model("link_rates").sql, samples="edge_samples", seed="edge_seed")
    session.table("edge", sql)
    session.table(
        "seed",
        "SELECT firsts.link, coalesce(edge.level, carry.level) AS level,"
        " CASE WHEN edge.level IS NOT NULL THEN epoch_ns(edge.ts) ELSE carry.known_end_ns END"
        f" AS known_end_ns, {', '.join(f'edge.{name}' for name in _FIGURES)},"
        " edge.level AS first_level"
        " FROM firsts LEFT JOIN edge ON edge.link = firsts.link"
        " LEFT JOIN carry ON carry.link = firsts.link",
    )


# Each link's last absolute sample and last known level, from here or carried through.
_CARRY_OUT = """
    WITH last_level AS (
        SELECT link, epoch_ns(max(ts)) AS known_end_ns, arg_max(level, ts) AS level
        FROM rates WHERE level IS NOT NULL GROUP BY link
    ),
    kept AS (
        FROM lasts
        UNION ALL BY NAME
        SELECT * EXCLUDE (level, known_end_ns) FROM carry
        WHERE ts IS NOT NULL AND link NOT IN (SELECT link FROM lasts)
    ),
    links AS (
        SELECT link FROM kept UNION SELECT link FROM last_level UNION SELECT link FROM carry
    )
    SELECT
        kept.* REPLACE (links.link AS link),
        coalesce(last_level.level, carry.level) AS level,
        coalesce(last_level.known_end_ns, carry.known_end_ns) AS known_end_ns
    FROM links
    LEFT JOIN kept ON kept.link = links.link
    LEFT JOIN last_level ON last_level.link = links.link
    LEFT JOIN carry ON carry.link = links.link
    ORDER BY links.link
"""

"""``samples``: the counters of one chunk in one unit, in order, and what came before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xtune.pipelines._chunks import Chunk
from xtune.pipelines._engine import Session, files_relation, literal, moment
from xtune.pipelines._identity import DEFAULT_TICK, PortFacts
from xtune.tables import list_of

_TS = pa.timestamp("ns", tz="UTC")
_COUNTERS = [
    ("tx_bytes", pa.int64()),
    ("rx_bytes", pa.int64()),
    ("wait_ticks", pa.int64()),
    ("discards", pa.int64()),
    ("pause_us", pa.int64()),
    ("tx_pause_us", pa.int64()),
    ("errors", pa.int64()),
    ("errors_present", pa.int8()),
    ("symbols", pa.int64()),
    ("marks", pa.int64()),
    ("marks_present", pa.int8()),
    ("cnps", pa.int64()),
    ("resent", pa.int64()),
    ("resent_present", pa.int8()),
]
#: A row of ``samples_direct`` without its link.
SAMPLE = pa.schema(
    [
        ("ts", _TS),
        ("restarts", pa.bool_()),
        ("data_rate_bytes_s", pa.float64()),
        ("tick", pa.float64()),
        *_COUNTERS,
    ]
)
#: What a chunk hands to the next, a row a link: its last absolute sample, the one before it, the
#: level and until when that is known. A link without an absolute sample has no ts.
CARRY = pa.schema(
    [
        ("link", pa.string()),
        *((field.name, field.type) for field in SAMPLE),
        ("before", pa.struct(list(SAMPLE))),
        ("level", pa.int32()),
        ("known_end_ns", pa.int64()),
    ]
)
_SHIFT = pa.struct([(name, pa.int64()) for name in ("from_ns", "to_ns", "offset_ns")])
_FACTS = pa.schema(
    [
        ("raw_link", pa.string()),
        ("link", pa.string()),
        ("rate_gbps", pa.float64()),
        ("tick", pa.float64()),
        ("ethernet", pa.bool_()),
        ("shifts", list_of(_SHIFT)),
    ]
)
_PACKETS = (
    "port_xmit_packets",
    "unicast_xmit_packets",
    "port_rcv_packets",
    "unicast_rcv_packets",
)
# Rows that are enough to see a wrong unit.
PROBE_ROWS = 20_000


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


def load_inputs(session: Session, given: ChunkInput) -> None:
    """Make ``raw``, ``port_facts`` and ``carry``."""
    chunk = given.chunk
    load_facts(session, given.facts)
    session.set_variables({"tick": DEFAULT_TICK, "rate_gbps": None, "ethernet": False})
    load_carry(session, given.carry)
    session.view(
        "raw",
        "SELECT * EXCLUDE (device, port, node_guid, labels, extra)"
        f" FROM {files_relation(file.path for file in chunk.files)} WHERE link IS NOT NULL"
        f" AND ts >= {moment(chunk.start_ns)} AND ts < {moment(chunk.end_ns)}"
        + _range_test(given),
    )


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
    """Make ``carry``: what came before, or nothing."""
    session.load("carry", CARRY.empty_table())
    if carry is not None:
        session.load("handed_on", carry)
        session.execute("INSERT INTO carry BY NAME FROM handed_on")


def load_facts(session: Session, facts: Mapping[str, PortFacts]) -> None:
    """Make ``port_facts``: what is known of the port behind each raw link."""
    rows = [
        {
            "raw_link": raw,
            "link": port.link,
            "rate_gbps": port.rate_gbps,
            "tick": port.tick,
            "ethernet": port.ethernet,
            "shifts": [dict(zip(_SHIFT.names, s, strict=True)) for s in port.shifts] or None,
        }
        for raw, port in facts.items()
    ]
    session.load("port_facts", pa.Table.from_pylist(rows, schema=_FACTS))


def check_units(session: Session, given: ChunkInput) -> list[dict[str, Any]]:
    """Rows of ``packet_check``, of some rows of the chunk's files; those misread stay a variable.

    The rows are the same whatever range of links is computed, so that all ranges agree.
    """
    chunk = given.chunk
    paths = [str(file.path) for file in chunk.files]
    every = max(1, sum(file.rows for file in chunk.files) // PROBE_ROWS)
    found: list[dict[str, Any]] = []
    if any(_has_packets(file.path) for file in chunk.files):
        session.view(
            "probe",
            f"FROM read_parquet({literal(paths)}, hive_partitioning = false,"
            f" file_row_number = true) WHERE file_row_number % {every} = 0"
            f" AND ts >= {moment(chunk.start_ns)} AND ts < {moment(chunk.end_ns)}",
        )
        session.create("packet_check")
        found = session.arrow("FROM packet_check").to_pylist()
    misread = sorted(
        f"{row['source'] or ''}/{row['direction']}" for row in found if row["misread"]
    )
    session.set_variables({"misread": misread})
    return found


def _has_packets(path: Path) -> bool:
    """Whether a file may have counters of packets: without, nothing can be checked."""
    metadata = metadata_of(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        if metadata.schema.column(index).path in _PACKETS:
            found = [(g.column(index).statistics, g.num_rows) for g in groups]
            if any(s is None or not s.has_null_count or s.null_count < n for s, n in found):
                return True
    return False


def metadata_of(path: Path) -> Any:
    """Footer of a Parquet file; of the last few files it is read and parsed once."""
    stat = path.stat()
    return _metadata(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _metadata(path: Path, *version: int) -> Any:
    return pq.read_metadata(path)


def merge(session: Session, given: ChunkInput, path: Path) -> None:
    """Write the chunk's samples to ``path``, whatever its files are like; audited."""
    model = session.bind("samples_merged")
    session.copy(model.sql, path, {})
    session.audit(model, files_relation([path]))


def make_samples(session: Session, path: Path) -> None:
    """Make ``samples`` of what was merged into ``path``, each link's carry before its own."""
    merged = f"read_parquet({literal(str(path))}, file_row_number = true)"
    session.view("absolute", f"SELECT * EXCLUDE (used, is_delta) FROM {merged} WHERE NOT is_delta")
    session.view(
        "samples",
        "SELECT * EXCLUDE (file_row_number) FROM ("
        f" SELECT * EXCLUDE (used, is_delta), false AS carried FROM {merged} WHERE used"
        " UNION ALL BY NAME"
        " SELECT * EXCLUDE (before), true AS carried, -1 AS file_row_number FROM carry"
        " UNION ALL BY NAME"
        " SELECT link, before.*, true AS carried, -2 AS file_row_number FROM carry"
        " WHERE before IS NOT NULL"
        ") ORDER BY link, file_row_number",
    )


# Each link's last two absolute samples and last known level, from here or carried through.
CARRY_OUT = f"""
    WITH last_level AS (
        SELECT link, max(end_ns) AS known_end_ns, arg_max(level, end_ns) AS level
        FROM link_levels WHERE level IS NOT NULL GROUP BY link
    ),
    absolutes AS (
        SELECT link, {", ".join(SAMPLE.names)}, file_row_number AS place FROM absolute
        UNION ALL
        SELECT link, {", ".join(SAMPLE.names)}, -1 FROM carry WHERE ts IS NOT NULL
        UNION ALL
        SELECT link, before.*, -2 FROM carry WHERE before IS NOT NULL
    ),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY link ORDER BY place DESC) AS back
        FROM absolutes
    ),
    links AS (SELECT link FROM absolutes UNION SELECT link FROM last_level UNION
        SELECT link FROM carry)
    SELECT
        links.link,
        {", ".join(f"last.{name}" for name in SAMPLE.names)},
        CASE WHEN earlier.link IS NOT NULL THEN
            struct_pack({", ".join(f"{name} := earlier.{name}" for name in SAMPLE.names)})
        END AS before,
        coalesce(last_level.level, carry.level) AS level,
        coalesce(last_level.known_end_ns, carry.known_end_ns) AS known_end_ns
    FROM links
    LEFT JOIN (FROM ranked WHERE back = 1) AS last ON last.link = links.link
    LEFT JOIN (FROM ranked WHERE back = 2) AS earlier ON earlier.link = links.link
    LEFT JOIN last_level ON last_level.link = links.link
    LEFT JOIN carry ON carry.link = links.link
    ORDER BY links.link
"""

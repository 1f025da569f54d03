"""``link_totals``: what each port counted since its counters were cleared."""

from __future__ import annotations

from xtune.lake import Lake
from xtune.pipelines._chunks import by_time
from xtune.pipelines._engine import Session, empty_relation, files_relation
from xtune.pipelines._identity import DEFAULT_TICK, Identity
from xtune.pipelines._samples import load_carry, load_facts
from xtune.pipelines._state import State
from xtune.pipelines._tables import DayInput, DayTable
from xtune.tables import TABLES

_COUNTERS = TABLES["link_counters"]


def _prepare(given: DayInput) -> list[str]:
    """Make ``readings``: each port's last absolute sample, and one without a time if it has one.

    Those with a time were handed on from partition to partition of ``link_rates``: nothing is read
    again for them.
    """
    session = given.session
    _load_undated(session, given.lake, given.identity)
    columns = "* EXCLUDE (used, is_delta)"
    samples = session.bind("samples_merged").sql
    session.table(
        "undated_readings", f"SELECT {columns} FROM ({samples}\n) WHERE used AND NOT is_delta"
    )
    state = State.load(given.lake.root)
    keys = by_time(state.chunks)[-1:]
    carried = [state.path(part.carry) for key in keys for part in state.chunks[key].parts]
    session.view(
        "readings",
        "FROM undated_readings"
        + "".join(
            " UNION ALL BY NAME SELECT * EXCLUDE (level, known_end_ns)"
            f" FROM {files_relation([path])} WHERE ts IS NOT NULL"
            for path in carried
        ),
    )
    return []


def _load_undated(session: Session, lake: Lake, identity: Identity) -> None:
    """``raw``, ``port_facts`` and an empty ``carry``, of counters without a time."""
    files = [file.path for file in lake.files(_COUNTERS.name) if file.min_ts_ns is None]
    relation = files_relation(files) if files else empty_relation(_COUNTERS)
    session.view("raw", f"FROM {relation} WHERE link IS NOT NULL")
    links = [link for (link,) in session.rows("SELECT DISTINCT link FROM raw ORDER BY link")]
    load_facts(session, {link: identity.port(link) for link in links})
    session.set_variables({"tick": DEFAULT_TICK, "rate_gbps": None, "ethernet": False})
    session.set_variables({"misread": []})
    load_carry(session, None)


TABLE = DayTable(
    name="link_totals",
    inputs=("link_counters",),
    span="lake",
    prepare=_prepare,
    rests_on=("identity", "last_samples"),
)

"""``signal_margin``, a table of its own; what it says of a link's health; and of other signals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from xtune.pipelines._engine import Session, files_relation
from xtune.pipelines._identity import PortFacts
from xtune.pipelines._tables import DayInput, DayTable


def _prepare(given: DayInput) -> list[str]:
    """Make ``link_names``: each link of the readings by its one name."""
    session = given.session
    found = session.rows("SELECT DISTINCT link FROM link_signal WHERE link IS NOT NULL")
    raw = sorted(str(link) for (link,) in found)
    names = [given.identity.link(link) for link in raw]
    session.load(
        "link_names",
        pa.table({"raw_link": pa.array(raw, pa.string()), "link": pa.array(names, pa.string())}),
    )
    return []


TABLE = DayTable(
    name="signal_margin",
    inputs=("link_signal",),
    prepare=_prepare,
    rests_on=("identity",),
    before_rates=True,
)


def bad_signals(
    session: Session, readings: Iterable[Path], like: Path, facts: Mapping[str, PortFacts]
) -> pa.Table:
    """Spans in which a port's signal was too bad for its link, as stretches of kind ``signal``.

    Args:
        session: With the rules as its variables.
        readings: Files of ``signal_margin``, at least one.
        like: A file of stretches, for its columns.
        facts: Port -> what is known of it.
    """
    session.view("signal_margin", f"FROM {files_relation(readings)}")
    session.table("link_stretches", f"FROM {files_relation([like])} WHERE false")
    rates = {link: f.rate_gbps * 1e9 for link, f in sorted(facts.items()) if f.rate_gbps}
    links = pa.array(list(rates), pa.string())
    session.load(
        "signal_rates",
        pa.table({"link": links, "bits_s": pa.array(list(rates.values()), pa.float64())}),
    )
    session.create("signal_stretches")
    return session.arrow("FROM signal_stretches")


def signal_notes(session: Session, stretches: Iterable[Path]) -> list[str]:
    """What a user should know: counters that stood still, and how early marks come.

    Args:
        session: With the rules as its variables.
        stretches: Files of all stretches.
    """
    paths = list(stretches)
    if not paths:
        return []
    session.table(
        "link_stretches",
        "SELECT kind, link, start_ns, end_ns, wait_from_ns, marks_from_ns"
        f" FROM {files_relation(paths)} WHERE kind IN ('wait', 'stuck')",
    )
    notes = []
    [(links, stuck_ns)] = session.rows(
        "SELECT count(DISTINCT link), sum(end_ns - start_ns) FROM link_stretches"
        " WHERE kind = 'stuck'"
    )
    if links:
        notes.append(
            f"port_xmit_wait stood at its maximum on {links} links, {stuck_ns / 1e9:.0f} s in"
            " all: their waiting is unknown then (a 32-bit counter sticks until it is cleared)"
        )
    session.create("mark_leads")
    for paired, lead, low, high in session.rows(
        "SELECT paired, lead_s, low_s, high_s FROM mark_leads WHERE link IS NULL AND paired > 0"
    ):
        bounds = f", 95 % interval {low:+.1f} to {high:+.1f} s" if low is not None else ""
        notes.append(
            f"ECN marks came {abs(lead):.1f} s {'before' if lead >= 0 else 'after'} waiting"
            f" (median of {paired} stretches with both{bounds})"
        )
    return notes

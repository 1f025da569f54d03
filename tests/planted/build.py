"""``generate``: telemetry with planted congestion, and the truth of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.planted.fabric import Fabric
from tests.planted.feeds import clean_feeds, messy_feeds
from tests.planted.plan import draw_plan
from tests.planted.rows import (
    Frame,
    collective_rows,
    counter_rows,
    port_rows,
    spare_rows,
    step_rows,
    topology_rows,
)
from tests.planted.run import History, run
from tests.planted.tallies import Extra, Tallies
from tests.planted.truth import Truth, find_truth
from xtune.lake import Lake
from xtune.pipelines import EpisodeRules

#: 2026-03-02T10:00:00Z.
T0_NS = 1_772_445_600 * 10**9


@dataclass(kw_only=True)
class Planted:
    """Rows to write, and what is true of them.

    Attributes:
        tables: Table -> batches of rows, each of a file of its own.
    """

    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    truth: Truth
    history: History

    def write(self, lake: Lake) -> None:
        """Put all rows into a lake."""
        with lake.begin() as transaction:
            for name, batches in self.tables.items():
                for batch in batches:
                    transaction.write(name, batch, source="0" * 12)
            transaction.commit()


def generate(
    seed: int,
    *,
    mess: bool = False,
    roce: bool = False,
    lossy: bool = False,
    topology: bool = True,
    view: str = "all",
    length_s: float = 900.0,
    rules: EpisodeRules | None = None,
    **fabric: Any,
) -> Planted:
    """A scenario.

    Args:
        seed: The same gives the same.
        mess: All that goes wrong when telemetry is collected.
        roce: Ethernet with PFC and ECN, instead of InfiniBand.
        lossy: Ethernet with ECN and without PFC.
        topology: Whether the cabling is known.
        view: Which ports are sampled: ``all``, ``hosts`` or ``switches``.
        length_s: Seconds.
        rules: What counts as reported.
        fabric: Of :class:`Fabric`: hosts, leaves, spines, rails, pods.
    """
    rng = np.random.default_rng(seed)
    frame = Frame(t0_ns=T0_NS)
    kind = "lossy" if lossy else "roce" if roce else "ib"
    history = _history(Fabric(**fabric), rng, length_s, kind)
    plan = history.plan
    feeds = (messy_feeds if mess else clean_feeds)(plan, rng, view)
    tallies = Tallies(history, _extras(history, rng))
    counters = counter_rows(tallies, feeds.feeds, frame, rng, kind)
    layer = "InfiniBand" if kind == "ib" else "Ethernet"
    tables = {
        "link_counters": counters,
        "ports": [port_rows(plan.fabric, frame, feeds.named, layer)],
        "collectives": [collective_rows(history, frame, rng, feeds.offsets_s)],
        "steps": [step_rows(history, frame)],
    }
    if topology:
        tables["topology_links"] = [topology_rows(plan.fabric, frame)]
    if mess:
        tables["link_counters"].append(spare_rows(plan.fabric, frame, length_s))
        tables = {name: scatter(batches, rng) for name, batches in tables.items()}
    else:
        tables["link_counters"] = [pa.concat_tables(counters, promote_options="default")]
    truth = find_truth(tallies, feeds.watched(), rules or EpisodeRules(), frame.t0_ns, topology)
    return Planted(tables=tables, truth=truth, history=history)


def _history(fabric: Fabric, rng: np.random.Generator, length_s: float, kind: str) -> History:
    """A history in which nothing but the planted roots holds anything back."""
    while True:
        history = run(draw_plan(fabric, rng, length_s, kind=kind), rng)
        if not history.strange:
            return history


def scatter(batches: list[pa.Table], rng: np.random.Generator) -> list[pa.Table]:
    """The rows over several files in any order, some of them delivered twice."""
    rows = pa.concat_tables(batches, promote_options="default")
    order = rng.permutation(rows.num_rows)
    twice = rng.choice(order, rows.num_rows // 30)
    parts = [*np.array_split(order, 4), twice]
    return [rows.take(pa.array(part)) for part in parts if len(part)]


def _extras(history: History, rng: np.random.Generator) -> list[Extra]:
    """What every fabric has and nobody wants reported: a little waiting, some errors, spikes."""
    extras = []
    length = history.plan.length_s
    for port in history.plan.fabric.ports:
        for start in np.arange(0.0, length, 30.0):
            value = float(rng.uniform(0.0, 0.006))
            extras.append(
                Extra(port=port.index, kind="wait", start_s=start, end_s=start + 30.0, value=value)
            )
    ports = rng.permutation(len(history.plan.fabric.ports))
    for port in ports[:6]:  # level 1 for minutes
        start = float(rng.uniform(0.0, length / 2))
        extras.append(
            Extra(port=int(port), kind="wait", start_s=start, end_s=start + 200.0, value=0.05)
        )
    for port in ports[6:12]:  # errors, and nobody waits
        extras.append(Extra(port=int(port), kind="errors", start_s=0.0, end_s=length, value=0.02))
    for port in ports[12:24]:  # a spike within one interval, or over two but weak
        start = float(rng.uniform(0.0, length))
        extras.append(
            Extra(port=int(port), kind="wait", start_s=start, end_s=start + 0.2, value=0.45)
        )
    return extras

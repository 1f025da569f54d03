"""``generate``: telemetry with planted congestion, and the truth of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.planted.fabric import Fabric
from tests.planted.plan import draw_plan
from tests.planted.rows import (
    Frame,
    collective_rows,
    counter_rows,
    port_rows,
    step_rows,
    topology_rows,
)
from tests.planted.run import History, run
from tests.planted.tallies import Extra, Tallies
from tests.planted.truth import Truth, Watched, find_truth
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
    topology: bool = True,
    view: str = "all",
    length_s: float = 900.0,
    rules: EpisodeRules | None = None,
    **fabric: Any,
) -> Planted:
    """A scenario.

    Args:
        seed: The same gives the same.
        mess: Not yet.
        roce: Not yet.
        topology: Whether the cabling is known.
        view: Which ports are sampled: ``all``, ``hosts`` or ``switches``.
        length_s: Seconds.
        rules: What counts as reported.
        fabric: Of :class:`Fabric`: hosts, leaves, spines, rails, pods.
    """
    rng = np.random.default_rng(seed)
    frame = Frame(t0_ns=T0_NS)
    plan = draw_plan(Fabric(**fabric), rng, length_s)
    history = run(plan, rng)
    tallies = Tallies(history, _extras(history, rng))
    watched = {
        port.index: Watched(times=np.arange(rng.uniform(0.0, 1.0), length_s, 1.0), interval_s=1.0)
        for port in plan.fabric.ports
        if view == "all" or (view == "hosts") == (port.host is not None)
    }
    tables = {
        "link_counters": [counter_rows(tallies, watched, frame, rng)],
        "ports": [port_rows(plan.fabric, frame)],
        "collectives": [collective_rows(history, frame, rng)],
        "steps": [step_rows(history, frame)],
    }
    if topology:
        tables["topology_links"] = [topology_rows(plan.fabric, frame)]
    truth = find_truth(tallies, watched, rules or EpisodeRules(), frame.t0_ns)
    return Planted(tables=tables, truth=truth, history=history)


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

"""Latency of a link, from probes between hosts under one leaf and under two."""

from __future__ import annotations

import numpy as np
import polars as pl

from xtune.sim._inputs import Inputs
from xtune.sim._stats import Floats
from xtune.sim.calibration import Parameter

# One hop: switch (about 230 ns port to port for NDR, Quantum-2 data sheet) plus 10 m of fibre
# and serialising, rounded.
ASSUMED_NS = 500.0
FEWEST = 3  # pairs of hosts of either kind
MORE_LINKS = 4  # a round trip by a spine passes, in place of one leaf: up and down, there and back


def fit_latency(inputs: Inputs, links: pl.DataFrame) -> Parameter:
    """A quarter of what a round trip over a spine takes longer than one below a leaf.

    The shortest round trip of each pair counts, which met no queue; what hosts add is in both and
    cancels.
    """
    near, far = _round_trips(inputs, _leaves(links), _above(links))
    if len(near) < FEWEST or len(far) < FEWEST or np.median(far) <= np.median(near):
        return Parameter(
            name="link_latency_ns", value=ASSUMED_NS, unit="ns", assumed=True,
            why="a switch's data sheet value and 10 m of fibre",
            needs=f"link_probes between {FEWEST} pairs of hosts under one leaf and under two of"
            " one spine, each host on one leaf, and the topology",
        )  # fmt: skip
    random = np.random.default_rng(20240917)
    draws = [
        float(np.median(random.choice(far, len(far))) - np.median(random.choice(near, len(near))))
        for _ in range(400)
    ]
    low, high = np.quantile(draws, [0.025, 0.975]) / MORE_LINKS
    return Parameter(
        name="link_latency_ns", value=float(np.median(far) - np.median(near)) / MORE_LINKS,
        low=max(0.0, float(low)), high=float(high), unit="ns", n=len(near) + len(far),
        tables=("link_probes", "topology_links"),
        why="shortest round trips over a spine less those below one leaf, a quarter of it",
    )  # fmt: skip


def _leaves(links: pl.DataFrame) -> dict[str, str]:
    """Leaf of each word that names a host in the description of a port towards a leaf.

    Not of a word that stands at several leaves: nobody knows by which a probe of that host went.
    """
    found: dict[str, set[str]] = {}
    for row in links.filter(pl.col("tier") == 0).iter_rows(named=True):
        for word in (row["src_name"] or "").lower().split():
            found.setdefault(word, set()).add(row["dst_guid"] or row["dst_name"] or "")
    return {word: next(iter(leaves)) for word, leaves in found.items() if len(leaves) == 1}


def _above(links: pl.DataFrame) -> dict[str, set[str]]:
    """Switches that a switch has a link to."""
    found: dict[str, set[str]] = {}
    for row in links.filter(pl.col("tier") >= 1).iter_rows(named=True):
        a, b = (row[f"{end}_guid"] or row[f"{end}_name"] or "" for end in ("src", "dst"))
        found.setdefault(a, set()).add(b)
        found.setdefault(b, set()).add(a)
    return found


def _round_trips(
    inputs: Inputs, leaves: dict[str, str], above: dict[str, set[str]]
) -> tuple[Floats, Floats]:
    """Shortest round trip of each pair, ns: of those below one leaf, and of those one spine apart.

    Pairs that no switch joins in one step, in two pods of a fabric of three tiers, are neither.
    """
    rows = inputs.read("link_probes", ["ts", "src", "dst", "rtt_ns", "lost"])
    rows = rows.filter(pl.col("rtt_ns") > 0, ~pl.col("lost").fill_null(False))
    near: list[float] = []
    far: list[float] = []
    for src, dst, rtt in rows.group_by("src", "dst").agg(pl.col("rtt_ns").min()).iter_rows():
        a, b = leaves.get((src or "").lower()), leaves.get((dst or "").lower())
        if a is None or b is None or src == dst:
            continue
        if a == b:
            near.append(float(rtt))
        elif above.get(a, set()) & above.get(b, set()):
            far.append(float(rtt))
    return np.array(near), np.array(far)

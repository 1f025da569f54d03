"""Shape of the fabric: hosts, leaves, spines, rate of a link; layers of the model."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

import polars as pl

from xtune.sim._inputs import Inputs
from xtune.sim.calibration import LayerShape, Parameter
from xtune.sim.fit_probes import fit_latency

ASSUMED_GBPS = 400.0  # an NDR port, the commonest in clusters installed since 2023
ASSUMED_HOSTS_PER_LEAF = 16
LAYERS_PER_BUCKET = 4  # where no layer is known: enough that bits can differ within a bucket


def read_links(inputs: Inputs) -> pl.DataFrame:
    """The directed links of the fabric."""
    columns = [
        "src_guid", "src_name", "src_port", "dst_guid", "dst_name", "dst_port", "rate_gbps",
        "tier",
    ]  # fmt: skip
    return inputs.read("topology_links", columns)


def links_of_hosts(links: pl.DataFrame, hosts: frozenset[str]) -> frozenset[str]:
    """Ids of the links that start or end at one of the hosts.

    A node description names a host where one of its words is the host's name.
    """
    found = set()
    for row in links.filter(pl.col("tier") == 0).iter_rows(named=True):
        words = f"{row['src_name'] or ''} {row['dst_name'] or ''}".lower().split()
        if row["src_guid"] and hosts.intersection(words):
            found.add(f"{row['src_guid']}/{row['src_port']}")
    return frozenset(found)


def fit_topology(
    inputs: Inputs, links: pl.DataFrame, hosts_of_job: int | None, ranks: int
) -> tuple[Parameter, ...]:
    """Hosts of the job, hosts, leaves and spines of the fabric, link rate and latency.

    The loop's fabric has two tiers and one link from each leaf to each spine. What is fitted as
    ``spines`` is how many ways lead up from a leaf; a third tier is left out, and said.
    """
    ports = inputs.read("ports", ["host", "rate_gbps", "state"])
    found = _tiers(links)
    table: tuple[str, ...] = ("topology_links",)
    assumed = found is None
    if found is not None:
        hosts, leaves, spines, why = found
    else:
        seen = ports.filter(pl.col("host").is_not_null())["host"].n_unique()
        hosts = max(hosts_of_job or 0, seen, min(ranks, 2))
        leaves = max(1, math.ceil(hosts / ASSUMED_HOSTS_PER_LEAF))
        spines = max(1, math.ceil(hosts / leaves / 2))
        table, why = (), "no topology was collected: 16 hosts a leaf, 2:1 uplinks"
    job_hosts = min(hosts, hosts_of_job or ranks)
    names = (("hosts", hosts), ("leaves", leaves), ("spines", spines))
    n = 0 if assumed else len(links)
    return (
        Parameter(
            name="job_hosts", value=float(job_hosts), n=hosts_of_job or 0, tables=("collectives",),
            assumed=hosts_of_job is None,
            why="ranks over the ranks a host seen in the job's collectives" if hosts_of_job
            else "the traces name no host: one a rank, at most the fabric's",
            needs="" if hosts_of_job else "traces that name their host, or --host at collection",
        ),
        *(
            Parameter(
                name=name, value=float(v), low=None if assumed else float(v),
                high=None if assumed else float(v), n=n, tables=table, assumed=assumed, why=why,
                needs="the topology: ibnetdiscover or ibdiagnet" if assumed else "",
            )
            for name, v in names
        ),
        _rate(links, ports),
        fit_latency(inputs, links),
        Parameter(
            name="ecmp_share", value=0.0, assumed=True,
            why="share of fixed paths drawn by a hash: none, since collectives outside episodes"
            " already carry their own collisions in collective_s",
            needs="the path of each flow: flow records of the leaves. Counters do not tell one"
            " drawn path from one that was chosen badly",
        ),
        Parameter(
            name="same_lane_share", value=0.5, assumed=True,
            why="share of episodes by traffic of jobs that mark theirs like this job: unknown",
            needs="counters by virtual lane or traffic class",
        ),
    )  # fmt: skip


def _tiers(links: pl.DataFrame) -> tuple[int, int, int, str] | None:
    """Hosts, leaves, ways up from a leaf and what was counted.

    None where the links do not show two ends.
    """
    ends = links.with_columns(
        pl.coalesce("src_guid", "src_name").alias("a"),
        pl.coalesce("dst_guid", "dst_name").alias("b"),
    ).filter(pl.col("a").is_not_null(), pl.col("b").is_not_null(), pl.col("tier").is_not_null())
    if ends.is_empty():
        return None
    # A lake holds a link once for each time that it was seen.
    between = ends.filter(pl.col("tier") >= 1).unique(["a", "src_port", "b", "dst_port"])
    upper = list(between.select("a", "b").iter_rows())
    switches = {node for link in upper for node in link}
    edge = ends.filter(pl.col("tier") == 0)
    near: dict[str, set[str]] = {}
    for a, b in edge.select("a", "b").iter_rows():
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    if not switches and near:  # one switch: the end with most neighbours
        switches = {max(sorted(near), key=lambda node: len(near[node]))}
    hosts = set(near) - switches
    leaves = set(near) & switches
    if not hosts or not leaves:
        return None
    ways = _ways_up(upper, leaves)
    above = {node for link in upper if leaves.intersection(link) for node in link} - leaves
    why = (
        f"leaves are the switches that hosts hang on; as many spines as a leaf has links up"
        f" ({len(above)} switches above)"
    )
    beyond = len(switches - leaves - above)
    if beyond:
        why += f"; {beyond} more above those are left out: the loop's fabric has two tiers"
    return len(hosts), len(leaves), ways, why


def _ways_up(upper: Sequence[tuple[str, str]], leaves: set[str]) -> int:
    """Links from a leaf to the switches above, the median of the leaves; at least 1.

    Most lakes hold both directions of a link; where one has but one, that one counts.
    """
    out = Counter(a for a, b in upper if a in leaves and b not in leaves)
    into = Counter(b for a, b in upper if b in leaves and a not in leaves)
    counts = [max(out[leaf], into[leaf]) for leaf in leaves]
    return max(1, statistics.median_low(counts))


def _rate(links: pl.DataFrame, ports: pl.DataFrame) -> Parameter:
    for table, frame in (("topology_links", links), ("ports", ports)):
        rates = frame.filter(pl.col("rate_gbps") > 0)["rate_gbps"]
        if len(rates):
            mode = float(rates.mode().sort()[-1])
            share = int((rates == mode).sum()) / len(rates)
            return Parameter(
                name="rate_gbps", value=mode, low=mode, high=mode, unit="1e9 bit/s", n=len(rates),
                tables=(table,), fit=share, fit_kind="share of links at this rate",
                why="commonest rate of a link",
            )  # fmt: skip
    return Parameter(
        name="rate_gbps", value=ASSUMED_GBPS, unit="1e9 bit/s", assumed=True,
        why="no source names a link's rate: an NDR port",
        needs="ports or the topology, with rates",
    )  # fmt: skip


def fit_layers(
    inputs: Inputs, job: str, buckets: Sequence[int], element_bytes: int
) -> tuple[tuple[LayerShape, ...], str]:
    """Layers from input to head, scaled to the elements that the job really sends.

    The second value is a note, "" where the layers are the model's own.

    Args:
        inputs: The lake.
        job: The job.
        buckets: Bytes of each bucket in sending order, the head's first.
        element_bytes: Bytes of an element on the wire.
    """
    elements = max(1, round(sum(buckets) / element_bytes))
    frame = inputs.read("layer_gradients", ["job", "layer", "depth", "elements"])
    frame = frame.filter(
        pl.col("job").fill_null("") == job, pl.col("elements") > 0, pl.col("depth").is_not_null(),
        pl.col("layer").is_not_null(),
    ).group_by("layer").agg(pl.col("elements").max(), pl.col("depth").median())  # fmt: skip
    if frame.is_empty():
        count = LAYERS_PER_BUCKET * len(buckets)
        sizes = [size / element_bytes / LAYERS_PER_BUCKET for size in reversed(buckets)]
        layers = tuple(
            LayerShape(
                name=f"layer{i}", elements=max(1, round(sizes[i // LAYERS_PER_BUCKET])),
                depth=i / max(1, count - 1),
            )
            for i in range(count)
        )  # fmt: skip
        return layers, f"no layer sizes were collected: {count} layers assumed, four a bucket"
    total = int(frame["elements"].sum())
    rows = frame.sort("depth", "layer").iter_rows(named=True)
    scaled = [
        LayerShape(
            name=row["layer"], elements=max(1, round(row["elements"] * elements / total)),
            depth=float(row["depth"]),
        )
        for row in rows
    ]  # fmt: skip
    off = abs(total - elements) / elements
    note = "" if off < 0.02 else f"layer sizes scaled by {elements / total:.3g} to what is sent"
    return tuple(scaled), note

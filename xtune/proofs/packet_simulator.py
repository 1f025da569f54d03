"""Rung A beside the stored figures of a packet simulator (htsim), row by row.

    python -m xtune.proofs.packet_simulator --reference bench/reference [--seeds 200]
        [--hosts 64] [--workers 2]

Each row's traffic is the reference's own: its permutation and its order of ranks, rebuilt from its
seeds. Its paths are not: they are drawn, one draw a seed, and the row must lie in the band of the
draws: 5 to 95 % of the first 50, and never outside 1 to 99 % of 200. A flow of the reference is
complete when its last acknowledgement is back. Under RoCE acknowledgements wait in the queues of
the data (csg-htsim has one FIFO a port), so each flow here is followed by one of 64 bytes, on a
path of its own, and what waits for a flow waits for that; under UEC they pass what is queued.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xtune.errors import XtuneError
from xtune.policies.spec import Routing
from xtune.sim.bounds import way_ns
from xtune.sim.congestion import Nscc, SharedBuffer
from xtune.sim.fabric import (
    PACKET_BYTES,
    XOFF_PACKETS,
    XON_PACKETS,
    Backpressure,
    LeafSpine,
)
from xtune.sim.flows import (
    Flows,
    all_to_all,
    build_flows,
    halving_doubling,
    join_flows,
    ring_steps,
)
from xtune.sim.phase import run_phase

F64 = NDArray[np.float64]

HEADER_BYTES = ACK_BYTES = 64  # of the reference's packets (its ``sim/rocepacket.h``)
GAP_NS = 10_000  # between the flowlets of its switches
FIGURES = ("mean", "p99", "last")
QUANTILES = (0.05, 0.5, 0.95)
#: By which a figure may lie beside a band and count as inside: where no flows meet, all draws are
#: alike and a band is a point, and the reference is a single run.
SLACK = 0.01

RULES: dict[str, Routing] = {
    "roce_ecmp": Routing(mode="static"),
    "roce_ar_flowcount": Routing(
        mode="switch_adaptive", switch_load="flows", flowlet_gap_ns=GAP_NS
    ),
    "roce_ar_queue10us": Routing(
        mode="switch_adaptive", switch_load="queue", flowlet_gap_ns=GAP_NS
    ),
    "uec_oblivious": Routing(mode="spray"),
}
#: Packets in a queue of csg-htsim's lossless switch, of which its choice sees 5, 10 and 20 %.
#: Assumed: the runs do not say what it was set to.
LOSSLESS_PACKETS = 1000
ENTROPIES = 64  # of a sprayed flow: the default of UEC htsim (``main_uec.cpp``)
BAND_SEEDS = 50  # of which the 5 to 95 % band is made; that of 1 to 99 % of all
NOT_COVERED = {
    "uec_reps": "recycled entropies: senders remember paths that worked, which no mode here does",
}


def reference_fabric(hosts: int, *, acknowledged: bool) -> LeafSpine:
    """The leaf-spine of the reference, non-blocking, 400 Gb/s.

    Args:
        hosts: A square number.
        acknowledged: Every packet is, by one of 64 bytes. What a host receives it acknowledges,
            and it receives as fast as it sends in all traffic here: its own link carries both.
    """
    side = round(hosts**0.5)
    fabric = LeafSpine(hosts, side, side, header_bytes=HEADER_BYTES)
    if not acknowledged:
        return fabric
    share = 1 - ACK_BYTES / (PACKET_BYTES + HEADER_BYTES + ACK_BYTES)
    own = [*range(hosts), *(fabric.delivery(host) for host in range(hosts))]
    return replace(fabric, slow_ports=tuple((port, share) for port in own))


def reference_permutation(fabric: LeafSpine) -> Flows:
    """The permutation of the reference: 8 MB, every flow leaves its leaf (Python's seed 1)."""
    n, leaf, rng = fabric.hosts, fabric.hosts_per_leaf, random.Random(1)
    target = list(range(n))
    rng.shuffle(target)
    while bad := [i for i in range(n) if target[i] // leaf == i // leaf]:
        for i in bad:
            j = rng.randrange(n)
            target[i], target[j] = target[j], target[i]
    return build_flows(range(n), target, 8_000_000)


def reference_order(hosts: int) -> list[int]:
    """The order of ranks in the rings of the reference (Python's seed 7)."""
    order = list(range(hosts))
    random.Random(7).shuffle(order)
    return order


def _ring(fabric: LeafSpine) -> Flows:
    n, order = fabric.hosts, reference_order(fabric.hosts)
    return build_flows(order, order[1:] + order[:1], 2 * (n - 1) * (8 << 20) // n)


def _ring_steps(fabric: LeafSpine) -> Flows:
    order = np.array(reference_order(fabric.hosts), dtype=np.int32)
    flows = ring_steps(fabric)
    return replace(flows, src=order[flows.src], dst=order[flows.dst])


#: Traffic by the beginning of a workload's name, with a step that is short beside its flows.
WORKLOADS: dict[str, tuple[Callable[[LeafSpine], Flows], int]] = {
    "perm": (reference_permutation, 500),
    "ringflow": (_ring, 500),
    "ringsteps": (_ring_steps, 10),
    "hd": (halving_doubling, 50),
    "a2a": (all_to_all, 500),
}
#: What needs shorter ones: gaps of flowlets, and queues of 20 packets that are marked.
LONGEST_STEP = {"roce_ar_queue10us": 250, "uec_oblivious": 250}


def conditions(scheme: str, fabric: LeafSpine) -> dict[str, Any]:
    """What the reference's switches and adapters do, as arguments of ``run_phase``.

    Args:
        scheme: A scheme in ``RULES``.
        fabric: Its fabric.
    """
    if not scheme.startswith("uec"):
        bands = [round(share * LOSSLESS_PACKETS * PACKET_BYTES) for share in (0.05, 0.1, 0.2)]
        by_queue = scheme == "roce_ar_queue10us"
        # Of payload: its switches count headers, and their limits are packets without.
        share = PACKET_BYTES * PACKET_BYTES / (PACKET_BYTES + HEADER_BYTES)
        return {
            "pfc": Backpressure(
                signal_ns=fabric.link_latency_ns,
                xoff_bytes=round(XOFF_PACKETS * share),
                xon_bytes=round(XON_PACKETS * share),
            ),
            "in_order": by_queue,
            "queue_bands": bands if by_queue else (),
        }
    wire = PACKET_BYTES + HEADER_BYTES + ACK_BYTES  # of a packet and its acknowledgement
    rtt_ns = 8 * fabric.link_latency_ns + 4 * wire * 8 / fabric.gbps
    queue = round(rtt_ns * fabric.gbps / 8)
    return {
        "pfc": Backpressure(kind="none"),
        "rate_control": Nscc.for_path(rtt_ns, fabric.gbps),
        "shared_buffer": SharedBuffer(  # each queue has its own, and trims
            bytes_per_switch=10**12, queue_bytes=queue, recovery="selective"
        ),
        "entropies": ENTROPIES,
    }


def acknowledged(flows: Flows) -> Flows:
    """Each flow followed by its acknowledgement, for which its successors wait.

    Args:
        flows: n flows.

    Returns:
        2n flows; number n + i acknowledges flow i.
    """
    n = len(flows)
    both = join_flows(flows, build_flows(flows.dst, flows.src, ACK_BYTES))
    own = np.arange(n, dtype=np.int32)
    edges = [np.stack([own, own + n], axis=1), flows.after + np.array([n, 0], dtype=np.int32)]
    return replace(
        both, after=np.concatenate(edges).astype(np.int32), release_ns=np.zeros(2 * n, np.int64)
    )


def acknowledgement_ns(fabric: LeafSpine, flows: Flows) -> F64:
    """Time that the acknowledgement of each flow takes back, passing all queues, ns."""
    links = fabric.routes(flows.src, flows.dst).links
    size = np.array([ACK_BYTES])
    return np.array([float(way_ns(fabric, size, int(n))[0]) for n in links])


def _released_by(flows: Flows, back_ns: F64) -> Flows:
    """Flows whose successors wait for their acknowledgements too."""
    release_ns = flows.release_ns.copy()
    np.maximum.at(release_ns, flows.after[:, 1], np.ceil(back_ns[flows.after[:, 0]]).astype(int))
    return replace(flows, release_ns=release_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the reference beside our draws.

    Attributes:
        scheme: Its scheme.
        workload: Its workload.
        hosts: Its hosts.
        theirs: Mean, p99 and last completion, us.
        draws: Ours, float64 of shape (seeds, 3).
        step_ns: The step that we ran it with.
    """

    scheme: str
    workload: str
    hosts: int
    theirs: F64
    draws: F64
    step_ns: int

    @property
    def mean_error(self) -> float:
        """Our mean completion against theirs, relative."""
        return float(self.draws[:, 0].mean() / self.theirs[0] - 1)

    def inside(self, low: float, high: float) -> list[bool]:
        """Whether their p99 and last lie between two quantiles of ours."""
        draws = self.draws[:BAND_SEEDS] if low >= 0.05 else self.draws
        bounds = np.quantile(draws, [low, high], axis=0)
        found = (self.theirs >= bounds[0] * (1 - SLACK)) & (self.theirs <= bounds[1] * (1 + SLACK))
        return [bool(x) for x in found[1:]]

    @property
    def width(self) -> float:
        """Width of the 5 to 95 % band of the last completion, as a share of its median."""
        low, middle, high = np.quantile(self.draws[:BAND_SEEDS, 2], [0.05, 0.5, 0.95])
        return float((high - low) / middle)

    @property
    def narrow(self) -> bool:
        """Whether that is no wider than it may be: 60 % to 64 hosts, 50 % to 256, else 40 %."""
        return self.width <= (0.6 if self.hosts <= 64 else 0.5 if self.hosts <= 256 else 0.4)


def rows(folder: Path) -> list[dict[str, str]]:
    """The stored rows.

    Raises:
        OSError: there is no such file.
    """
    with (folder / "htsim_results.csv").open() as file:
        return list(csv.DictReader(file))


def traffic(workload: str, fabric: LeafSpine) -> Flows:
    """The flows of a workload by its name; ``_g32`` says that groups of an all-to-all have 32.

    Raises:
        UsageError: the groups do not fill the fabric.
    """
    group = re.search(r"_g(\d+)$", workload)
    if group:
        return all_to_all(fabric, int(group[1]))
    return WORKLOADS[_kind(workload)][0](fabric)


def obstacle(row: dict[str, str]) -> str:
    """Why a row cannot be run, or nothing."""
    if row["scheme"] not in RULES:
        return NOT_COVERED.get(row["scheme"], "its scheme is not known here")
    if _kind(row["workload"]) not in WORKLOADS:
        return f"its traffic is none of {', '.join(WORKLOADS)}"
    if not row["hosts"].isdigit() or int(row["hosts"]) ** 0.5 % 1:
        return f"{row['hosts']} hosts are no square: how many a leaf has is not known"
    try:
        traffic(row["workload"], reference_fabric(int(row["hosts"]), acknowledged=False))
    except XtuneError as error:
        return str(error)
    return ""


def _step_ns(row: dict[str, str]) -> int:
    step_ns = WORKLOADS[_kind(row["workload"])][1]
    return min(step_ns, LONGEST_STEP.get(row["scheme"], step_ns))


def _kind(workload: str) -> str:
    return workload.rstrip("_g0123456789").rstrip("0123456789")


def draw(row: dict[str, str], seed: int) -> tuple[float, float, float]:
    """Mean, p99 and last completion of one draw of a row, us.

    Args:
        row: A row of ``htsim_results.csv`` without an ``obstacle``.
        seed: Random seed.
    """
    hosts, scheme = int(row["hosts"]), row["scheme"]
    fabric = reference_fabric(hosts, acknowledged=scheme.startswith("roce"))
    data = traffic(row["workload"], fabric)
    passing = scheme.startswith("uec")
    back_ns = acknowledgement_ns(fabric, data) if passing else np.zeros(len(data))
    flows = _released_by(data, back_ns) if passing else acknowledged(data)
    result = run_phase(
        fabric, flows, routing=RULES[scheme], dt_ns=_step_ns(row), seed=seed,
        **conditions(scheme, fabric),
    )  # fmt: skip
    us = (result.completion_ns[len(flows) - len(data) :] + back_ns) / 1e3
    return float(us.mean()), float(np.quantile(us, 0.99)), float(us.max())


def compare(row: dict[str, str], seeds: int, pool: ProcessPoolExecutor | None = None) -> Row:
    """Draw paths for a row of the reference and run its traffic.

    Args:
        row: A row of ``htsim_results.csv`` without an ``obstacle``.
        seeds: Draws.
        pool: Processes that share the draws; None means this one.
    """
    one = partial(draw, row)
    draws = list(pool.map(one, range(seeds)) if pool else map(one, range(seeds)))
    return Row(
        scheme=row["scheme"],
        workload=row["workload"],
        hosts=int(row["hosts"]),
        theirs=np.array([float(row[f"{name}_us"]) for name in FIGURES]),
        draws=np.array(draws),
        step_ns=_step_ns(row),
    )


def lines(found: list[Row]) -> Iterator[str]:
    """The table, a line a row, and what it comes to."""
    yield (
        f"{'scheme':18} {'workload':13} {'step':>4}  {'mean':>6}  "
        f"{'p99: theirs, ours 5..50..95 %':33} {'last':33} width"
    )
    for row in found:
        quantiles = np.quantile(row.draws[:BAND_SEEDS], QUANTILES, axis=0)
        near, far = row.inside(0.05, 0.95), row.inside(0.01, 0.99)
        cells = []
        for i in (1, 2):
            low, middle, high = quantiles[:, i]
            mark = " " if near[i - 1] else "*" if far[i - 1] else "!"
            cells.append(f"{row.theirs[i]:6.0f}{mark} {low:6.0f} ..{middle:6.0f} ..{high:6.0f}  ")
        yield (
            f"{row.scheme:18} {row.workload:13} {row.step_ns:4}  {row.mean_error:+6.1%}  "
            f"{cells[0]:33} {cells[1]:33} {row.width:5.0%}"
        )
    inside = [x for row in found for x in row.inside(0.05, 0.95)]
    beyond = [x for row in found for x in row.inside(0.01, 0.99)]
    means = [abs(row.mean_error) <= 0.08 for row in found]
    draws = min((len(row.draws) for row in found), default=0)
    yield (
        f"means within 8 %: {sum(means)} of {len(means)}; p99 and last inside the 5 to 95 % band "
        f"or within {SLACK:.0%} of it: {sum(inside)} of {len(inside)} (* not); "
        f"so outside the 1 to 99 % band of {draws} draws: {len(beyond) - sum(beyond)} (!); "
        f"last's band no wider than it may be: {sum(row.narrow for row in found)} of {len(found)}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m xtune.proofs.packet_simulator")
    parser.add_argument("--reference", type=Path, required=True, help="folder of the figures")
    parser.add_argument("--seeds", type=int, default=200, help="draws of paths a row")
    parser.add_argument("--hosts", type=int, nargs="*", help="only rows of these sizes")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args(argv)
    if min(args.seeds, args.workers) < 1:
        parser.error("--seeds and --workers: 1 or more")
    try:
        stored = rows(args.reference)
    except OSError as error:
        print(f"no figures in {args.reference}: {error.strerror}", file=sys.stderr)
        return 2
    wanted = set(map(str, args.hosts or ()))
    stored = [row for row in stored if not wanted or row["hosts"] in wanted]
    if not stored:
        print(f"{args.reference}: no row has {args.hosts} hosts", file=sys.stderr)
        return 2
    begun = time.perf_counter()
    why = [obstacle(row) for row in stored]
    with ProcessPoolExecutor(args.workers) as pool:
        runs = [row for row, reason in zip(stored, why, strict=True) if not reason]
        found = [compare(row, args.seeds, pool) for row in runs]
    for line in lines(found):
        print(line)
    print(f"{args.seeds} seeds, {args.workers} workers, {time.perf_counter() - begun:.0f} s")
    for row, reason in zip(stored, why, strict=True):
        if reason:
            print(f"not covered: {row['scheme']} {row['workload']}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

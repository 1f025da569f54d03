"""Time of one routing decision and of one reading, in the process that sends.

Wide path sets (16 shortest paths and 2 detours between 64 hosts) and readings that keep a
tenth of the links warm, so that decisions do search and move. Beside them plain Python's floor:
one dictionary look-up and one comparison. The whole of a decision, with the readings that it
takes from shared memory, is in `bench.decision_whole`, tables of many in `bench.decision_tables`.
"""

from __future__ import annotations

import random
import statistics
import time

from xtune.policies import DirectedLink, PathFinder, Router, preset

NAMES = ("decision_p50_us", "decision_p99_us", "observe_p99_us")

RUNS = 5
DECISIONS = 20_000
GOAL_US = 10.0  # founding document R5
LEAVES, SPINES, HOSTS = 16, 16, 4


def links() -> list[DirectedLink]:
    """All directed links of the fabric."""
    ends = [(f"h{a}.{n}", f"l{a}") for a in range(LEAVES) for n in range(HOSTS)]
    ends += [(f"l{a}", f"s{b}") for a in range(LEAVES) for b in range(SPINES)]
    both = [pair for a, b in ends for pair in ((a, b), (b, a))]
    return [DirectedLink(name=f"{a}>{b}", src=a, dst=b) for a, b in both]


def pairs() -> list[tuple[str, str]]:
    """One host, and all others that it sends to."""
    hosts = [f"h{a}.{n}" for a in range(LEAVES) for n in range(HOSTS)]
    return [(hosts[0], dst) for dst in hosts[1:]]


def quantile_us(times_ns: list[int], share: float) -> float:
    """A quantile of times, in us."""
    return sorted(times_ns)[int(share * len(times_ns))] / 1000


def _once(names: list[str], router: Router) -> list[float]:
    rng = random.Random(1)
    flows = [(src, dst, ident) for src, dst in pairs() for ident in range(4)]
    for flow in flows:
        router.choose(flow, at_ns=0)
    decisions, readings, floor = [], [], []
    table = dict.fromkeys(flows, 0.5)
    now_ns = 1_000_000
    clock = time.perf_counter_ns
    for _ in range(DECISIONS):
        now_ns += 1_000
        for _ in range(2):
            name = rng.choice(names)
            occupancy = rng.uniform(0.5, 1.0) if rng.random() < 0.1 else rng.uniform(0.0, 0.3)
            started = clock()
            router.observe(name, occupancy=occupancy, at_ns=now_ns)
            readings.append(clock() - started)
        flow = rng.choice(flows)
        started = clock()
        router.choose(flow, at_ns=now_ns)
        decisions.append(clock() - started)
        started = clock()
        _ = table[flow] > 0.7
        floor.append(clock() - started)
    return [
        quantile_us(decisions, 0.5),
        quantile_us(decisions, 0.99),
        quantile_us(readings, 0.99),
        quantile_us(floor, 0.5),
    ]


def run() -> list[dict]:
    """Medians of several runs."""
    fabric = links()
    names = [link.name for link in fabric]
    paths = PathFinder(fabric).path_sets(pairs())
    runs = [_once(names, Router(paths, preset("joint"))) for _ in range(RUNS)]
    p50, p99, observe, floor = (statistics.median(column) for column in zip(*runs, strict=True))
    against = f"the founding document's limit; a look-up alone takes {floor:.2f} us here"
    return [
        {
            "name": name,
            "ratio": None,
            "goal": GOAL_US,
            "better": "lower",
            "value": value,
            "unit": "us",
            "against": against,
            "runs": RUNS,
        }
        for name, value in zip(NAMES, (p50, p99, observe), strict=True)
    ]

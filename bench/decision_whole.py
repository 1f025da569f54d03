"""A decision beside a bare call of the same arity, timed singly, with the clock's own time.

A decision is `Router.assign` of a flow that was moved: it reads what four probes left in memory
(links up and down, of the primary and of the alternative), looks at their blacklisting, makes the
binary choice with hysteresis and stamps the unit. Other rows put the taking of four new answers
before it, which a sending thread does once a probe interval and not once a unit: `Feed.poll` takes
what another process' agent would just have published from shared memory, and brings forecasts and
blacklists up to date. Publishing is not timed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.decision import links, pairs, quantile_us
from xtune.policies import PathFinder, Router, preset, replace_fields
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.readings import Reading, ReadingsWriter

NAMES = (
    "policies.choose_p99_vs_call",
    "policies.choose_p99_busy_us",
    "policies.poll_and_choose_p99_vs_call",
    "policies.poll_and_choose_p50_us",
    "policies.poll_and_choose_p99_busy_us",
)

RUNS, ROUNDS = 5, 4000
GOAL_RATIO, GOAL_US = 25.0, 10.0
FLOW = ("h0.0", "h3.1", 7)
WARM, COLD = 0.8, 0.1


class _Bench:
    """A router, its feed, and a table whose four paths are the links of one flow's choice."""

    def __init__(self, table: Path) -> None:
        sets = PathFinder(links()).path_sets(pairs())
        policy = replace_fields(
            preset("joint"), {"routing.pairs": 1, "routing.exit_occupancy": 0.3}
        )
        self.router = Router(sets, policy)
        primary, other = sets[FLOW[:2]][0], sets[FLOW[:2]][1]
        probed = [*primary[1:3], *other[1:3]]
        for link in {link for path in sets[FLOW[:2]] for link in path}.difference(probed):
            self.router.observe(link, occupancy=0.5)  # not cold: the other path is all there is
        self.writer = ReadingsWriter(table, probed)
        self.feed = Feed(table, self.router)
        self.sent = 0
        self.publish()
        self.feed.poll()

    def publish(self, occupancy: tuple[float, ...] = (WARM, WARM, COLD, COLD)) -> None:
        """One more answer of each of the four paths."""
        self.sent += 1
        now_ns = time.monotonic_ns()
        for index, share in enumerate(occupancy):
            self.writer.publish(
                index,
                Reading(
                    finished=self.sent, finished_ns=now_ns, answered_ns=now_ns, rtt_ns=40_000,
                    jitter_ns=900.0, occupancy=share, error_rate=0.0, sent=self.sent,
                ),
            )  # fmt: skip
        self.writer.beat()


def _noop(router: Router, flow: tuple[str, str, int]) -> int:
    return 0


def _once(bench: _Bench) -> list[float]:
    router, feed, clock = bench.router, bench.feed, time.perf_counter_ns
    whole, alone, bare = [], [], []
    for _ in range(ROUNDS):
        bench.publish()
        started = clock()
        feed.poll()
        router.assign(FLOW)
        whole.append(clock() - started)
        started = clock()
        router.assign(FLOW)
        alone.append(clock() - started)
        started = clock()
        _noop(router, FLOW)
        bare.append(clock() - started)
    return [
        quantile_us(whole, 0.5),
        quantile_us(whole, 0.99),
        quantile_us(alone, 0.99),
        quantile_us(bare, 0.99),
    ]


@contextlib.contextmanager
def _busy_thread() -> Iterator[None]:
    """A thread that computes in plain Python meanwhile."""
    stop = threading.Event()

    def spin() -> None:
        total = 0
        while not stop.is_set():
            total += sum(range(100))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run() -> list[dict]:
    """Medians of several runs, quiet and beside a busy thread."""
    table = Path(f"/dev/shm/xtune-bench-{os.getpid()}")
    bench = _Bench(table)
    try:
        quiet = [_once(bench) for _ in range(RUNS)]
        with _busy_thread():
            busy = [_once(bench) for _ in range(RUNS)]
    finally:
        bench.feed.close()
        bench.writer.close()
        table.with_name(table.name + ".lock").unlink(missing_ok=True)
    p50, p99, alone, bare = (statistics.median(column) for column in zip(*quiet, strict=True))
    busy_whole, busy_alone = (
        statistics.median(column) for column in list(zip(*busy, strict=True))[1:3]
    )
    ratio = statistics.median(row[1] / row[3] for row in quiet)
    in_memory = statistics.median(row[2] / row[3] for row in quiet)
    call = f"p99 of a bare call, {bare:.2f} us"
    beside = "the same beside a busy thread"
    rows = [
        (NAMES[0], in_memory, GOAL_RATIO, alone, call),
        (NAMES[1], None, GOAL_US, busy_alone, f"{beside}; {alone:.2f} us without"),
        (NAMES[2], ratio, None, p99, f"{call}; four new answers taken before it"),
        (NAMES[3], None, GOAL_US, p50, "the founding document's limit for a decision"),
        (NAMES[4], None, None, busy_whole, f"{beside}; {p99:.2f} us without"),
    ]
    return [
        {
            "name": name,
            "ratio": against_call,
            "goal": goal,
            "better": "lower",
            "value": value,
            "unit": "us",
            "against": against,
            "runs": RUNS,
        }
        for name, against_call, goal, value, against in rows
    ]

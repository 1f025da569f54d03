"""The decider over loopback: from a report to the weights in shared memory, and what it takes.

64 hosts that see 32 links each of 2048 report to one decider process, with its default settings
but for timeouts. Latency is from a report to the last part of the snapshot that contains it in the
host's shared memory, on the host's own clock: once with news of one link, where each of the hosts
is the one that has it in turn (one block goes to all of them), and once with news of all links
from all hosts, until the host that is served last has them (the whole matrix of some 50 datagrams
goes to each); with both the decider's own CPU time, as the kernel counts it. The other hosts'
snapshots wait in their sockets meanwhile. Beside it a bare exchange of packets with a process that
sends back what it gets, in turn with it.

Throughput is the reports, and the readings in them, that the decider takes in a second of its own
CPU time: it is given the datagrams of all 64 hosts directly, in full reports.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench._echo import ECHO, KEY, free_port, running
from xtune.policies import Router, preset
from xtune.policies.decider.config import make_config
from xtune.policies.decider.packet import Entry, Record, Report, Wire, pack_body
from xtune.policies.decider.reporter import Reporter
from xtune.policies.decider.server import Decider
from xtune.policies.decider.weights import Block, WeightsFeed, WeightsWriter
from xtune.policies.probe.packet import ends
from xtune.policies.probe.readings import Reading

NAMES = (
    "policies.decider_report_to_push_us",
    "policies.decider_report_to_push_p99_us",
    "policies.decider_push_cpu_us",
    "policies.decider_matrix_to_hosts_us",
    "policies.decider_matrix_cpu_us",
    "policies.decider_reports_per_core",
    "policies.decider_readings_per_core",
    "policies.decider_poll_block_us",
)
RUNS = 5
HOSTS, LINKS = 64, 2048
SINGLE, WHOLE = 128, 3
SETTLE_S = 0.3
APART_S = 0.011  # the default interval between pushes, and a little
FULL = 16  # links that a report has room for, of names as long as these
TURNS = 50


def _links(host: int) -> list[str]:
    """The 32 links that one host sees, of some 20 letters each."""
    each = LINKS // HOSTS
    numbers = range(each * host, each * (host + 1))
    return [f"leaf{n // 32:03}:p{n % 32:02}>spine{n % 16:02}" for n in numbers]


class _Hosts:
    """All hosts' reporters in this process."""

    def __init__(self, folder: Path, port: int) -> None:
        self.reporters = [
            Reporter(
                ("127.0.0.1", port), ("127.0.0.1", 0), f"host{n:02}", _links(n),
                str(folder / f"h{n}.weights"), 1e-6, KEY, time.monotonic_ns, time.time_ns,
            )
            for n in range(HOSTS)
        ]  # fmt: skip
        self._finished = 0

    def tell(self, hosts: Sequence[int], paths: int) -> None:
        """Hosts have a new reading of so many links each, and report it."""
        self._finished += 1
        for host in hosts:
            reporter = self.reporters[host]
            for path in range(paths):
                reporter.changed(path)
            reporter.turn(self._reading)

    def wait(self, host: int) -> None:
        """Take the snapshots of one host until all that it reported is in one."""
        end = time.monotonic() + 60
        reporter = self.reporters[host]
        while reporter.pending:
            select.select((reporter.socket,), (), (), 1.0)
            reporter.receive()
            if time.monotonic() > end:
                raise RuntimeError("no snapshots")

    def meet(self) -> None:
        """Have all hosts follow the decider."""
        while not all(reporter.counts["epochs"] for reporter in self.reporters):
            self.tell(range(HOSTS), 0)
            time.sleep(APART_S)
            self.drain()
        self.tell(range(HOSTS), LINKS // HOSTS)
        for host in range(HOSTS):
            self.wait(host)

    def drain(self) -> None:
        """Take what has come to any host."""
        for reporter in self.reporters:
            while reporter.receive():
                pass

    def close(self) -> None:
        """Close all of them."""
        for reporter in self.reporters:
            reporter.close()

    def _reading(self, path: int) -> Reading:
        now_ns = time.monotonic_ns()
        return Reading(self._finished, 0, now_ns, now_ns, 1000, 0.0, 0.25)


def _cpu_us(pid: int) -> float:
    """CPU time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def _latencies(hosts: _Hosts, decider: int) -> tuple[float, float, float, float, float]:
    """Single reports: median, p99, CPU time; the whole matrix to all hosts: time, CPU time; us."""
    single, whole, spent = [], [], []
    cpu = _cpu_us(decider)
    for turn in range(SINGLE):
        host = turn % HOSTS
        time.sleep(APART_S)
        hosts.drain()
        hosts.tell([host], 1)
        hosts.wait(host)
        single.append(hosts.reporters[host].newest_us or 0.0)
    push = (_cpu_us(decider) - cpu) / SINGLE
    for _ in range(WHOLE):
        time.sleep(SETTLE_S)
        hosts.drain()
        cpu, started = _cpu_us(decider), time.monotonic_ns()
        hosts.tell(range(HOSTS), LINKS // HOSTS)
        hosts.wait(HOSTS - 1)
        whole.append((time.monotonic_ns() - started) / 1000)
        spent.append(_cpu_us(decider) - cpu)
    single.sort()
    p50, p99 = statistics.median(single), single[int(0.99 * len(single))]
    return p50, p99, push, statistics.median(whole), statistics.median(spent)


def _echoed(port: int) -> float:
    """Median round trip of bare packets of a report's size, us."""
    trips = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.connect(("127.0.0.1", port))
        for _ in range(SINGLE):
            time.sleep(APART_S)
            started = time.monotonic_ns()
            channel.send(bytes(120))
            channel.recv(1400)
            trips.append(time.monotonic_ns() - started)
    return statistics.median(trips) / 1000


def _throughput(folder: Path) -> tuple[float, float]:
    """Reports, and readings in them, that a decider takes in a second of its CPU time."""
    port = free_port()
    said = {"listen": f"127.0.0.1:{port}", "state": str(folder / "cpu"), "push_interval_s": 60}
    decider = Decider(make_config(said), KEY)
    epoch, wire = decider.counters()["epoch"], Wire(KEY)
    channels = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(HOSTS)]
    cpu = 0.0
    for channel in channels:
        channel.bind(("127.0.0.1", 0))
        channel.connect(("127.0.0.1", port))
    for turn in range(1, TURNS + 1):
        for host, channel in enumerate(channels):
            records = [
                Record(path, link, turn, 0, 1000, 1000, 0.25, 0.0)
                for path, link in enumerate(_links(host)[:FULL])
            ]
            report = Report(turn, turn, 1, epoch, f"host{host:02}", tuple(records))
            way = ends(channel.getsockname(), channel.getpeername())
            channel.send(wire.pack_report(report, way))
        started = time.process_time()
        decider.turn()
        cpu += time.process_time() - started if turn > 1 else 0.0
    counts = decider.counters()
    decider.close()
    for channel in channels:
        channel.close()
    if counts["reports"] != HOSTS * TURNS:
        raise RuntimeError(f"{counts['reports']} of {HOSTS * TURNS} reports came")
    reports = HOSTS * (TURNS - 1) / cpu
    return reports, reports * FULL


def _polled(folder: Path) -> float:
    """Median time of a poll that finds one block of links with news, all of the router's, us."""
    router = Router({("a", "b"): [[link] for link in _links(0)]}, preset("joint"))
    writer = WeightsWriter(folder / "polled", 1, ())
    feed = WeightsFeed(folder / "polled", router)
    body = pack_body([Entry(link, 0.25, 10, 1) for link in _links(0)])
    times = []
    for version in range(1, 1001):
        writer.publish(0, Block(1, version, time.monotonic_ns(), body))
        writer.beat()
        started = time.perf_counter_ns()
        feed.poll()
        times.append(time.perf_counter_ns() - started)
    feed.close()
    writer.close()
    return statistics.median(times) / 1000


def run() -> list[dict[str, object]]:
    """Medians of several runs, in turn."""
    rows: list[list[float]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, ExitStack() as stack:
        folder = Path(name)
        port = free_port()
        said = {
            "listen": f"127.0.0.1:{port}",
            "state": str(folder / "state"),
            "routing": {"stale_ns": 10**12},
            "host_timeout_s": 3600,  # they are silent while something else is measured
        }
        (folder / "decider.json").write_text(json.dumps(said))
        command = ("-m", "xtune.policies.decider", "run", "--config", str(folder / "decider.json"))
        _, decider = stack.enter_context(running(*command))
        echo = int(stack.enter_context(running("-c", ECHO))[0])
        hosts = _Hosts(folder, port)
        stack.callback(hosts.close)
        hosts.meet()
        for _ in range(RUNS):
            latencies = _latencies(hosts, decider)
            rows.append([*latencies, _echoed(echo), *_throughput(folder), _polled(folder)])
    p50, p99, push, whole, spent, bare, reports, readings, poll = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    exchange = f"a bare exchange of packets: {bare:.0f} us"
    described: list[tuple[float | None, str, float, str, str]] = [
        (p50 / bare, "lower", p50, "us", f"{exchange}; one link of {LINKS} has news"),
        (p99 / bare, "lower", p99, "us", f"{exchange}, at its median"),
        (None, "lower", push, "us of CPU", f"the same: a report in, one block to {HOSTS} hosts"),
        (
            whole / bare, "lower", whole, "us",
            f"{exchange}; all links have news, at the host that is served last",
        ),
        (None, "lower", spent, "us of CPU", f"the same: {2 * HOSTS} reports in, to {HOSTS} hosts"),
        (None, "higher", reports, "reports/s of CPU", f"reports of {FULL} links"),
        (None, "higher", readings, "readings/s of CPU", "each forecast and weighed"),
        (None, "lower", poll, "us", f"one block of {LINKS // HOSTS} links into a router"),
    ]  # fmt: skip
    return [
        {
            "name": name, "ratio": ratio, "goal": None, "better": better, "value": value,
            "unit": unit, "against": against, "runs": RUNS,
        }
        for name, (ratio, better, value, unit, against) in zip(NAMES, described, strict=True)
    ]  # fmt: skip

"""Probes over loopback: how many one core sends and takes, and what the agent adds to a trip.

The rate is probes over the agent's own CPU seconds while it probes eight paths as fast as it is
told to; the reflector is a process of its own. The round trip is the median at 1000 probes a
second, beside a bare exchange of packets of the same size with a process that sends back what it
gets, in turn with it.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import time
from pathlib import Path

from bench._echo import ECHO, KEY, free_port, running
from xtune.policies.probe.agent import Agent
from xtune.policies.probe.config import Config
from xtune.policies.probe.config import Path as ProbedPath
from xtune.policies.probe.readings import ReadingsReader

NAMES = ("policies.probe_rate_per_core", "policies.probe_rtt_vs_echo")
RUNS = 5
GOAL_HZ = 10_000
ASKED_HZ = 20_000
PATHS = 8
SECONDS = 2.0
ECHOES = 1000


def _probed(
    folder: Path, port: int, paths: int, rate_hz: float
) -> tuple[float, float, float, float]:
    """Probes a CPU second, probes a second, median round trip in us, share answered."""
    config = Config(
        readings=str(folder / "table"),
        rate_hz=rate_hz / paths,
        timeout_s=1.0,
        paths=tuple(
            ProbedPath(
                name=f"p{i}", local=("127.0.0.1", 0), remote=("127.0.0.1", port), dst="b", number=i
            )
            for i in range(paths)
        ),
    )
    agent = Agent(config, KEY)
    reader = ReadingsReader(folder / "table")
    trips: list[int] = []
    cpu, started = time.process_time(), time.monotonic()
    while time.monotonic() - started < SECONDS:
        agent.turn()
        reading = reader.read(0)
        if reading is not None and reading.rtt_ns is not None:
            trips.append(reading.rtt_ns)
    cpu, seconds = time.process_time() - cpu, time.monotonic() - started
    last = [reading for i in range(paths) if (reading := reader.read(i)) is not None]
    answered = sum(reading.finished - reading.lost for reading in last)
    sent = sum(reading.sent for reading in last)
    reader.close()
    agent.close()
    return answered / cpu, answered / seconds, statistics.median(trips) / 1000, answered / sent


def _echoed(port: int) -> float:
    """Median round trip of bare packets, us."""
    trips = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.connect(("127.0.0.1", port))
        for _ in range(ECHOES):
            time.sleep(0.001)  # as far apart as the probes are, so that both find a sleeping peer
            started = time.monotonic_ns()
            channel.send(bytes(36))
            channel.recv(64)
            trips.append(time.monotonic_ns() - started)
    return statistics.median(trips) / 1000


def run() -> list[dict[str, object]]:
    """Medians of several runs, in turn."""
    port = free_port()
    rates, trips, echoes = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(
            json.dumps({"readings": str(folder / "r"), "listen": [{"local": f"127.0.0.1:{port}"}]})
        )
        command = (
            "-m",
            "xtune.policies.probe",
            "reflect",
            "--config",
            str(folder / "config.json"),
        )
        with running(*command), running("-c", ECHO) as (echo, _):
            for _ in range(RUNS):
                rates.append(_probed(folder, port, PATHS, ASKED_HZ))
                trips.append(_probed(folder, port, 1, 1000)[2])
                echoes.append(_echoed(int(echo)))
    per_core, reached, _, share = (statistics.median(c) for c in zip(*rates, strict=True))
    ours, theirs = statistics.median(trips), statistics.median(echoes)
    return [
        {
            "name": NAMES[0],
            "ratio": None,
            "goal": GOAL_HZ,
            "better": "higher",
            "value": per_core,
            "unit": "probes/s of CPU",
            "against": f"R1's rate a core; {reached:.0f} probes/s by the clock of {ASKED_HZ} "
            f"asked, on {PATHS} paths beside the reflector, {share:.1%} answered in 1 s",
            "runs": RUNS,
        },
        {
            "name": NAMES[1],
            "ratio": ours / theirs,
            "goal": None,
            "better": "lower",
            "value": ours,
            "unit": "us",
            "against": f"a bare exchange of packets of 36 bytes: {theirs:.0f} us",
            "runs": RUNS,
        },
    ]

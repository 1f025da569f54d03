"""Two hosts joined by two cables, each host a network of its own: agent, feed and router.

The router runs outside; it reads the table that the agent writes inside.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probe.helpers import LIMIT_S, Served, serve, until
from xtune.policies import Router, preset, replace_fields
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.readings import ReadingsReader

FLOW = ("h0", "h1", 0)
PORT = 4790


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=LIMIT_S)


class Network:
    """The two namespaces, which are those of two processes that wait."""

    def __init__(self, holders: list[subprocess.Popen[str]]) -> None:
        self.inside = [("nsenter", "--target", str(h.pid), "--net") for h in holders]
        for cable in range(2):
            first, second = (str(holder.pid) for holder in holders)
            call(
                "ip", "link", "add", "name", f"c{cable}", "netns", first,
                "type", "veth", "peer", "name", f"c{cable}", "netns", second,
            )  # fmt: skip
            for host in range(2):
                self.call(host, "ip", "address", "add", f"198.18.{cable}.{host + 1}/24",
                          "dev", f"c{cable}")  # fmt: skip
                self.call(host, "ip", "link", "set", f"c{cable}", "up")

    def call(self, host: int, *words: str) -> None:
        call(*self.inside[host], *words)

    def cable(self, number: int, state: str) -> None:
        """Pull or plug one, at the far end."""
        self.call(1, "ip", "link", "set", f"c{number}", state)


@pytest.fixture
def network() -> Iterator[Network]:
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("needs unshare, nsenter and ip")
    with contextlib.ExitStack() as stack:
        holders = []
        for _ in range(2):
            command = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
            holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            stack.enter_context(holder)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip("needs the right to make network namespaces")
            holders.append(holder)
        yield Network(holders)


def test_paths_killed_and_restored_and_the_agent_killed(tmp_path: Path, network: Network) -> None:
    (tmp_path / "depth0").write_text("0\n")
    config = {
        "readings": str(tmp_path / "table"), "rate_hz": 50, "timeout_s": 0.2,
        "paths": [
            {"name": f"c{i}", "local": f"198.18.{i}.1", "remote": f"198.18.{i}.2:{PORT}"}
            for i in range(2)
        ],
        "listen": [
            {"local": f"198.18.{i}.2:{PORT}",
             "sources": {"occupancy": {"file": str(tmp_path / f"depth{i}"), "limit": 100}}}
            for i in range(2)
        ],
    }  # fmt: skip
    (tmp_path / "depth1").write_text("10\n")
    # Far slower than a machine needs, so that a busy one does not lose a probe by itself.
    changes = {"routing.pairs": 1, "routing.stale_ns": 10**10, "routing.hold_ns": 0}
    router = Router({("h0", "h1"): [["c0"], ["c1"]]}, replace_fields(preset("joint"), changes))
    feed = Feed(tmp_path / "table", router, stale_ns=2 * 10**9)

    def chooses(index: int) -> bool:
        feed.poll()
        return router.choose(FLOW) == index

    with (
        serve("reflect", config, tmp_path, network.inside[1]),
        serve("agent", config, tmp_path, network.inside[0]) as agent,
    ):
        reader = ReadingsReader(tmp_path / "table")
        until(lambda: _occupancy(reader, 0) == 0.0, "what the far end knows of one cable")
        until(lambda: _occupancy(reader, 1) == pytest.approx(0.1, abs=1e-4), "and of the other")
        until(lambda: chooses(0), "the primary while all is well")
        network.cable(0, "down")
        until(lambda: chooses(1), "the alternative while the primary is dead")
        network.cable(1, "down")
        until(lambda: chooses(0), "the primary where all are dead")
        network.cable(1, "up")
        until(lambda: chooses(1), "the alternative, admitted again")
        network.cable(0, "up")
        until(lambda: chooses(0), "the primary, admitted again")
        (tmp_path / "depth0").write_text("95\n")
        until(lambda: chooses(1), "the alternative while the primary is warm")
        _agent_dies(agent, feed)
        assert feed.poll() == 0
        future_ns = router.links.seen_ns[0] + 10**10 + 1
        assert router.choose(FLOW, at_ns=future_ns) == 0  # static, as without probes
        reader.close()
    feed.close()


def _occupancy(reader: ReadingsReader, index: int) -> float | None:
    reading = reader.read(index)
    return None if reading is None else reading.occupancy


def _agent_dies(agent: Served, feed: Feed) -> None:
    agent.kill()
    agent.wait()
    until(lambda: not feed.alive, "stale readings")

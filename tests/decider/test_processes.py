"""Agents, reflectors and deciders as processes of their own, over loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.decider.helpers import MS, free_port, settings_of
from tests.probe.helpers import LIMIT_S, Served, serve, until
from xtune.export._module import module_files
from xtune.policies import Router, preset, replace_fields
from xtune.policies.decider.packet import Entry
from xtune.policies.decider.weights import WeightsFeed, WeightsReader
from xtune.policies.probe.table import TableError

STALE_NS = 1_000 * MS  # generous: the machine may be busy
MODULE = "xtune.policies.decider"


class Fabric:
    """One reflector, a file for each path's queue, and who is served beside them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.decider_port, self.reflector_port = free_port(), free_port()
        reflector = {
            "readings": str(folder / "reflector"),
            "listen": [{"local": f"127.0.0.1:{self.reflector_port}"}],
        }
        stack.enter_context(serve("reflect", reflector, folder))

    def fill(self, queue: str, share: float) -> None:
        """Set how full a queue is."""
        fresh = self.folder / f"{queue}.new"
        fresh.write_text(f"{share * 64:.0f}\n")
        fresh.rename(self.folder / queue)

    def decider(self, module: str = MODULE, **more: Any) -> Served:
        said = settings_of(self.folder, self.decider_port, **more)
        said["routing"]["stale_ns"] = STALE_NS
        return self.stack.enter_context(serve("run", said, self.folder, module=module))

    def agent(self, host: str, queues: dict[str, str | None]) -> Served:
        """An agent with a path for each link; one without a queue leads to nobody."""
        dead_port = free_port()
        paths = []
        for link, queue in queues.items():
            port = dead_port if queue is None else self.reflector_port
            path: dict[str, Any] = {
                "name": f"{host}:{link}", "link": link, "local": "127.0.0.1",
                "remote": f"127.0.0.1:{port}",
            }  # fmt: skip
            if queue is not None:
                file = str(self.folder / queue)
                path["sources"] = {"occupancy": {"file": file, "limit": 64}}
            paths.append(path)
        said = {
            "host": host, "readings": str(self.folder / host), "rate_hz": 50, "timeout_s": 1,
            "decider": f"127.0.0.1:{self.decider_port}", "report_interval_s": 0.02,
            "source_interval_s": 1e-9, "paths": paths,
        }  # fmt: skip
        return self.stack.enter_context(serve("agent", said, self.folder))

    def weights(self, host: str) -> Path:
        return self.folder / f"{host}.weights"


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    with contextlib.ExitStack() as stack:
        yield Fabric(tmp_path, stack)


def known(path: Path) -> dict[str, Entry]:
    """What a host, or the decider, knows of links; nothing where it is not alive."""
    try:
        reader = WeightsReader(path)
    except (OSError, TableError):
        return {}
    try:
        if not reader.alive():
            return {}
        return {e.link: e for b in reader.blocks() for e in b.entries() if e.age_us is not None}
    finally:
        reader.close()


def test_what_hosts_see_of_one_link_and_what_they_lose(fabric: Fabric) -> None:
    """The worst of two readings; a path lost by one host alone; one lost by all."""
    fabric.fill("low", 0.25)
    fabric.fill("high", 0.75)
    fabric.decider()
    fabric.agent("h0", {"a>b": "low", "a>c": None, "a>d": None})
    fabric.agent("h1", {"a>b": "high", "a>c": "low"})

    def seen() -> bool:
        for host in ("h0", "h1"):
            links = known(fabric.weights(host))
            if {name: entry.weight for name, entry in links.items()} != expected:
                return False
            if {name: entry.reporters for name, entry in links.items()} != reporters:
                return False
        return True

    expected = {"a>b": 0.75, "a>c": 0.25, "a>d": float("inf")}
    reporters = {"a>b": 2, "a>c": 1, "a>d": 1}
    until(seen, f"{expected} at both hosts")
    fabric.fill("high", 0.125)
    expected["a>b"] = 0.25
    until(seen, "the fuller reading is the other one's now")


def test_a_decider_that_is_killed_is_noticed_and_its_successor_knows_all_again(
    fabric: Fabric,
) -> None:
    fabric.fill("low", 0.25)
    fabric.fill("high", 0.75)
    first = fabric.decider()
    fabric.agent("h0", {"up": "high", "down": "low"})
    path = fabric.weights("h0")
    policy = replace_fields(preset("joint"), {"routing.stale_ns": STALE_NS, "routing.pairs": 1})
    router = Router({("h0", "h1"): [["up"], ["down"]]}, policy)
    feed = WeightsFeed(path, router)
    flow = ("h0", "h1", 0)

    def path_in_use() -> int:
        feed.poll()
        return router.choose(flow)

    until(lambda: path_in_use() == 1, "the primary is full, as the decider says")
    reader = WeightsReader(path)
    epoch = reader.blocks()[0].epoch
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: not feed.alive, "silence is noticed")
    until(lambda: path_in_use() == 0, "verdicts too old: static again")
    second = fabric.decider()
    until(lambda: path_in_use() == 1, "the successor says the same")
    until(lambda: set(known(path)) == {"up", "down"}, "both links")
    assert {block.epoch for block in reader.blocks()}.isdisjoint({epoch, 0})
    reader.close()
    feed.close()
    counts = second.end()
    assert counts["records_refused"] == counts["hosts_refused"] == counts["replayed"] == 0


@pytest.mark.slow
def test_an_agent_that_dies_takes_its_readings_with_it(fabric: Fabric) -> None:
    fabric.fill("low", 0.25)
    fabric.fill("high", 0.75)
    decider = fabric.decider(host_timeout_s=1)
    fabric.agent("h0", {"a>b": "low"})
    dying = fabric.agent("h1", {"a>b": "high", "h1>x": "high"})
    path = fabric.weights("h0")
    until(lambda: known(path).get("a>b", Entry("")).weight == 0.75, "both readings")
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    until(lambda: known(path).get("a>b", Entry("")).weight == 0.25, "the living one's alone")
    until(lambda: "h1>x" not in known(fabric.folder / "state"), "no verdict on its own link")
    until(lambda: hosts(fabric.folder / "state") == ["h0"], "one host less")
    assert decider.end()["hosts_lost"] == 1


def hosts(state: Path) -> list[str]:
    return [line["host"] for line in show(state) if "host" in line]


def show(path: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "show", str(path)],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_versions_rise_for_every_reader_and_every_report_is_counted(fabric: Fabric) -> None:
    for queue in ("low", "high"):
        fabric.fill(queue, 0.5)
    decider = fabric.decider()
    agents = [fabric.agent(host, {"a>b": "low", f"{host}>x": "high"}) for host in ("h0", "h1")]
    paths = [fabric.weights(host) for host in ("h0", "h1")]
    until(lambda: all(len(known(path)) == 3 for path in paths), "all links at both hosts")
    readers = [WeightsReader(path) for path in (*paths, fabric.folder / "state")]
    newest: dict[tuple[int, int], tuple[int, int]] = {}

    def enough() -> bool:
        for which, reader in enumerate(readers):
            for number in range(2):
                block = reader.block(number)
                if block is None:
                    continue
                version = block.epoch, block.version
                assert version >= newest.get((which, number), (0, 0))
                newest[which, number] = version
        return all(version > 100 for _, version in newest.values())

    until(enough, "a hundred versions")
    for reader in readers:
        reader.close()
    reported = [agent.end() for agent in agents]
    until(lambda: not known(paths[0]), "the agents' tables are gone")
    counts = decider.end()
    dropped = sum(counts[name] for name in ("truncated", "foreign", "forged", "replayed"))
    sent = sum(host["decider_reports"] for host in reported)
    assert dropped == 0 and counts["reports"] + counts["other_epoch"] == sent
    assert counts["records"] == sum(host["decider_records"] for host in reported)
    taken = sum(host["decider_snapshots"] for host in reported)
    assert 0 < taken <= counts["pushed"]
    assert sum(host["decider_older_version"] for host in reported) == 0


@pytest.mark.slow
def test_show_tells_what_each_side_knows(fabric: Fabric) -> None:
    fabric.fill("low", 0.25)
    fabric.decider()
    fabric.agent("h0", {"a>b": "low", "a>c": None})

    def links(path: Path) -> dict[str, tuple[Any, Any]]:
        return {x["link"]: (x["weight"], x["blacklisted"]) for x in show(path) if "link" in x}

    expected = {"a>b": (0.25, False), "a>c": (None, True)}
    for path in (fabric.folder / "state", fabric.weights("h0")):
        until(lambda path=path: links(path) == expected, "both links")  # type: ignore[misc]
    until(
        lambda: any(line.get("reports_measured") for line in show(fabric.weights("h0"))), "times"
    )
    (note,) = (line for line in show(fabric.weights("h0")) if "decider" in line)
    assert 0 < note["report_to_weights_p50_us"] <= note["report_to_weights_p99_us"]

    def counted() -> bool:  # once a second
        head, *rest = show(fabric.folder / "state")
        told = [(x["host"], x["paths"]) for x in rest if "host" in x and x["heard_s"] >= 0]
        both = head["alive"], head["hosts"], head["links"], told
        return both == (True, 1, 2, [("h0", 2)])

    until(counted, "one host with two paths, and two links")


@pytest.mark.slow
def test_it_runs_from_an_exported_module(fabric: Fabric) -> None:
    content, _ = module_files(preset("joint"), "deciding")
    for name, data in content.items():
        file = fabric.folder / "xtune_policy_deciding" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    fabric.fill("low", 0.25)
    fabric.decider(module="xtune_policy_deciding.engine.decider")
    fabric.agent("h0", {"a>b": "low"})
    until(lambda: "a>b" in known(fabric.weights("h0")), "a weight")


@pytest.mark.parametrize("command", [["run", "--config", "none"], ["show", "none"]])
def test_what_cannot_run_says_so_in_one_line(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, *command],
        capture_output=True, text=True, timeout=LIMIT_S, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("decider: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_second_decider_on_one_state_or_address_is_refused(fabric: Fabric) -> None:
    fabric.decider()
    for state in ("state", "another"):
        said = settings_of(fabric.folder, fabric.decider_port, state=str(fabric.folder / state))
        file = fabric.folder / "second.json"
        file.write_text(json.dumps(said))
        done = subprocess.run(
            [sys.executable, "-m", MODULE, "run", "--config", str(file)],
            capture_output=True, text=True, timeout=LIMIT_S,
            env=os.environ | {"XTUNE_PROBE_KEY": "00" * 16},
        )  # fmt: skip
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert not (fabric.folder / "another").exists()


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import json, sys\n"
        "from xtune.policies.decider import config, server, reporter, weights, __main__\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert {"numpy", "torch", "numba"}.isdisjoint(json.loads(done.stdout))

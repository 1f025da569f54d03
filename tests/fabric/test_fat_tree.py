"""A fat tree under a real subnet manager, read as a user would read it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fabric._simulator import Simulator
from xtune.lake import Lake

pytestmark = pytest.mark.xdist_group("fabric")

#: Counters that the tools' own traffic does not move: (is host, number, port) -> values set.
SET: dict[tuple[bool, int, int], dict[str, int]] = {
    (False, 0, 1): {
        "PortCounters.PortXmitWait": 4_242_424,
        "PortCounters.PortXmitDiscards": 17,
        "PortCounters.PortRcvErrors": 3,
        "PortCountersExtended.PortUnicastXmitPkts": 12_345_678_901_234,
    },
    (False, 3, 21): {
        "PortCounters.LinkDownedCounter": 255,
        "PortCounters.PortXmitWait": 2**32 - 1,
    },
    (True, 5, 1): {
        "PortCounters.SymbolErrorCounter": 65535,
        "PortCounters.LinkErrorRecoveryCounter": 9,
        "PortCountersExtended.PortUnicastRcvPkts": 77,
    },
}
#: What must be in the lake then: None where the counter is stuck at its maximum.
KEPT: dict[tuple[bool, int, int], dict[str, int | None]] = {
    (False, 0, 1): {
        "port_xmit_wait": 4_242_424,
        "port_xmit_discards": 17,
        "port_rcv_errors": 3,
        "unicast_xmit_packets": 12_345_678_901_234,
        "symbol_error": 0,
    },
    (False, 3, 21): {"link_downed": None, "port_xmit_wait": None},
    (True, 5, 1): {"symbol_error": None, "link_error_recovery": 9, "unicast_rcv_packets": 77},
}
STEADY = [
    "port_xmit_wait",
    "port_xmit_discards",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
]


def xtune(fabric: Simulator, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the simulated fabric's tools first in PATH."""
    return subprocess.run(
        [sys.executable, "-m", "xtune", *words],
        capture_output=True,
        text=True,
        env=fabric.environment,
        timeout=120,
        check=False,
    )


def rows_of(lake: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table; ``ts`` in ns."""
    found = Lake.open(lake).read(table)
    times = found["ts"].cast("int64")
    rows: list[dict[str, Any]] = found.drop_columns(["ts"]).append_column("ts", times).to_pylist()
    return rows


def guid_of(fabric: Simulator, is_host: bool, number: int) -> str:
    return fabric.tree.host(number) if is_host else fabric.tree.leaf(number)


def save_outputs(fabric: Simulator, texts: Path) -> None:
    """What the tools print of the same fabric at the same time, as a user would save it."""
    texts.mkdir()
    topology = fabric.tool("ibnetdiscover")
    (texts / "topology").write_text(topology)
    zero = ("--threshold-file", "/dev/null")
    (texts / "errors").write_text(fabric.tool("ibqueryerrors", *zero, "--report-port", "--data"))
    (texts / "data").write_text(fabric.tool("ibqueryerrors", *zero, "--counters"))
    lids = {
        *re.findall(r"port 0 lid (\d+)", topology)[:3],
        *re.findall(r"# lid (\d+)", topology)[:9],
    }
    lids |= {str(_lid(fabric, is_host, number)) for is_host, number, _ in SET}
    loop = []
    for lid in sorted(lids):
        loop.append(fabric.tool("smpquery", "nodeinfo", lid))
        for extended in ((), ("-x",)):
            loop.append(fabric.tool("perfquery", *extended, "-l", "-a", lid))
    (texts / "loop").write_text("".join(loop))


@pytest.fixture(scope="module")
def lake(fabric: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one reading of the fabric with the counters of SET has left."""
    for (is_host, number, port), values in SET.items():
        fabric.set(guid_of(fabric, is_host, number), port, values, is_host=is_host)
    folder = tmp_path_factory.mktemp("collected") / "lake"
    done = xtune(
        fabric, "collect", "--fabric", "--duration", "1s", "--json", "--lake", str(folder)
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["samples"], document["problems"]) == (1, [])
    # One discovery, two readings, and two questions to one node of each kind of device; one that
    # crashes under the simulator is run again.
    assert 1 + 2 + 2 * 2 <= document["processes"] <= 1 + 2 + 2 * 2 + 2
    save_outputs(fabric, folder.parent / "texts")
    return folder


def test_every_link_is_there_in_both_directions(fabric: Simulator, lake: Path) -> None:
    rows = rows_of(lake, "topology_links")
    ends = {(r["src_guid"], r["src_port"], r["dst_guid"], r["dst_port"]) for r in rows}
    assert len(rows) == len(ends)
    assert ends == fabric.tree.directions()
    assert {(r["width"], r["rate_gbps"]) for r in rows} == {("4X", 200.0)}
    hosts = {fabric.tree.host(n) for n in range(64)}
    assert all((r["tier"] == 0) == bool({r["src_guid"], r["dst_guid"]} & hosts) for r in rows)


def test_every_port_is_there_with_its_name_and_kind(fabric: Simulator, lake: Path) -> None:
    rows = rows_of(lake, "ports")
    assert {r["link"] for r in rows} == {f"{a}/{b}" for a, b, _, _ in fabric.tree.directions()}
    by_node = {r["node_guid"]: r for r in rows}
    assert by_node[fabric.tree.spine(2)]["node_description"] == "spine2"
    assert by_node[fabric.tree.spine(2)]["device_family"] == "Quantum-2"
    host = by_node[fabric.tree.host(9)]
    assert host["node_description"] == fabric.tree.host_name(9)
    assert host["device_family"] == "ConnectX-7"
    assert int(host["port_guid"], 16) == int(fabric.tree.host(9), 16) + 1


def test_counters_are_those_that_were_set(fabric: Simulator, lake: Path) -> None:
    rows = {r["link"]: r for r in rows_of(lake, "link_counters")}
    assert set(rows) == {f"{a}/{b}" for a, b, _, _ in fabric.tree.directions()}
    touched = set()
    for (is_host, number, port), values in KEPT.items():
        link = f"{guid_of(fabric, is_host, number)}/{port}"
        touched.add(link)
        assert {name: rows[link][name] for name in values} == values
        stuck = {name for name, value in values.items() if value is None}
        assert set(rows[link]["saturated"] or []) == stuck
    for link in rows.keys() - touched:
        assert {rows[link][name] for name in STEADY} == {0}, link
        assert rows[link]["port_xmit_data"] is not None
        assert rows[link]["rate_gbps"] == 200.0
        assert abs(time.time() - rows[link]["ts"] / 1e9) < 600


def test_saved_outputs_of_the_tools_give_the_same_counters(
    fabric: Simulator, lake: Path, tmp_path: Path
) -> None:
    """Three ways to the same counters: --fabric, ibqueryerrors' files, perfquery's file."""
    texts = lake.parent / "texts"
    folder = tmp_path / "lake"
    done = xtune(fabric, "collect", str(texts), "--json", "--lake", str(folder))
    assert done.returncode == 0, done.stderr
    kinds = {Path(f["path"]).name: f["kind"] for f in json.loads(done.stdout)["files"]}
    assert kinds == {
        "topology": "ibnetdiscover",
        "errors": "ibqueryerrors",
        "data": "ibqueryerrors",
        "loop": "perfquery",
    }
    live = {r["link"]: r for r in rows_of(lake, "link_counters")}
    nodes = {
        f"{r['port_guid']}/{r['port']}": r["link"]
        for r in rows_of(lake, "ports")
        if r["port_guid"]
    }
    compared: dict[str, set[str]] = {}
    for row in rows_of(folder, "link_counters"):
        link = nodes.get(row["link"], row["link"])
        if link not in live:
            continue  # a port without a cable
        for name in STEADY:
            if row[name] is not None:
                assert row[name] == live[link][name], (link, name)
                compared.setdefault(name, set()).add(link)
            elif name in (row["saturated"] or []):
                assert name in live[link]["saturated"]
    leaf = f"{fabric.tree.leaf(0)}/1"
    assert all(leaf in links for links in compared.values()) and len(compared) == len(STEADY)
    assert len(compared["symbol_error"]) > 60 and len(compared["unicast_rcv_packets"]) == 192
    links = {(r["src_guid"], r["src_port"]) for r in rows_of(folder, "topology_links")}
    assert len(links) >= 192


def _lid(fabric: Simulator, is_host: bool, number: int) -> int:
    guid = guid_of(fabric, is_host, number)
    form = rf"^{'CA' if is_host else 'SW'} +(\d+) +\d+ 0x(\w+)"
    wanted = int(guid, 16) + is_host
    for lid, found in re.findall(form, fabric.tool("ibnetdiscover", "-p"), re.M):
        if int(found, 16) == wanted:
            return int(lid)
    raise AssertionError(guid)


def test_the_ports_form_agrees_with_the_topology_form(fabric: Simulator, tmp_path: Path) -> None:
    from tests.collectors_ib.helpers import run_text

    blocks = run_text("ibnetdiscover", tmp_path, fabric.tool("ibnetdiscover", "--full"))
    ports = run_text("ibnetdiscover", tmp_path, fabric.tool("ibnetdiscover", "-p"))
    assert not blocks.rejects and not ports.rejects

    def node(guid: str, extra: dict[str, str], end: str) -> str:
        is_host = int(guid, 16) >= int(fabric.tree.host(0), 16)
        assert (extra.get(f"{end}_guid_is") == "port") == is_host
        return f"0x{int(guid, 16) - is_host:016x}"

    by_node = {
        (node(r["src_guid"], r["extra"], "src"), port): (
            node(r["dst_guid"], r["extra"], "dst"),
            r["dst_port"],
            r["rate_gbps"],
            r["tier"],
        )
        for (_, port), r in ports.links.items()
    }
    assert by_node == {
        end: (r["dst_guid"], r["dst_port"], r["rate_gbps"], r["tier"])
        for end, r in blocks.links.items()
    }
    # Every switch has 36 ports; those without a cable have a row too.
    assert len(ports.rows("ports")) == 12 * 36 + 64


def test_details_are_named_by_the_counter_they_stand_behind(
    fabric: Simulator, tmp_path: Path
) -> None:
    """ibqueryerrors swaps the names of details of discards and receive errors; perfquery not."""
    from tests.collectors_ib.helpers import run_text

    spine = fabric.tree.spine(1)
    values = {
        "PortCounters.PortXmitDiscards": 11,
        "PortXmitDiscardDetails.PortInactiveDiscards": 5,
        "PortXmitDiscardDetails.PortSwHOQLifetimeLimitDiscards": 6,
        "PortCounters.PortRcvErrors": 3,
        "PortRcvErrorDetails.PortLocalPhysicalErrors": 3,
    }
    fabric.set(spine, 2, values, is_host=False)
    try:
        text = fabric.tool("ibqueryerrors", "--threshold-file", "/dev/null", "--details")
        lid = str(
            next(r for r in re.findall(r"^SW +(\d+) +\d+ 0x0*" + spine[2:], _p(fabric), re.M))
        )
        own = fabric.tool("perfquery", "-D", lid, "2") + fabric.tool("perfquery", "-E", lid, "2")
    finally:
        fabric.set(spine, 2, dict.fromkeys(values, 0), is_host=False)
    rows = {r["link"]: r for r in run_text("ibqueryerrors", tmp_path, text).counters}
    (one,) = run_text("perfquery", tmp_path, own).counters
    seen = {k: v for k, v in one["extra"].items() if v}
    assert rows[f"{spine}/2"]["extra"] == seen
    assert seen["port_inactive_discards"] == 5 and seen["port_local_physical_errors"] == 3


def _p(fabric: Simulator) -> str:
    return fabric.tool("ibnetdiscover", "-p")


def test_a_switch_that_loses_every_packet_costs_itself_and_its_hosts_only(
    fabric: Simulator, tmp_path: Path
) -> None:
    """A leaf: no way between others leads through it."""
    leaf = fabric.tree.leaf(5)
    name = f'"S-{leaf[2:]}"'
    fabric.console(f"Error {name} 100")
    try:
        done = xtune(
            fabric, "collect", "--fabric", "--duration", "1s", "--json", "--lake", str(tmp_path)
        )
    finally:
        fabric.console(f"Error {name} 0")
    assert done.returncode == 0, done.stderr
    links = {r["link"] for r in rows_of(tmp_path, "link_counters")}
    assert links == {f"{a}/{b}" for a, b, c, _ in fabric.tree.directions() if leaf not in (a, c)}


def test_an_interrupt_keeps_what_was_read(fabric: Simulator, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "xtune", "collect", "--fabric", "--lake", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=fabric.environment,
    )
    time.sleep(4)
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    samples = int(re.search(r"(\d+) samples", out)[1])  # type: ignore[index]
    assert samples >= 1 and len(rows_of(tmp_path, "link_counters")) >= 192 * (samples - 1)
    # Once, though the fabric was read several times.
    assert len(rows_of(tmp_path, "topology_links")) == 192


def test_rates_follow_from_what_was_read(fabric: Simulator, tmp_path: Path) -> None:
    """Data and waiting set between readings come out of the pipeline as they were set."""
    leaf, port = fabric.tree.leaf(2), fabric.tree.uplink(1)
    words, ticks = 10**9, 10**8  # in a second: 32 Gb/s, and waiting
    process = subprocess.Popen(
        f"{sys.executable} -m xtune collect --fabric --duration 5s --lake {tmp_path}".split(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=fabric.environment,
    )
    for second in range(1, 8):
        values = {
            "PortCountersExtended.PortXmitData": 10**12 + second * words,
            "PortCounters.PortXmitWait": second * ticks,
        }
        fabric.set(leaf, port, values, is_host=False)
        time.sleep(0.8)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    fabric.set(leaf, port, {"PortCounters.PortXmitWait": 0}, is_host=False)
    raw = [r for r in rows_of(tmp_path, "link_counters") if r["link"] == f"{leaf}/{port}"]
    raw.sort(key=lambda r: r["ts"])
    kept = [r for r in raw if r["port_xmit_data"] is not None]
    kept = [r for r in kept if r["port_xmit_data"] >= 10**12]
    assert len(kept) >= 2, said
    assert xtune(fabric, "rebuild", "--lake", str(tmp_path)).returncode == 0
    rates = {
        r["ts"]: r
        for r in rows_of(tmp_path, "derived/link_rates")
        if r["link"] == f"{leaf}/{port}"
    }
    for before, after in itertools.pairwise(kept):
        rate, seconds = rates[after["ts"]], (after["ts"] - before["ts"]) / 1e9
        sent = 4 * (after["port_xmit_data"] - before["port_xmit_data"])
        assert None not in (before["port_xmit_wait"], after["port_xmit_wait"]), said
        waited = after["port_xmit_wait"] - before["port_xmit_wait"]
        assert rate["tx_gbps"] == pytest.approx(sent * 8 / 1e9 / seconds, rel=1e-6)
        # Eight byte times a tick, at 200 Gb/s.
        assert rate["wait_fraction"] == pytest.approx(waited * 8 / (25e9 * seconds), rel=1e-6)


def test_no_command_ever_clears_a_counter(fabric: Simulator, lake: Path) -> None:
    """The simulator's log of every command of these tests: all of them only read."""
    clearing = {"-r", "-R", "-k", "-K", "--Reset_only", "--reset_after_read"}
    commands = [line.split() for line in fabric.commands]
    assert len(commands) > 10
    for words in commands:
        assert not clearing & set(words), words
        assert not any("clear" in word.lower() for word in words), words
    assert sum(r["port_xmit_wait"] or 0 for r in rows_of(lake, "link_counters")) == 4_242_424
    assert "4242424" in fabric.tool("ibqueryerrors", "--threshold-file", "/dev/null")

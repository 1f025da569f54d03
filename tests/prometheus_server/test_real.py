"""What a real Prometheus scraped of a tree of ours, in the lake as it was written."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.collectors_ib.helpers import port_tree, run
from tests.prometheus_server.servers import Servers, fetch, servers
from xtune.lake import Lake
from xtune.tables import COUNTERS

SENT = "node_infiniband_port_data_transmitted_bytes_total"
WORDS = [1_000, 2_500_000_000, 2_500_000_001, 7_000_000_000_000]
WAITS = [5, 6, 4_000_000, 4_000_000_000]


def write_tree(sysfs: Path) -> Path:
    devices = sysfs / "class" / "infiniband"
    devices.mkdir(parents=True)
    for index, port in enumerate(((0, 1), (1, 1), (1, 2))):
        device = port_tree(
            devices,
            f"mlx5_{port[0]}",
            port[1],
            counters={
                "port_xmit_data": WORDS[0],
                "port_rcv_data": 77 + index,
                "port_xmit_packets": 1_000_000,
                "port_rcv_packets": 5,
                "unicast_xmit_packets": 999_000,
                "port_xmit_wait": WAITS[0],
                "link_downed": index,
                "symbol_error": 65535,
                "VL15_dropped": "N/A (no PMA)",
            },
            fw_ver="28.39.1002",
            hca_type="MT4129",
            board_id="MT_0000000838",
        )
        (device / "ports" / str(port[1]) / "phys_state").write_text("5: LinkUp\n")
    return devices


def replace(path: Path, value: int) -> None:
    """Write a counter at once, as the kernel does."""
    new = path.with_name(".new")
    new.write_text(f"{value}\n")
    new.rename(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, Path, str, str]]:
    """The servers, the tree, and the range in which its counters took the values above."""
    folder = tmp_path_factory.mktemp("prometheus")
    devices = write_tree(folder / "sys")
    # So few samples that an answer of 11,000 points is refused.
    with servers(folder, folder / "sys", "/prom", 5000) as found:
        found.until_scraped(SENT, 4 * WORDS[0])
        since = now()
        counters = devices / "mlx5_0" / "ports" / "1" / "counters"
        for words, waits in zip(WORDS[1:], WAITS[1:], strict=True):
            time.sleep(1.2)
            replace(counters / "port_xmit_data", words)
            replace(counters / "port_xmit_wait", waits)
            found.until_scraped(SENT, 4 * words)
        time.sleep(1)
        yield found, folder, since, now()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def xtune(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xtune", "collect", "--kind", "prometheus", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def rows(lake: Path, table: str = "link_counters") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Lake.open(lake).read(table).to_pylist()
    return found


def of_port(lake: Path) -> list[dict[str, Any]]:
    mine = [r for r in rows(lake) if r["link"] == "127.0.0.1/mlx5_0/1"]
    return sorted(mine, key=lambda r: r["ts"])


def test_the_lake_has_what_was_written(
    world: tuple[Servers, Path, str, str], tmp_path: Path
) -> None:
    found, _, since, until = world
    asked = ("--url", found.url, "--since", since, "--until", until)
    done = xtune(tmp_path, *asked, "--json")
    assert done.returncode == 0, done.stderr
    assert "every 1 s" in done.stderr  # the scrape interval, told by the samples
    document = json.loads(done.stdout)
    assert document["totals"]["rejected"] == 0
    lake = tmp_path / "lake"
    ours = of_port(lake)
    assert {r["data_unit_bytes"] for r in ours} == {1}  # node_exporter multiplies by 4
    sent = [r["port_xmit_data"] for r in ours]
    assert list(dict.fromkeys(sent)) == [4 * w for w in WORDS]
    assert list(dict.fromkeys(r["port_xmit_wait"] for r in ours)) == WAITS
    others = [r for r in rows(lake) if r["device"] == "mlx5_1"]
    assert {(r["port"], r["link_downed"], r["port_rcv_data"]) for r in others} == {
        (1, 1, 4 * 78),
        (2, 2, 4 * 79),
    }
    assert {r["rate_gbps"] for r in rows(lake)} == {400.0}
    assert {(p["state"], p["device_family"]) for p in rows(lake, "ports")} == {
        ("ACTIVE", "ConnectX-7")
    }

    before = len(rows(lake))
    again = xtune(tmp_path, *asked)
    assert again.returncode == 0 and "the lake has all of this range" in again.stderr
    assert len(rows(lake)) == before
    later = xtune(tmp_path, "--url", found.url)  # from the last point that the lake has
    assert later.returncode == 0, later.stderr
    moments = [(r["link"], r["ts"]) for r in rows(lake)]
    assert len(moments) == len(set(moments)) >= before


def test_ranges_are_split_at_the_servers_limits(
    world: tuple[Servers, Path, str, str], tmp_path: Path
) -> None:
    found, _, since, _ = world
    start = datetime.fromisoformat(since).timestamp()
    until = datetime.fromtimestamp(start + 4, UTC).isoformat(timespec="milliseconds")
    asked = ("--url", found.url, "--since", since, "--until", until, "--step", "1ms")
    done = xtune(tmp_path, *asked, "--json")
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    # 4,001 points of 3 series are refused (5,000 samples at most), halves are not.
    assert len(files) > 2
    lake = tmp_path / "lake"
    ours = of_port(lake)
    assert len(ours) == 4001
    assert (ours[-1]["ts"] - ours[0]["ts"]).total_seconds() == 4.0
    assert {r["port_xmit_data"] for r in ours} <= {4 * w for w in WORDS}


def test_an_exposition_agrees_with_its_tree(
    world: tuple[Servers, Path, str, str], tmp_path: Path
) -> None:
    found, folder, _, _ = world
    saved = tmp_path / "node.prom"
    saved.write_bytes(fetch(f"{found.exporter}/metrics"))
    exposed = {r["link"].partition("/")[2]: r for r in run("prometheus_text", saved).counters}
    direct = {r["link"].partition("/")[2]: r for r in run("ib_sysfs", folder / "sys").counters}
    assert exposed.keys() == direct.keys() == {"mlx5_0/1", "mlx5_1/1", "mlx5_1/2"}
    compared = 0
    for link, row in exposed.items():
        assert (row["data_unit_bytes"], direct[link]["data_unit_bytes"]) == (1, 4)
        assert row["rate_gbps"] == direct[link]["rate_gbps"] == 400.0
        for name in COUNTERS:
            if row[name] is not None:
                factor = 4 if name in ("port_xmit_data", "port_rcv_data") else 1
                assert row[name] == factor * direct[link][name], (link, name)
                compared += 1
    assert compared >= 3 * 7


@contextmanager
def dying(found: Servers, after: int) -> Iterator[str]:
    """A way to the server on which it is killed at a range query, the one after so many."""

    class Way(BaseHTTPRequestHandler):
        ranges = 0

        def do_GET(self) -> None:
            Way.ranges += "/query_range?" in self.path
            if Way.ranges > after:
                found.process.kill()
                found.process.wait()
            host = found.url.split("/")[2]
            with closing(http.client.HTTPConnection(host, timeout=5)) as upstream:
                try:
                    upstream.request("GET", self.path)
                    answer = upstream.getresponse()
                    body = answer.read()
                except OSError:
                    self.close_connection = True
                    return
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Way)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/prom"
    finally:
        server.shutdown()
        server.server_close()


def test_what_came_before_the_server_died_is_kept(
    world: tuple[Servers, Path, str, str], tmp_path: Path
) -> None:
    found, _, since, until = world
    with dying(found, after=30) as url:
        asked = ("--url", url, "--since", since, "--until", until, "--step", "1ms")
        done = xtune(tmp_path, *asked)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"xtune: {url}:") and "what came is kept" in last
    assert "Traceback" not in done.stderr
    kept = of_port(tmp_path / "lake")
    assert kept and {r["port_xmit_data"] for r in kept} <= {4 * w for w in WORDS}

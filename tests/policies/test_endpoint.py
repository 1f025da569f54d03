"""The congestion signal as a scraper sees it, and what may go wrong around it."""

from __future__ import annotations

import http.client
import logging
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus_server.servers import Servers, fetch, free_port, program, running, until
from xtune.policies import Bus, Endpoint, endpoint, serve
from xtune.policies.handle import Handle

SIGNAL = {
    "level": 2,
    "available_share": 0.25,
    "available_gbps": 100.0,
    "reserve": 0.125,
    "ratio": 0.5,
    "comm_share": None,
}


class Figures:
    """A signal that a test sets."""

    def __init__(self, **changed: Any) -> None:
        self.values: dict[str, Any] = {**SIGNAL, **changed}

    def signal(self) -> dict[str, Any]:
        if self.values["level"] == "broken":
            raise RuntimeError("no level")
        return self.values


@pytest.fixture
def served() -> Iterator[Endpoint]:
    found = serve(Figures())
    yield found
    found.close()


def samples(text: str) -> dict[str, float]:
    """Sample lines of the text format, by name with labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def ask(found: Endpoint, method: str = "GET", path: str = "/metrics") -> tuple[int, str]:
    assert found.address is not None
    client = http.client.HTTPConnection(found.address, timeout=10)
    client.request(method, path)
    answer = client.getresponse()
    status, body = answer.status, answer.read().decode()
    client.close()
    return status, body


def port_of(found: Endpoint) -> int:
    assert found.address is not None
    return int(found.address.rpartition(":")[2])


def test_known_figures_are_there_in_base_units_and_unknown_ones_absent(served: Endpoint) -> None:
    status, body = ask(served)
    assert status == 200
    # 100e9 bit/s are 12.5e9 byte/s.
    assert samples(body) == {
        "xtune_congestion_level": 2.0,
        "xtune_available_bandwidth_ratio": 0.25,
        "xtune_available_bandwidth_bytes_per_second": 12.5e9,
        "xtune_reserve_wanted_ratio": 0.125,
        "xtune_compression_ratio": 0.5,
        "xtune_signal_errors_total": 0.0,
    }


def test_nothing_known_is_nothing_said() -> None:
    unknown = dict.fromkeys(SIGNAL) | {"ratio": float("nan")}
    assert samples(endpoint.exposition(unknown)) == {"xtune_signal_errors_total": 0.0}


def test_a_handle_s_own_signal_follows_the_bus() -> None:
    bus = Bus()
    found = serve(Handle(bus, None))
    try:
        assert "xtune_congestion_level" not in samples(ask(found)[1])
        bus.push_routing(level=3, available_share=0.0)
        body = samples(ask(found)[1])
        assert body["xtune_congestion_level"] == 3.0
        assert body["xtune_available_bandwidth_ratio"] == 0.0  # known to be none, so it is there
        assert "xtune_available_bandwidth_bytes_per_second" not in body
    finally:
        found.close()


def test_the_format_s_own_checker_has_no_fault_to_find() -> None:
    labels = {"job": 'a"b\\c\nd', "rank": "0"}
    promtool = shutil.which("promtool") or program("promtool")
    text = endpoint.exposition(Figures(comm_share=0.5).values, labels=labels)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_real_prometheus_scrapes_it(tmp_path: Path) -> None:
    signal = Figures()
    found = serve(signal, labels={"job_name": 'a"b\\c'})
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n  - job_name: signal\n"
        f"    static_configs: [{{targets: ['{found.address}']}}]\n"
    )
    command = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    url = f"http://127.0.0.1:{port}"
    with running(command, tmp_path / "log") as process:
        until(lambda: bool(fetch(f"{url}/-/ready")), "the server did not start")
        server = Servers("", url, process)
        server.until_scraped("xtune_congestion_level", 2)
        assert server.query("xtune_communication_time_ratio") == []
        [series] = server.query("xtune_congestion_level")
        assert series["metric"]["job_name"] == 'a"b\\c'
    found.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("GET", "/metrics?x=1", 200), ("GET", "/else", 404), ("POST", "/", 405)],
)
def test_methods_and_paths(served: Endpoint, method: str, path: str, status: int) -> None:
    assert ask(served, method, path)[0] == status


def test_head_has_the_length_of_what_get_gives(served: Endpoint) -> None:
    body = ask(served)[1]
    client = socket.create_connection(("127.0.0.1", port_of(served)), timeout=10)
    with client, client.makefile("rb") as stream:
        client.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head = stream.read()
    assert f"Content-Length: {len(body.encode())}\r\n".encode() in head
    assert head.endswith(b"\r\n\r\n")


def test_a_signal_that_fails_is_counted_and_the_next_is_served() -> None:
    signal = Figures(level="broken")
    found = serve(signal)
    try:
        assert [ask(found), ask(found)] == [(500, ""), (500, "")]
        signal.values["level"] = 1
        assert samples(ask(found)[1])["xtune_signal_errors_total"] == 2.0
    finally:
        found.close()


def test_a_taken_port_is_one_line(served: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "xtune"):
        second = serve(Figures(), f"127.0.0.1:{port_of(served)}")
    [line] = caplog.messages
    assert "training goes on" in line and f"127.0.0.1:{port_of(served)}" in line
    assert second.address is None
    second.close()
    assert ask(served)[0] == 200  # the one that has it is not disturbed


@pytest.mark.parametrize(
    "address",
    ["", "9100", ":9100", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "203.0.113.1:0",
     "unix:", "unix:/not/there", "unix:/" + "x" * 200, "127.0.0.1:²", None, 9464, b"unix:/x",
     "127.0.0.1\n:0", "\udcff:0"],
)  # fmt: skip
def test_what_is_no_address_is_one_line(
    address: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, "xtune"):
        assert serve(Figures(), address).address is None
    assert len(caplog.messages) == 1 and "\n" not in caplog.text.strip()


@pytest.mark.parametrize(
    "labels",
    [{"job": "a\udcff"}, {"bad name": "x"}, {"": "x"}, {"0a": "x"}, {"ä": "x"}, {"a\n": "x"},
     {1: "x"}, "rank", [("rank", "0")]],
)  # fmt: skip
def test_labels_that_the_format_cannot_have_are_one_line(
    labels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "xtune"):
        assert serve(Figures(), labels=labels).address is None
    [line] = caplog.messages
    assert "label" in line and "training goes on" in line
    assert "\n" not in line and line.encode()  # any log can take it


def test_labels_are_on_every_sample() -> None:
    found = serve(Figures(), labels={"job": "ü\n", "rank": 3})  # type: ignore[dict-item]
    try:
        status, text = ask(found)
    finally:
        found.close()
    names = list(samples(text))
    assert status == 200 and len(names) > 5
    assert all(name.endswith('{job="ü\\n",rank="3"}') for name in names)


def test_close_frees_the_port_and_again_does_nothing(served: Endpoint) -> None:
    port = port_of(served)
    served.close()
    served.close()
    assert served.address is None
    again = serve(Figures(), f"127.0.0.1:{port}")
    assert ask(again)[0] == 200
    again.close()


def test_the_default_is_loopback(served: Endpoint) -> None:
    assert served.address is not None
    assert served.address.startswith("127.0.0.1:")


def test_ipv6() -> None:
    found = serve(Figures(), "[::1]:0")
    if found.address is None:
        pytest.skip("this host has no IPv6")
    assert ask(found)[0] == 200
    found.close()


def test_a_client_that_says_nothing_keeps_neither_others_nor_close(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_CLIENT_S", 0.2)
    with socket.create_connection(("127.0.0.1", port_of(served))):
        assert ask(served)[0] == 200
    monkeypatch.setattr(endpoint, "_CLIENT_S", 3600.0)
    with socket.create_connection(("127.0.0.1", port_of(served))) as idle:
        idle.sendall(b"GET /metr")
        served.close()  # would hang for the hour


def test_a_request_without_end_is_answered_once_it_is_too_long(served: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", port_of(served)), timeout=10) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: ".ljust(8192, b"x"))
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_descriptors_beyond_1023(served: Endpoint) -> None:
    """A job with thousands of open files: ``select`` would refuse them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this user may not open 4096 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        late = serve(Figures())
        assert ask(late)[0] == 200
        late.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def over_file(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as stream:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return stream.read()


def test_a_socket_file_is_this_user_s_alone_and_goes_with_close(tmp_path: Path) -> None:
    path = tmp_path / "signal"
    found = serve(Figures(), f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"xtune_congestion_level 2.0\n" in over_file(path)
    assert serve(Figures(level=1), f"unix:{path}").address is None  # it is taken
    assert b"xtune_congestion_level 2.0\n" in over_file(path)
    found.close()
    assert not path.exists()


def test_a_socket_file_of_a_killed_process_is_replaced_and_no_other_file(tmp_path: Path) -> None:
    path, other = tmp_path / "signal", tmp_path / "thesis"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    found = serve(Figures(), f"unix:{path}")
    assert b"200 OK" in over_file(path)
    found.close()
    other.write_text("years of work")
    assert serve(Figures(), f"unix:{other}").address is None
    assert other.read_text() == "years of work"


FORKED = """
import os, socket
from xtune.policies import serve
class Figures:
    def signal(self):
        return {"level": 2}
found = serve(Figures())
port = int(found.address.rpartition(":")[2])
told, tell = os.pipe()
if os.fork() == 0:
    assert found.address is None
    found.close()                      # the parent's endpoint is none of the child's
    mine = serve(Figures())            # but it may have one
    with socket.create_connection(("127.0.0.1", int(mine.address.rpartition(":")[2]))) as client:
        client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    os.write(tell, b"x")
    os.read(told2 := os.open(os.environ["GATE"], os.O_RDONLY), 1)
    os._exit(0)
assert os.read(told, 1) == b"x"
with socket.create_connection(("127.0.0.1", port)) as client:
    client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    assert client.recv(15) == b"HTTP/1.1 200 OK"
found.close()
again = serve(Figures(), f"127.0.0.1:{port}")   # the living child does not hold the port
print(again.address == f"127.0.0.1:{port}")
gate = os.open(os.environ["GATE"], os.O_WRONLY)
os.write(gate, b"x")
print(os.wait()[1])
"""


def test_a_forked_child_does_not_hold_the_port(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env={**os.environ, "GATE": str(gate)}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["True", "0"], "")


ENDS = """
import sys
from xtune.policies import serve
class Figures:
    def signal(self):
        return {"level": 2}
found = serve(Figures(), "unix:" + sys.argv[1])
kept = serve(Figures())
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(found.address, kept.address)
"""


def test_it_ends_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "signal"
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(path)], timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert "None" not in done.stdout
    assert not path.exists()


def test_an_exported_policy_has_it(tmp_path: Path) -> None:
    from xtune.export import export_policy
    from xtune.policies.presets import preset

    export_policy(preset("joint"), tmp_path, "joint")
    code = (
        "import xtune_policy_joint as policy\n"
        "class Figures:\n"
        "    def signal(self):\n"
        "        return {'level': 2}\n"
        "found = policy.serve(Figures())\n"
        "print(found.address.partition(':')[0])\n"
        "found.close()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("127.0.0.1", "")

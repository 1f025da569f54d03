"""Answers of servers, over real HTTP on loopback: retries, limits, credentials, TLS."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from xtune.cli import main
from xtune.cli._prometheus import open_url, uncovered
from xtune.collectors import _prometheus_http
from xtune.collectors._prometheus_http import Server, ServerError, queries
from xtune.collectors._prometheus_url import target
from xtune.errors import UsageError
from xtune.lake import Lake

NAME = "node_infiniband_link_downed_total"
SECRET = "pass/w@rd:1"
QUOTED = "pass%2Fw%40rd%3A1"
TOKEN = "token-3f7a91"

Script = Callable[[BaseHTTPRequestHandler, str, dict[str, str]], None]


def send(
    way: BaseHTTPRequestHandler, body: Any, status: int = 200, packed: bool = False, **headers: str
) -> None:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    if packed:
        data = gzip.compress(data)
        headers["Content-Encoding"] = "gzip"
    way.send_response(status)
    headers.setdefault("Content-Length", str(len(data)))
    for name, value in headers.items():
        way.send_header(name.replace("_", "-"), value)
    way.end_headers()
    way.wfile.write(data)


def matrix(way: BaseHTTPRequestHandler, asked: dict[str, str]) -> dict[str, Any]:
    """Ten times the step number of each asked point, of one port."""
    start, end, step = (round(float(asked[k]) * 1000) for k in ("start", "end", "step"))
    values = [[t / 1000, str(t // step)] for t in range(start, end + 1, step)]
    labels = {"__name__": NAME, "device": "mlx5_0", "port": "1", "instance": "n1:9100"}
    result = [{"metric": labels, "values": values}]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def answer(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
    """What a server with one port says."""
    if path.endswith("/values"):
        send(way, {"status": "success", "data": [NAME, "up"]}, packed=True)
    elif path.endswith("/query_range"):
        send(way, matrix(way, asked), packed=True)
    else:
        send(way, {"status": "success", "data": {"resultType": "vector", "result": []}})


@contextmanager
def serving(script: Script, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list]]:  # type: ignore[type-arg]
    """A server on a free port that answers by the script; its URL and what it was asked."""
    seen: list[tuple[str, dict[str, str], dict[str, str]]] = []

    class Way(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {k: v[0] for k, v in parse_qs(parts.query).items()}
            seen.append((parts.path, asked, dict(self.headers)))
            script(self, parts.path, asked)

        def log_message(self, *_: Any) -> None: ...

    class Listener(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None: ...

    server = Listener(("127.0.0.1", 0), Way)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    scheme = "http" if context is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def asking(url: str) -> tuple[Server, list[float]]:
    """A server, and the pauses it made."""
    pauses: list[float] = []
    return Server(target(url, {}), open_url, pauses.append, timeout_s=2.0), pauses


@dataclass(frozen=True, slots=True)
class Done:
    """What a run of the command left."""

    returncode: int
    stdout: str
    stderr: str


def xtune(cwd: Path, *words: str, **environment: str) -> Done:
    """The command, in this process: a fresh one takes a second to start."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("XTUNE_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["xtune", "collect", "--kind", "prometheus", *words])
        with redirect_stdout(out), redirect_stderr(err):
            code = main()
    return Done(code, out.getvalue(), err.getvalue())


RANGE = ("--since", "2026-01-01T00:00:00Z", "--until", "2026-01-01T00:10:00Z", "--step", "1s")


def test_many_names_are_asked_for_together() -> None:
    assert list(queries(["a", "b"])) == ["a", "b"]
    many = list(queries([f"n{i}" for i in range(101)]))
    assert len(many) == 3 and many[0].startswith('{__name__=~"n0|n1|')
    assert sum(query.count("|") + 1 for query in many) == 101


def test_failures_that_pass_are_tried_again() -> None:
    count = 0

    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count == 1:
            send(way, b"<html>busy</html>", 503, Retry_After="7")
        elif count == 2:
            way.close_connection = True  # hangs up without a word
        elif count == 3:
            send(way, gzip.compress(b"x" * 99)[:20], Content_Encoding="gzip")  # broken off
        elif count == 4:
            send(way, b'{"status"', Content_Length="5000")  # shorter than it says
        else:
            answer(way, path, asked)

    with serving(script) as (url, _):
        server, pauses = asking(url)
        out = io.BytesIO()
        assert server.range(NAME, 0, 3000, 1000, out) == []
    assert pauses == [7.0, 1.0, 2.0, 4.0]
    assert out.getvalue().count(b'"status"') == 1  # nothing of the failed ones is left


def test_retries_end() -> None:
    with serving(lambda way, *_: send(way, b"", 500)) as (url, seen):
        server, pauses = asking(url)
        with pytest.raises(ServerError, match="HTTP 500"):
            server.names(0, 1000)
    assert len(seen) == 5 and sum(pauses) < 30
    with pytest.raises(ServerError, match="Connection refused"):
        server.names(0, 1000)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing it"),
        (422, "query processing would load too many samples into memory in query execution"),
        (422, "cannot select more than -search.maxSamplesPerQuery=1000 samples: exceeds limit"),
    ],
)
def test_limits_halve_the_range(tmp_path: Path, status: int, error: str) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        many = float(asked.get("end", 0)) - float(asked.get("start", 0)) > 100
        if path.endswith("/query_range") and many:
            body = {"status": "error", "errorType": "bad_data", "error": error}
            send(way, body, status)
        else:
            answer(way, path, asked)

    with serving(script) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE, "--json")
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    rows = Lake.open(tmp_path / "lake").read("link_counters").sort_by("ts").to_pylist()
    assert len(rows) == 601 and len(files) == 9  # of 75 points, after 601, 300 and 150
    first = int(rows[0]["ts"].timestamp())
    assert [r["link_downed"] for r in rows] == list(range(first, first + 601))


def test_an_error_that_is_no_limit_is_said_in_one_line(tmp_path: Path) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        send(way, {"status": "error", "error": "parse error: no such thing"}, 400)

    with serving(script) as (url, seen):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 1 and len(seen) == 1
    assert "HTTP 400: parse error" in done.stderr.strip().splitlines()[-1]


def test_what_is_no_prometheus_is_said(tmp_path: Path) -> None:
    with serving(lambda way, *_: send(way, b"<html>hello</html>")) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 1 and "not that of a Prometheus server" in done.stderr
    with serving(lambda way, *_: send(way, {"status": "success", "data": ["up"]})) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 1 and "no metric that xtune knows" in done.stderr


@pytest.mark.parametrize("data", [None, 5, "x", {"a": 1}])
def test_names_that_are_no_list_are_one_line(tmp_path: Path, data: object) -> None:
    with serving(lambda way, *_: send(way, {"status": "success", "data": data})) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 1 and "a bug of" not in done.stderr
    assert done.stderr.startswith(f"xtune: {url}: ")


@pytest.mark.parametrize("number", ["Inf", "NaN", "-5", "0", "1e308"])
def test_what_is_no_interval_and_no_number_of_series_is_not_believed(
    tmp_path: Path, number: str
) -> None:
    """A step of a millisecond would ask for an hour in 327 windows; none is asked beyond a few."""

    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        if not path.endswith("/query"):
            return answer(way, path, asked)
        times = [[number, "1"] for _ in range(5)]
        series = {"metric": {"__name__": NAME}, "value": [0, number], "values": times}
        send(way, {"status": "success", "data": {"resultType": "vector", "result": [series]}})

    with serving(script) as (url, seen):
        done = xtune(tmp_path, "--url", url, *RANGE[:4])
    assert done.returncode == 0, done.stderr
    assert "too few samples to tell the scrape interval" in done.stderr
    assert "-5 series" not in done.stderr and len(done.stderr) < 400
    assert sum(path.endswith("/query_range") for path, *_ in seen) == 1


def test_an_answer_that_was_cut_is_asked_for_again(tmp_path: Path) -> None:
    """By a proxy that ends it as if it were whole; what it lacked must not count as read."""

    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        if not path.endswith("/query_range"):
            answer(way, path, asked)
        elif sum(path.endswith("/query_range") for path, *_ in seen) == 1:
            send(way, json.dumps(matrix(way, asked)).encode()[:-200])
        else:
            answer(way, path, asked)

    with serving(script) as (url, seen):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 0, done.stderr
    assert Lake.open(tmp_path / "lake").read("link_counters").num_rows == 601


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_without_an_end_is_one_line(tmp_path: Path, status: int) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        way.send_response(status)
        way.end_headers()
        with suppress(OSError):
            for _ in range(2000):  # 512 MB
                way.wfile.write(b" x" * (1 << 17))
            ends.append(path)

    ends: list[str] = []
    with serving(script) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 1 and not ends
    assert len(done.stderr.splitlines()) == 1 and len(done.stderr) < 600


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        way.send_response(200)
        way.end_headers()
        with suppress(OSError):
            for _ in range(200):
                way.wfile.write(b" ")
                time.sleep(0.05)

    monkeypatch.setattr(_prometheus_http, "_LONGEST_ANSWER_S", 0.3)
    with serving(script) as (url, _):
        server, _ = asking(url)
        began = time.monotonic()
        with pytest.raises(ServerError, match="takes too long"):
            server.names(0, 1000)
    assert time.monotonic() - began < 5.0


def everything(folder: Path) -> str:
    """All text that a run left on disk."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return "\n".join(p.read_bytes().decode("latin-1") for p in files)


@pytest.mark.parametrize("status", [200, 400, 401, 302])
def test_secrets_are_nowhere(tmp_path: Path, status: int) -> None:
    """Not in output, errors, the ledger or the lake, whatever the server says back."""

    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        used = way.headers["Authorization"]
        told = f"no {used}: " + (TOKEN if "Bearer" in used else f"{SECRET} {QUOTED}")
        if status == 200:
            answer(way, path, asked)
        else:
            place = f"http://user:{QUOTED}@other/"
            send(way, {"status": "error", "error": told}, status, Location=place)

    pair = base64.b64encode(f"user:{SECRET}".encode()).decode()
    with serving(script) as (url, seen):
        place = url.replace("http://", f"http://user:{QUOTED}@")
        basic = xtune(tmp_path, "--url", f"{place}/", *RANGE)
        assert seen[0][2]["Authorization"] == f"Basic {pair}"
        seen.clear()
        lake = ("--lake", "other")
        bearer = xtune(tmp_path, "--url", url, *RANGE, *lake, XTUNE_PROMETHEUS_TOKEN=TOKEN)
        assert seen[0][2]["Authorization"] == f"Bearer {TOKEN}"
    for done in (basic, bearer):
        assert done.returncode == (0 if status == 200 else 1), done.stderr
        assert "Traceback" not in done.stderr
        shown = done.stdout + done.stderr + everything(tmp_path)
        for secret in (SECRET, QUOTED, TOKEN, pair):
            assert secret not in shown
    if status == 200:
        inputs = Lake.open(tmp_path / "lake").inputs()
        assert [inputs[i].path for i in inputs] == [url]


def test_a_token_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    where = target("http://h:1", {"XTUNE_PROMETHEUS_TOKEN_FILE": str(tmp_path / "token")})
    assert where.authorization == f"Bearer {TOKEN}" and TOKEN not in repr(where)
    for bad in ({"XTUNE_PROMETHEUS_TOKEN_FILE": "/nowhere"}, {"XTUNE_PROMETHEUS_TOKEN": "a\nb"}):
        with pytest.raises(UsageError):
            target("http://h:1", bad)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:9090", "http://host:9090"),
        ("host:9090/", "http://host:9090"),
        ("https://u:p@[fd00::1]:9090/prefix/api/v1/", "https://[fd00::1]:9090/prefix"),
        ("http://vm:8428/select/0/prometheus", "http://vm:8428/select/0/prometheus"),
        ("http://host:9090/graph", "http://host:9090"),
        ("ftp://host", None),
        ("http://host:port", None),
        (f"http://host/?token={TOKEN}", None),
        ("http://[broken", None),
        ("http://", None),
    ],
)
def test_urls(url: str, base: str | None) -> None:
    if base is None:
        with pytest.raises(UsageError) as caught:
            target(url, {})
        assert TOKEN not in str(caught.value)
    else:
        assert target(url, {}).base == base


def test_an_untrusted_certificate_is_one_line(tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not here")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(answer, context) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
        assert done.returncode == 1
        assert "its certificate is not trusted" in done.stderr.strip().splitlines()[-1]
        trusting = xtune(tmp_path, "--url", url, *RANGE, SSL_CERT_FILE=str(certificate))
        assert trusting.returncode == 0, trusting.stderr


def test_warnings_of_a_server_are_noted(tmp_path: Path) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        if path.endswith("/query_range"):
            send(way, {**matrix(way, asked), "warnings": ["store 7 did not answer"]})
        else:
            answer(way, path, asked)

    with serving(script) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE)
    assert done.returncode == 0 and "store 7 did not answer" in done.stderr


def test_range_queries_alone_are_enough(tmp_path: Path) -> None:
    def script(way: BaseHTTPRequestHandler, path: str, asked: dict[str, str]) -> None:
        if path.endswith("/query"):
            send(way, b"not here", 404)
        else:
            answer(way, path, asked)

    with serving(script) as (url, _):
        done = xtune(tmp_path, "--url", url, *RANGE[:4])
    assert done.returncode == 0 and "too few samples to tell the scrape interval" in done.stderr
    assert Lake.open(tmp_path / "lake").read("link_counters").num_rows == 41  # 10 min of 15 s


def test_flags_that_say_how_to_read_replace(tmp_path: Path) -> None:
    with serving(answer) as (url, _):
        asked = ("--url", url, *RANGE)
        assert xtune(tmp_path, *asked).returncode == 0
        assert xtune(tmp_path, *asked).stdout == "0 inputs: the lake has all of it already\n"
        assert xtune(tmp_path, *asked, "--map", "data_unit_bytes=4").returncode == 0
        rows = Lake.open(tmp_path / "lake").read("link_counters")
        assert rows.num_rows == 601
        assert set(rows["data_unit_bytes"].to_pylist()) == {4}
        assert xtune(tmp_path, *asked, "--label", "site=a").returncode == 0  # whose: adds
        assert Lake.open(tmp_path / "lake").read("link_counters").num_rows == 1202


def test_nothing_else_goes_with_a_server(tmp_path: Path) -> None:
    assert xtune(tmp_path, "--url", "http://h:1", "a-file").returncode == 2
    assert xtune(tmp_path, "--since", "2026-01-01", "a-file").returncode == 2
    assert xtune(tmp_path, "--url", "http://h:1", "--step", "soon").returncode == 2


@pytest.mark.parametrize(
    ("covered", "left"),
    [
        ([], [(1000, 9000)]),
        ([(0, 20_000)], []),
        ([(3000, 5000)], [(1000, 2000), (5000, 9000)]),
        ([(3000, 5000), (1000, 4000)], [(5000, 9000)]),
        ([(0, 1000), (9000, 10_000)], [(1000, 8000)]),
        ([(8500, 9500)], [(1000, 8000)]),
        ([(3500, 3600)], [(1000, 3000), (4000, 9000)]),
    ],
)
def test_what_is_not_covered(covered: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert list(uncovered(500, 9400, 1000, covered)) == left

"""A real Prometheus that scrapes a real node_exporter whose sysfs is a tree of ours."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests import debian

DEADLINE_S = 30.0
PACKAGES = ("prometheus", "prometheus-node-exporter")


def program(name: str) -> str:
    """Path of a program of Debian's; installs it in CI, else skips the test aloud."""
    here = shutil.which(name)
    found = debian.installed(lambda: shutil.which(name), PACKAGES, recommended=False)
    if here is None and shutil.which("systemctl"):
        for service in PACKAGES:  # Debian starts what it installs
            command = ["systemctl", "disable", "--now", service]
            subprocess.run(command, check=False, capture_output=True)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
    return body


def until(what: Callable[[], bool], message: str) -> None:
    """Wait for something; connection errors mean not yet."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            if what():
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(message)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True, slots=True)
class Servers:
    """Where both listen, and the server's process."""

    exporter: str
    url: str
    process: subprocess.Popen[bytes]

    def query(self, expression: str) -> list[Any]:
        answer = json.loads(fetch(f"{self.url}/api/v1/query?query={quote(expression)}"))
        result: list[Any] = answer["data"]["result"]
        return result

    def until_scraped(self, metric: str, value: int) -> None:
        """Wait until the server has this value of a metric's first series."""
        until(
            lambda: any(float(s["value"][1]) == value for s in self.query(metric)),
            f"{metric} never became {value}",
        )


@contextmanager
def servers(folder: Path, sysfs: Path, prefix: str, most_samples: int) -> Iterator[Servers]:
    """Start both.

    Args:
        folder: For configuration, data and logs.
        sysfs: What the exporter reads.
        prefix: Path below which the server answers.
        most_samples: The server refuses queries that would hold more.
    """
    exporter, port = free_port(), free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: node\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]\n"
    )
    exports = [
        program("prometheus-node-exporter"),
        f"--path.sysfs={sysfs}",
        "--collector.disable-defaults",
        "--collector.infiniband",
        f"--web.listen-address=127.0.0.1:{exporter}",
    ]
    serves = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.route-prefix={prefix}",
        f"--query.max-samples={most_samples}",
    ]
    url = f"http://127.0.0.1:{port}{prefix}"
    with (
        running(exports, folder / "exporter.log"),
        running(serves, folder / "server.log") as process,
    ):
        until(lambda: bool(fetch(f"{url}/-/ready")), "the server did not start")
        yield Servers(f"http://127.0.0.1:{exporter}", url, process)

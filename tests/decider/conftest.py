"""A decider, hosts, and who is neither."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.decider.helpers import MS, Centre, Host, Stranger


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path)
    yield made
    made.decider.close()


@pytest.fixture
def host(tmp_path: Path, centre: Centre) -> Iterator[Host]:
    made = Host(tmp_path, "h0", centre.port, ("a>b", "a>c"))
    yield made
    made.reporter.close()


@pytest.fixture
def other(tmp_path: Path, centre: Centre) -> Iterator[Host]:
    made = Host(tmp_path, "h1", centre.port, ("a>b",))
    yield made
    made.reporter.close()


@pytest.fixture
def stranger(centre: Centre) -> Iterator[Stranger]:
    made = Stranger(centre)
    yield made
    made.channel.close()


@pytest.fixture
def forger(tmp_path: Path) -> Iterator[tuple[socket.socket, Host]]:
    """A socket in the decider's place, and a host that reports there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.bind(("127.0.0.1", 0))
        host = Host(tmp_path, "h0", channel.getsockname()[1], ("a>b",))
        host.turn(100 * MS)
        channel.connect(host.reporter.socket.getsockname())
        yield channel, host
        host.reporter.close()

"""Congestion marks on probes themselves, with real packets over loopback."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.probe.helpers import KEY, LIMIT_S, serve
from xtune.policies.probe.config import Config, ConfigError, make_config
from xtune.policies.probe.lane import Lane
from xtune.policies.probe.packet import Codec
from xtune.policies.probe.sources import Sources


@pytest.fixture
def port() -> int:
    """A UDP port of the loopback device that nobody has right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def config_of(port: int, **more: Any) -> Config:
    path = {"name": "a>b", "local": "127.0.0.1", "remote": f"127.0.0.1:{port}"} | more
    return make_config({"paths": [path]})


def exchange(lane: Lane) -> float | None:
    """Send a probe and take its answer; what is known of marks then."""
    lane.send()
    assert lane.socket is not None
    assert select.select([lane.socket], [], [], LIMIT_S)[0]
    lane.drain([])
    return lane.reading().marks


@pytest.mark.parametrize("ecn", (True, False))
def test_a_marked_probe_is_told_by_its_answer(tmp_path: Path, port: int, ecn: bool) -> None:
    (path,) = config_of(port, ecn=ecn).paths
    lane = Lane(path, Codec(KEY), 10**12, Sources(), time.monotonic_ns, time.time_ns)
    config = {"readings": str(tmp_path / "t"), "listen": [{"local": f"127.0.0.1:{port}"}]}
    with serve("reflect", config, tmp_path):
        assert exchange(lane) == (0.0 if ecn else None)
        assert lane.socket is not None
        # What a switch with a long queue does; it marks no packet that has not asked for it.
        if ecn:
            lane.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3)
        assert exchange(lane) == (0.5 if ecn else None)
    assert lane.reading().finished == 2 and not lane.counts
    lane.close()


def test_what_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="neither true nor false"):
        config_of(port, ecn="yes")
    marks = {"marks": {"marked": ["x"], "packets": ["y"]}}
    with pytest.raises(ConfigError, match="no room"):
        make_config({"listen": [{"local": "127.0.0.1:9", "sources": marks}]})
    assert config_of(port, sources=marks).paths[0].sources == marks

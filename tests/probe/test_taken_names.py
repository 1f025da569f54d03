"""Names that somebody else has taken: a pipe holds nobody, a stranger's file serves nobody."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.probe.helpers import KEY
from xtune.policies.decider.config import make_config
from xtune.policies.decider.weights import WeightsFeed, WeightsWriter
from xtune.policies.decisions import DecisionLog
from xtune.policies.layer_norms import LayerNorms
from xtune.policies.probe.config import load_config
from xtune.policies.probe.feed import Feed
from xtune.policies.probe.log import ProbeLog
from xtune.policies.probe.packet import load_key
from xtune.policies.probe.readings import ReadingsReader, ReadingsWriter
from xtune.policies.probe.sources import Sources, make_sources
from xtune.policies.probe.table import TableError

LIMIT_S = 20  # whoever waits for the other end of a pipe waits for ever


class Nobody:
    """A router that is told nothing."""

    def observe(self, link: str, **values: object) -> None:
        raise AssertionError(link)

    def knows(self, link: str) -> bool:
        raise AssertionError(link)

    def weigh(self, link: str, weight: float, *, at_ns: int) -> None:
        raise AssertionError(link)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe that nobody else opens; a test that waits for it fails."""

    def ring(number: int, frame: object) -> None:
        pytest.fail("waits for the other end of a pipe")

    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield path
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def policy_of(path: Path) -> object:
    return make_config({"listen": "127.0.0.1:1", "policy": str(path)})


@pytest.mark.parametrize(
    "open_it",
    [
        ReadingsReader,
        load_key,
        load_config,
        policy_of,
        lambda path: ProbeLog(str(path), "h", 100),
    ],
    ids=["readings", "key", "config", "policy", "log"],
)
def test_a_pipe_is_refused_at_once(pipe: Path, open_it: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match=r"no regular file|No such device or address"):
        open_it(pipe)


def test_a_pipe_is_no_table_for_either_feed(pipe: Path) -> None:
    for feed in (Feed(pipe, Nobody()), WeightsFeed(pipe, Nobody())):
        assert feed.poll() == 0 and not feed.alive


def test_a_writer_takes_the_place_of_a_pipe_but_not_of_its_lock(
    tmp_path: Path, pipe: Path
) -> None:
    writer = ReadingsWriter(pipe, ("a",))
    reader = ReadingsReader(pipe)
    assert reader.names == ("a",) and reader.alive()
    reader.close()
    writer.close()
    os.mkfifo(tmp_path / "t.lock")
    with pytest.raises(OSError, match="no regular file"):
        WeightsWriter(tmp_path / "t", 1, ())
    assert not (tmp_path / "t").exists()


def test_a_jobs_log_that_is_a_pipe_ends_the_log_alone(pipe: Path) -> None:
    log = DecisionLog(pipe)
    log.change(1, "path", 0, 1)
    os.mkfifo(pipe.with_name("pipe.rank0"))
    norms = LayerNorms(torch.nn.Linear(1, 1), pipe, rank=0)
    norms.step()
    for one in (log, norms):
        assert one.error is not None and (one.written, one.dropped) == (0, 1)


def test_a_source_that_is_a_pipe_is_a_failed_one(pipe: Path) -> None:
    sources = make_sources({"occupancy": {"file": str(pipe), "limit": 1}}, 0)
    for failed in (1, 2):
        assert sources.signal().occupancy is None and sources.failed == failed
    other = os.open(pipe, os.O_RDWR)  # open at both ends, and nothing in it
    assert sources.signal().occupancy is None and sources.failed == 3
    os.write(other, b"0.5\n")
    assert sources.signal().occupancy == 0.5
    os.close(other)
    assert isinstance(sources, Sources)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone gives files away")
def test_a_strangers_file_is_refused(tmp_path: Path) -> None:
    table, key = tmp_path / "t", tmp_path / "key"
    ReadingsWriter(table, ("a",)).close()
    lock = tmp_path / "t.lock"
    os.chown(lock, 12345, 12345)
    with pytest.raises(TableError, match="neither this user's nor root's"):
        ReadingsWriter(table, ("a",))
    lock.unlink()
    writer = ReadingsWriter(table, ("a",))
    os.chown(table, 12345, 12345)
    with pytest.raises(TableError, match="neither this user's nor root's"):
        ReadingsReader(table)
    writer.close()
    key.write_bytes(KEY)
    key.chmod(0o600)
    os.chown(key, 12345, 12345)
    with pytest.raises(ValueError, match="neither this user's nor root's"):
        load_key(key)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_table_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    writer = ReadingsWriter(tmp_path / "t", ("a",))
    (tmp_path / "t").chmod(mode)
    with pytest.raises(TableError, match="others may write it"):
        ReadingsReader(tmp_path / "t")
    writer.close()


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "{", "7", '{"paths": ["a"]}', '{"paths": 1, "counters": []}',
        '{"paths": [1], "counters": []}', '{"paths": ["a", "b"], "counters": []}',
        json.dumps({"paths": ["a"], "counters": ["n"] * 33}), "[" * 5000,
    ],
    ids=range(10),
)  # fmt: skip
def test_a_table_of_whole_bytes_and_wrong_names_is_none(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a newer release might write it, sums and lengths and all."""
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda known: text)
    writer = ReadingsWriter(tmp_path / "t", ("a",))
    monkeypatch.setattr(json, "dumps", dumps)
    with pytest.raises(TableError, match="no names of 1 entries"):
        ReadingsReader(tmp_path / "t")
    assert Feed(tmp_path / "t", Nobody()).poll() == 0
    writer.close()

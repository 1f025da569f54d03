"""From a host's table of weights to its router."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.probe.helpers import LIMIT_S
from xtune.policies import Router, preset, replace_fields
from xtune.policies.decider import __main__ as decider
from xtune.policies.decider.packet import MOST_BLOCKS, Entry, pack_body
from xtune.policies.decider.weights import (
    FORM,
    POLL_BLOCKS,
    Block,
    WeightsFeed,
    WeightsReader,
    WeightsWriter,
)
from xtune.policies.probe.following import REOPEN_NS
from xtune.policies.probe.readings import ReadingsWriter
from xtune.policies.probe.table import TableError, TableWriter

STALE_NS = 500_000


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[str, float, int]] = []

    def knows(self, link: str) -> bool:
        return not link.startswith("others")

    def weigh(self, link: str, weight: float, *, at_ns: int) -> None:
        self.told.append((link, weight, at_ns))


class Table:
    """A host's weights whose clock is set by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 10_000_000
        self.version = 0
        self.begin()

    def begin(self) -> None:
        self.writer = WeightsWriter(self.path, 1, ("n",), lambda: self.now)

    def put(self, number: int, *entries: Entry) -> None:
        self.version += 1
        self.writer.publish(number, Block(1, self.version, self.now, pack_body(list(entries))))
        self.writer.beat()

    def feed(self, router: Any, **options: Any) -> WeightsFeed:
        return WeightsFeed(self.path, router, clock=lambda: self.now, stale_ns=STALE_NS, **options)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "table.weights")
    yield made
    made.writer.close()


def test_each_verdict_once_at_the_time_of_its_readings(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    table.put(0, Entry("a", 0.5, 7, 1), Entry("b", math.inf, 0, 2), Entry("c", 0.1, None))
    table.put(3, Entry("d", 0.25, 1, 1))
    assert feed.poll() == 3 and feed.alive
    at = table.now
    assert recorder.told == [("a", 0.5, at - 7000), ("b", math.inf, at), ("d", 0.25, at - 1000)]
    assert feed.poll() == 0
    recorder.told.clear()
    table.now += 100
    table.put(3, Entry("d", 0.75, 2, 1))
    assert feed.poll() == 1 and recorder.told == [("d", 0.75, table.now - 2000)]


def test_links_under_the_routers_own_names(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder, links={"a": ("x", "y")})
    table.put(0, Entry("a", 0.5, 0, 1), Entry("b", 0.5, 0, 1))
    assert feed.poll() == 2
    assert [link for link, _, _ in recorder.told] == ["x", "y"]


def test_a_call_takes_no_more_blocks_than_it_may_and_all_get_their_turn(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    for number in range(4):
        table.put(number, Entry(f"{number}", 0.5, 0, 1))
    taken = []
    for _ in range(8):
        table.put(0, Entry("0", 0.5, 0, 1))  # always has news
        assert feed.poll(most=1) == 1
        taken.append(recorder.told[-1][0])
    assert taken == ["0", "1", "2", "3", "0", "0", "0", "0"]
    assert feed.poll() == 0


def others(number: int) -> Entry:
    return Entry(f"others-{number}", 0.5, 0, 1)


def test_others_links_are_no_news_and_take_no_turn(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder, most=1)
    for number in range(4):
        mine = Entry("a", 0.5, 0, 1)
        table.put(number, others(number), *[mine] * (number == 3))
    # Each name is looked at once, a block a call.
    assert [feed.poll() for _ in range(5)] == [0, 0, 0, 1, 0]
    for number in range(4):
        mine = Entry("a", 0.25, 0, 1)
        table.put(number, others(number), *[mine] * (number == 3))
    assert feed.poll() == 1 and recorder.told[-1][:2] == ("a", 0.25)
    assert feed.poll() == 0
    # A name more, and one of as many bytes: looked at again.
    table.put(1, others(1), Entry("b", 0.75, 0, 1))
    assert feed.poll() == 1 and recorder.told[-1][:2] == ("b", 0.75)
    table.put(2, Entry("mothers2", 0.5, 0, 1))
    assert feed.poll() == 1 and recorder.told[-1][0] == "mothers2"
    assert all(not link.startswith("others") for link, _, _ in recorder.told)


def test_a_note_is_no_block_and_takes_no_turn(table: Table) -> None:
    feed = table.feed(Recorder(), most=1)
    for _ in range(3):
        table.put(0, Entry("a", 0.5, 0, 1))
        table.writer.note(0, {"version": table.version})
        assert feed.poll() == 1
    assert feed.poll() == 0


def test_a_router_counts_no_links_that_it_was_not_meant_to_have(table: Table) -> None:
    chooser = router(stale_ns=STALE_NS)
    table.put(0, Entry("up", 0.9, 0, 1), Entry("elsewhere", 0.9, 0, 1))
    assert table.feed(chooser).poll() == 1 and chooser.links.unknown_links == 0
    meant = {"elsewhere": ("up", "wrongly-named")}
    assert table.feed(chooser, links=meant).poll() == 2 and chooser.links.unknown_links == 1


def test_a_bound_of_the_feed_holds_for_each_call_and_no_block_at_all_is_refused(
    table: Table,
) -> None:
    feed = table.feed(Recorder(), most=2)
    for number in range(5):
        table.put(number, Entry(f"{number}", 0.5, 0, 1))
    assert [feed.poll() for _ in range(4)] == [2, 2, 1, 0]
    for number in range(5):
        table.put(number, Entry(f"{number}", 0.5, 0, 1))
    assert feed.poll(most=4) == 4 and feed.poll() == 1
    with pytest.raises(ValueError, match="never be read"):
        feed.poll(most=0)
    with pytest.raises(ValueError, match="never be read"):
        table.feed(Recorder(), most=0)


@pytest.mark.parametrize("body", [b"\x01\x01\xff" + bytes(13), b"\x02\x01a", b"\x05", bytes(7)])
def test_a_block_that_is_none_is_left_out(table: Table, body: bytes) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    for version in (1, 2):
        table.writer.publish(0, Block(1, version, table.now, body))
        table.put(1, Entry("a", 0.5, 0, 1))
        assert feed.poll() == 1
    assert {link for link, _, _ in recorder.told} == {"a"}


def test_a_table_of_fewer_blocks_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    writer = TableWriter(FORM, tmp_path / "few", ("0", "1"))
    feed = WeightsFeed(tmp_path / "few", Recorder())
    assert feed.poll() == 0 and feed.alive
    reader = WeightsReader(tmp_path / "few")
    assert reader.blocks() == [] and reader.notes() == []
    for table in (reader, feed, writer):
        table.close()


def test_links_of_a_block_that_change_are_told_by_their_new_names(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    table.put(0, Entry("a", 0.5, 0, 1))
    feed.poll()
    table.put(0, Entry("z", 0.5, 0, 1), Entry("a", 0.75, 0, 1))
    feed.poll()
    assert [told[:2] for told in recorder.told] == [("a", 0.5), ("z", 0.5), ("a", 0.75)]


def test_nothing_is_told_of_a_decider_that_is_silent_and_its_return_is_seen(
    table: Table,
) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    table.put(0, Entry("a", 0.5, 0, 1))
    table.now += STALE_NS
    assert not feed.alive and feed.poll() == 0 and recorder.told == []
    table.writer.beat()
    assert feed.poll() == 1


def test_the_table_of_an_agent_that_begins_anew_is_found(table: Table) -> None:
    recorder = Recorder()
    feed = table.feed(recorder)
    table.put(0, Entry("a", 0.5, 0, 1))
    assert feed.poll() == 1
    table.writer.close()
    assert feed.poll() == 0
    table.begin()
    table.put(0, Entry("a", 0.25, 0, 1))
    table.now += REOPEN_NS
    table.writer.beat()
    assert feed.poll() == 1 and recorder.told[-1][1] == 0.25
    feed.close()
    assert not feed.alive


def test_no_table_yet_is_no_error(tmp_path: Path) -> None:
    feed = WeightsFeed(tmp_path / "none", Recorder())
    assert feed.poll() == 0 and not feed.alive


def test_blocks_of_an_epoch_that_is_over_are_gone(table: Table) -> None:
    recorder = Recorder()
    table.put(5, Entry("a", 0.5, 0, 1))
    table.writer.clear()
    table.put(0, Entry("a", 0.25, 0, 1))
    reader = WeightsReader(table.path)
    assert [block.entries() for block in reader.blocks()] == [[Entry("a", 0.25, 0, 1)]]
    assert table.feed(recorder).poll() == 1
    reader.close()


def test_notes_come_back_and_go(table: Table) -> None:
    reader = WeightsReader(table.path)
    assert reader.notes() == []
    table.writer.note(0, {"x": 1.5, "y": None})
    assert reader.notes() == [{"x": 1.5, "y": None}] and reader.blocks() == []
    table.writer.note(0, {"x": "long" * 1000})
    assert reader.notes() == []
    table.writer.count(0, 7)
    assert reader.counters() == {"n": 7}
    reader.close()


def test_a_table_of_readings_is_none_of_weights(tmp_path: Path) -> None:
    writer = ReadingsWriter(tmp_path / "t", ("a",))
    with pytest.raises(TableError, match="no table of link weights"):
        WeightsReader(tmp_path / "t")
    writer.close()


def router(stale_ns: int) -> Router:
    paths = {("h0", "h1"): [["up"], ["down"]]}
    changes = {"routing.stale_ns": stale_ns, "routing.pairs": 1}
    return Router(paths, replace_fields(preset("joint"), changes), clock=lambda: 0)


def test_a_router_without_probes_of_its_own_goes_by_the_verdicts_and_is_static_without(
    table: Table,
) -> None:
    chooser = router(stale_ns=STALE_NS)
    feed = table.feed(chooser)
    flow = ("h0", "h1", 0)
    assert chooser.choose(flow, at_ns=table.now) == 0
    table.now += 10**6
    table.put(0, Entry("up", 0.9, 0, 1), Entry("down", 0.1, 0, 1))
    feed.poll()
    assert chooser.choose(flow, at_ns=table.now) == 1
    # The decider dies: its verdicts are too old, and the flow goes home.
    late = table.now + 10 * STALE_NS
    fresh = router(stale_ns=STALE_NS)
    table.feed(fresh).poll()
    assert fresh.choose(flow, at_ns=table.now) == 1 and fresh.choose(flow, at_ns=late) == 0


def test_a_poll_makes_no_system_call(tmp_path: Path) -> None:
    """In a process that the kernel kills at the next system call but write and exit."""
    code = """
        import ctypes, os, platform, sys
        from pathlib import Path
        from xtune.policies.decider.packet import Entry, pack_body
        from xtune.policies.decider.weights import Block, WeightsFeed, WeightsWriter

        class Quiet:
            told = 0
            def knows(self, link):
                return True
            def weigh(self, link, weight, *, at_ns):
                self.told += 1

        path, quiet = Path(sys.argv[1]), Quiet()
        writer = WeightsWriter(path, 1, ())
        feed = WeightsFeed(path, quiet, clock=lambda: 5, stale_ns=1 << 62)
        writer._clock = lambda: 1
        def put(version):
            body = pack_body([Entry("a", 0.5, 0, 1)])
            writer.publish(0, Block(1, version, 1, body))
            writer.beat()
        put(1)
        assert feed.poll() == 1
        put(2)
        libc = ctypes.CDLL(None)
        number = 60 if platform.machine() == "x86_64" else 93
        assert libc.prctl(22, 1, 0, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_STRICT
        count = feed.poll()
        os.write(1, b"told %d\\n" % count)
        # exit, since exit_group is not allowed: by x86-64's number, or arm64's
        libc.syscall(number, 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "quiet")],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("told 1\n", 0), done.stderr


def test_room_for_every_block(table: Table) -> None:
    recorder = Recorder()
    for number in range(MOST_BLOCKS):
        table.put(number, Entry(f"link-{number}", 0.5, 0, 1))
    feed = table.feed(recorder)
    counts = [feed.poll() for _ in range(MOST_BLOCKS // POLL_BLOCKS + 1)]
    assert counts == [POLL_BLOCKS] * (MOST_BLOCKS // POLL_BLOCKS) + [0]
    assert table.feed(recorder).poll(MOST_BLOCKS) == MOST_BLOCKS


def test_what_is_shown_while_the_writer_goes_on_is_never_from_the_future(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = WeightsWriter(tmp_path / "weights", 1, ("n",), time.monotonic_ns)

    class Overtaken(WeightsReader):
        """Its writer writes just before each reading."""

        def notes(self) -> list[dict[str, Any]]:
            writer.note(0, {"heard_ns": time.monotonic_ns()})
            return super().notes()

        def blocks(self) -> list[Block]:
            body = pack_body([Entry("a", 0.5, 0, 1)])
            writer.publish(0, Block(1, 1, time.monotonic_ns(), body))
            return super().blocks()

    monkeypatch.setattr(decider, "WeightsReader", Overtaken)
    assert decider.main(["show", str(tmp_path / "weights")]) == 0
    writer.close()
    _, note, link = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert note["heard_s"] >= 0 and link["age_s"] >= 0

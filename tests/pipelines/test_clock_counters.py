"""Clock repair by counters at both ends of a link, and what both kinds of evidence give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipelines.clocks import both_ends, collectives, fixed, offsets, only, traffic
from tests.pipelines.fabrics import topology_rows
from tests.pipelines.lakes import SECOND, new_lake
from xtune.lake import InputRecord, Lake
from xtune.pipelines._clock_counters import Counter, find_lag


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


@pytest.mark.parametrize("kind", ["bursts", "noise"])
@pytest.mark.parametrize(("step", "length"), [(1.0, 900), (10.0, 6000)])
@pytest.mark.parametrize("clock", [40.0, -3.0])
def test_counters_at_both_ends_tell(
    lake: Lake, clock: float, step: float, length: int, kind: str
) -> None:
    rows = both_ends(traffic(kind, length), clock, step)
    found, notes = offsets(lake, [], rows, topology_rows())
    offset = only(found, "node00")
    assert (offset.source, offset.reference) == ("counters", "fabric")
    assert offset.offset_ns / SECOND == pytest.approx(clock, abs=step / 2)
    # Half an interval at least, and no more than its neighbours.
    assert 0.95 * step <= (offset.high_ns - offset.low_ns) / SECOND <= 3 * step
    # 3 s are within half of 10 s: not material where nothing is sampled faster.
    assert offset.applied == (not offset.low_ns <= 0 <= offset.high_ns)
    assert notes == []


@pytest.mark.parametrize("kind", ["flat", "periodic"])
def test_traffic_that_does_not_tell_gives_no_row(lake: Lake, kind: str) -> None:
    """Flat traffic fits at any lag, periodic at one in each period."""
    found, notes = offsets(lake, [], both_ends(traffic(kind, 900), 40.0, 1.0), topology_rows())
    assert found == {}
    assert notes == ["clocks: 1 host has no estimate, so times are as read (node00)"]


def test_other_traffic_is_not_the_same_link() -> None:
    """Independent traffic at the two ends is never taken for one: no false alarm in 40."""
    for seed in range(40):
        kind = ("bursts", "noise")[seed % 2]
        ends = [
            Counter(
                np.arange(0, 600 * SECOND, SECOND), traffic(kind, 600, s)[::10].astype(np.int64)
            )
            for s in (seed, seed + 1000)
        ]
        assert find_lag(*ends) is None


def test_counters_without_topology_or_by_a_servers_clock_say_nothing(lake: Lake) -> None:
    rows = both_ends(traffic("noise", 900), 40.0, 1.0)
    assert offsets(lake, [], rows)[0] == {}
    # Prometheus stamps what it scrapes by its own clock, so nothing is said of the host's.
    record = InputRecord(
        id="a" * 12, name="p.json", path="", content="", size=0, head="", parser="prometheus",
        parser_version=1, time_ns=0,
    )  # fmt: skip
    with lake.begin() as transaction:
        transaction.record(record)
        transaction.commit()
    scraped = [{**row, "source": "a" * 12} for row in rows]
    assert offsets(lake, [], scraped, topology_rows())[0] == {}


def test_the_fabrics_clock_is_the_reference(lake: Lake) -> None:
    """Two hosts differ by 40 s: the counters of one tell which of them is wrong."""
    rows = both_ends(traffic("noise", 900), 40.0, 1.0)
    given = collectives({"node00": fixed(40), "node01": fixed(0)})
    found, _ = offsets(lake, given, rows, topology_rows())
    wrong, right = only(found, "node00"), only(found, "node01")
    assert wrong.offset_ns / SECOND == pytest.approx(40, abs=0.5)
    assert right.offset_ns / SECOND == pytest.approx(0, abs=0.5)
    assert (wrong.applied, right.applied) == (True, False)


def test_disagreement_is_said(lake: Lake) -> None:
    """One host's counters are 40 s off while its collectives are not: two clocks on one host."""
    hosts = {f"node0{slot}": fixed(0) for slot in range(3)}
    rows = [
        row
        for slot, clock in enumerate((40.0, 0.0, 0.0))
        for row in both_ends(traffic("noise", 900, seed=slot), clock, 1.0, slot)
    ]
    found, notes = offsets(lake, collectives(hosts), rows, topology_rows())
    assert only(found, "node00").offset_ns / SECOND == pytest.approx(0, abs=1e-4)
    assert len(notes) == 1
    assert notes[0].startswith("clock of node00: ahead by ")
    assert notes[0].endswith(" s by counters")


def test_traffic_that_beats_with_its_sampling_tells_no_clock() -> None:
    # On for half of 1.01 s, forever; read each second, a third of a second apart at the two ends.
    # What is read swings once in 101 s, and a third of 1.01 s looks like 33 s of that.
    def read(first: float) -> Counter:
        times = np.arange(first, 900.0, 1.0)
        whole, part = np.divmod(times, 1.01)
        sent = (whole * 0.5 + np.minimum(part / 1.01, 0.5)) * 1.01 * 50e9
        return Counter((times * 1e9).astype(np.int64), sent.astype(np.int64))

    assert find_lag(read(0.0), read(1 / 3)) is None

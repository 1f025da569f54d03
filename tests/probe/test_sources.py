"""What one end knows of its link, from files written by hand."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from xtune.policies.probe.packet import UNKNOWN, Signal
from xtune.policies.probe.sources import (
    ErrorRate,
    Gauge,
    MarkShare,
    SourceError,
    Sources,
    Waited,
    make_sources,
)


class Files:
    """Counters by name, as the kernel writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setitem__(self, name: str, value: object) -> None:
        (self.folder / name).write_text(f"{value}\n")

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_gauge_is_its_file_over_the_unit(files: Files) -> None:
    files["depth"] = 96
    assert Gauge(files["depth"], 128).read() == 0.75


def test_a_waiting_counter_is_the_share_of_time_it_grew(files: Files) -> None:
    now = [0]
    source = Waited(files["wait"], 4.0, lambda: now[0])
    found = []
    # 25 ticks of 4 ns in 400 ns; more than can be; a reset; none in 100 ns
    for at, ticks in ((0, 100), (400, 125), (500, 1125), (600, 3), (700, 3)):
        now[0], files["wait"] = at, ticks
        found.append(source.read())
    assert found == [None, 0.25, 1.0, None, 0.0]


def test_errors_are_counted_against_all_packets(files: Files) -> None:
    source = ErrorRate([files["e1"], files["e2"]], [files["good"]])
    found = []
    for e1, e2, good in (
        (5, 5, 100),
        (6, 7, 397),
        (6, 7, 397),
        (8, 7, 397),
        (8, 7, 497),
        (0, 0, 9),
    ):
        files["e1"], files["e2"], files["good"] = e1, e2, good
        found.append(source.read())
    assert found == [None, 3 / 300, None, 1.0, 0.0, None]


def test_marks_are_counted_among_the_packets(files: Files) -> None:
    source = MarkShare([files["np"], files["rp"]], [files["packets"]])
    found = []
    # 5 of 100; no packet, so unknown; 10 + 10 of 200, the 10 told without a packet among them;
    # more than there can be; a reset; after it
    for np, rp, packets in (
        (7, 0, 1000), (12, 0, 1100), (22, 0, 1100), (22, 10, 1300), (99, 10, 1310),
        (0, 0, 5), (1, 0, 9),
    ):  # fmt: skip
        files["np"], files["rp"], files["packets"] = np, rp, packets
        found.append(source.read())
    assert found == [None, 0.05, None, 0.1, 1.0, None, 0.25]


def test_a_source_that_fails_is_unknown_and_counted(files: Files) -> None:
    files["empty"] = ""
    files["words"] = "No such device"
    files["good"] = 0
    sources = Sources(
        Gauge(files["missing"]), Gauge(files["empty"]), Gauge(files["good"]), interval_ns=0
    )
    assert sources.signal() == Signal(None, None, 0.0) and sources.failed == 2
    sources = Sources(Gauge(files["words"]), interval_ns=0)
    assert sources.signal() == UNKNOWN and sources.failed == 1


def test_each_source_that_fails_is_said_once_by_its_name(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files["words"] = "none here"
    said = {
        "occupancy": {"tc": "no-such-device"},
        "margin": {"file": str(files["words"])},
        "errors": {"errors": [str(files["missing"])], "packets": []},
    }
    sources = make_sources(said, 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert sources.signal() == UNKNOWN
    assert sources.failed == 9
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"xtune: {name} cannot be read, and is unknown: {why}"
        for name, why in (
            ("error_rate", f"[Errno 2] No such file or directory: {str(files['missing'])!r}"),
            ("margin", f"{files['words']} holds no number"),
            ("occupancy", "[Errno 19] No such device: 'no-such-device'"),
        )
    ]


def test_sources_are_read_no_more_often_than_asked(files: Files) -> None:
    now = [0]
    files["depth"] = 1
    sources = Sources(Gauge(files["depth"], 10), interval_ns=100, clock=lambda: now[0])
    found = []
    for at, depth in ((0, 1), (99, 2), (100, 3), (150, 4), (200, 5)):
        now[0], files["depth"] = at, depth
        found.append(sources.signal().occupancy)
    assert found == [0.1, 0.1, 0.3, 0.3, 0.5]


def test_a_configuration_makes_them(files: Files) -> None:
    files["depth"], files["margin"] = 32, 250
    said = {
        "occupancy": {"file": str(files["depth"]), "limit": 64},
        "margin": {"file": str(files["margin"]), "unit": 100},
        "marks": {"marked": [str(files["cnps"])], "packets": [str(files["packets"])]},
    }
    files["cnps"], files["packets"] = 0, 0
    sources = make_sources(said, 0)
    assert sources.signal() == Signal(0.5, None, 2.5)
    files["cnps"], files["packets"] = 1, 64
    assert sources.signal() == Signal(0.5, None, 2.5, 1 / 64)
    assert make_sources({}, 0).signal() == UNKNOWN


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"queue": {}}, "queue"),
        ({"occupancy": {"file": "x"}}, "limit"),
        ({"occupancy": {"wait": "x"}}, "tick_ns"),
        ({"occupancy": {"tc": "x", "unit": 1}}, "unit"),
        ({"errors": {"errors": ["x"]}}, "packets"),
        ({"margin": 3}, "margin"),
        ({"marks": {"marked": ["x"]}}, "packets"),
        ({"marks": {"cnps": ["x"]}}, "cnps"),
    ],
)
def test_a_wrong_configuration_is_named(said: dict[str, Any], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        make_sources(said, 0)

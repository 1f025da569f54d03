"""Sections of the report that show the pipelines' tables, on tables written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.fabrics import down, topology_rows
from tests.pipelines.lakes import A, at, new_lake, put
from xtune.lake import Lake
from xtune.reports import build_report


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path / "lake")
    put(made, "derived/link_rates", [{"ts": at(9), "interval_s": 1.0, "link": A, "level": 0}])
    return made


def cards(lake: Lake, folder: Path) -> dict[str, list[dict[str, Any]]]:
    written = build_report(lake, folder / "report.html")
    assert written.failed == ()
    return {c["name"]: c["blocks"] for c in json.loads(written.json.read_text())["cards"]}


def test_without_their_tables_they_are_left_out(lake: Lake, tmp_path: Path) -> None:
    assert not {"hangs", "ports", "concurrency", "clocks", "episodes"} & {*cards(lake, tmp_path)}


def test_hangs(lake: Lake, tmp_path: Path) -> None:
    row = {
        "ts": at(0), "incident": "i", "job": "llm", "culprits": [3, 9, 4, 5], "cause": "host",
        "confidence": "high", "waiting": 12, "explained": 12, "absent": [],
    }  # fmt: skip
    put(lake, "derived/desync_verdict", [row])
    [grid] = cards(lake, tmp_path)["hangs"]
    start = "2026-03-02 10:00:00"
    assert grid["rows"] == [[start, "llm", "host", "3-5, 9", "high", 12, 12, ""]]


def test_hot_ports_by_name_and_no_ratio_that_is_unknown(lake: Lake, tmp_path: Path) -> None:
    put(lake, "topology_links", topology_rows())
    rows = [
        {"link": A, "sent_bytes": 10**12, "lost_bytes": 10**11, "lost_to_sent": 0.1, "errors": 7},
        {"link": down(0, 0), "sent_bytes": 10**9, "lost_bytes": 5 * 10**8, "lost_to_sent": 0.5},
        {"link": down(0, 1), "sent_bytes": 10**9},
    ]
    put(lake, "derived/link_totals", rows)
    text, grid = cards(lake, tmp_path)["ports"]
    assert "no share of time" in text["text"]
    assert [row[:4] for row in grid["rows"]] == [
        ["leaf0:1", 0.5, 1.0, 0.5],
        [A, 100.0, 1000.0, 0.1],
    ]


def test_concurrency_says_its_verdict_first(lake: Lake, tmp_path: Path) -> None:
    knee = {"ts": at(0), "signal": "wait_fraction", "verdict": "knee", "knee_jobs": 3.0}
    put(lake, "derived/concurrency_knee", [{**knee, "low_jobs": 2.5, "high_jobs": 3.5}])
    rows = [{"ts": at(0), "jobs": n, "seconds": 1800.0, "wait_fraction": n / 30} for n in (1, 2)]
    put(lake, "derived/concurrency", rows)
    verdict, means = cards(lake, tmp_path)["concurrency"]
    assert verdict["rows"] == [["wait fraction", "knee", 3.0, 2.5, 3.5]]
    assert [row[1:4] for row in means["rows"]] == [[1, 0.5, 0.0333], [2, 0.5, 0.0667]]


def test_clocks_that_are_surely_off(lake: Lake, tmp_path: Path) -> None:
    rows = [
        {"host": host, "from_ts": at(0), "to_ts": at(60), "offset_ns": o, "low_ns": o - 10**6,
         "high_ns": o + 10**6, "applied": o > 10**9}
        for host, o in (("right", 10**5), ("late", -(10**8)), ("early", 4 * 10**10))
    ]  # fmt: skip
    put(lake, "derived/clock_offsets", rows[:1])
    assert "no host's clock" in cards(lake, tmp_path)["clocks"][0]["text"]
    put(lake, "derived/clock_offsets", rows[1:], source="1" * 12)
    [grid] = cards(lake, tmp_path)["clocks"]
    assert [(row[0], row[3], row[6]) for row in grid["rows"]] == [
        ("early", 40000.0, "yes"),
        ("late", -100.0, "no"),
    ]


def test_evidence_names_ports(lake: Lake, tmp_path: Path) -> None:
    put(lake, "topology_links", topology_rows())
    evidence = {
        "receiver": down(0, 0),
        "root_links": [down(0, 1)],
        "saturated": True,
        "x": 0.12345,
    }
    row = {
        "episode_id": "e", "start_ts": at(0), "end_ts": at(5), "links": [down(0, 0)],
        "root_link": down(0, 0), "cause": "incast", "evidence": json.dumps(evidence),
    }  # fmt: skip
    put(lake, "derived/episodes", [row])
    [grid] = cards(lake, tmp_path)["episodes"]
    assert grid["rows"][0][-1] == "receiver leaf0:1; root links leaf0:2; saturated yes; x 0.123"

"""The report: one file, the same bytes for the same input, no request, no error, true numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import page
from xtune.lake import Lake
from xtune.reports import Report, build_report

pytestmark = pytest.mark.xdist_group("chain")


@pytest.fixture(scope="module")
def report(
    samples_lake: Lake, samples_study: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    out = tmp_path_factory.mktemp("report") / "report.html"
    return build_report(samples_lake, out, study=samples_study, command="xtune report")


def test_no_panel_fails_and_the_file_is_small(report: Report) -> None:
    assert report.failed == ()
    assert report.bytes < 5_000_000


def test_same_input_gives_the_same_bytes(
    report: Report, samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    again = build_report(
        samples_lake, tmp_path / "report.html", study=samples_study, command="xtune report"
    )
    assert again.html.read_bytes() == report.html.read_bytes()
    assert again.json.read_bytes() == report.json.read_bytes()


def test_opens_without_errors_or_requests(report: Report) -> None:
    with page(viewport={"width": 1280, "height": 900}) as tab:
        tab.goto(report.html.as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        outside = [u for u in tab.requests_seen if not u.startswith(("file:", "data:", "blob:"))]
        assert outside == []
        assert tab.errors == []
        assert tab.locator(".plot .main-svg").count() >= 2
        assert tab.locator(".modebar-btn", has_text=re.compile("cloud|share", re.I)).count() == 0
        shown = tab.locator("#episodes tbody tr").count()
        assert shown == len(samples_rows(report))
        tab.fill("input[type=search]", "incast")
        visible = tab.locator("#episodes tbody tr:visible").count()
        assert visible == sum("incast" in r for r in samples_rows(report))
        head = tab.locator("#episodes th").nth(1)
        head.click()
        assert head.get_attribute("aria-sort") == "ascending"


def samples_rows(report: Report) -> list[list[Any]]:
    """Rows of the episode table in report.json."""
    cards = json.loads(report.json.read_text())["cards"]
    (card,) = [c for c in cards if c["name"] == "episodes"]
    return list(card["blocks"][0]["rows"])


def test_foreign_names_are_escaped(
    report: Report, samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    hostile = json.loads(json.dumps(samples_study))
    hostile["assumed"] = [
        {"name": "</script><script>alert(1)</script>", "value": 1.0, "unit": "", "why": "<b>x"}
    ]
    written = build_report(samples_lake, tmp_path / "r.html", study=hostile)
    text = written.html.read_text()
    assert "<script>alert(1)" not in text
    assert "&lt;b&gt;x" in text


def test_a_failed_panel_says_why_and_the_rest_is_written(
    samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    broken = {**samples_study, "trials": [{"state": "complete"}]}
    written = build_report(samples_lake, tmp_path / "r.html", study=broken)
    assert written.failed == ("study",)
    assert "KeyError" in written.html.read_text()
    assert 'id="episodes"' in written.html.read_text()


def test_chinese_page_says_so(
    samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    written = build_report(samples_lake, tmp_path / "r.html", study=samples_study, language="zh")
    text = written.html.read_text()
    assert '<html lang="zh">' in text
    assert "拥塞报告" in text

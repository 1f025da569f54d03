"""The report: one file, the same bytes for the same input, no request, no error, true numbers."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.browser import page
from xtune.errors import InputError, NoDataError, UsageError
from xtune.lake import Lake
from xtune.reports import Report, build_report
from xtune.reports._figures import union_seconds

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


def test_tables_sort_by_value_from_the_keyboard_with_the_unknown_last(
    samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    study = json.loads(json.dumps(samples_study))
    study["baselines"][1] |= {"state": "failed", "reason": "no memory"}
    written = build_report(samples_lake, tmp_path / "r.html", study=study)
    wanted = sorted(
        (row["mean"], row["name"])
        for row in (*study["baselines"], *study["ablations"])
        if row["state"] == "complete"
    )
    with page(viewport={"width": 1280, "height": 900}) as tab:
        tab.goto(written.html.as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        head = tab.locator("#baselines th").nth(1)
        for key, order in (("Enter", "ascending"), ("Space", "descending")):
            head.press(key)
            assert head.get_attribute("aria-sort") == order
            rows = tab.locator("#baselines tbody tr")
            names = [rows.nth(i).locator("td").first.inner_text() for i in range(rows.count())]
            assert names[-1] == f"{study['baselines'][1]['name']}: no memory"
            means = [dict((n, m) for m, n in wanted)[name] for name in names[:-1]]
            rounded = [float(f"{m:.4g}") for m in means]
            assert rounded == sorted(rounded, reverse=order == "descending")


def test_printed_page_is_no_wider_than_the_paper(report: Report) -> None:
    with page(viewport={"width": 794, "height": 1123}, color_scheme="dark") as tab:  # A4
        tab.goto(report.html.as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        tab.emulate_media(media="print")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 794
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )


def test_a_span_keeps_the_episodes_that_reach_into_it(samples_lake: Lake, tmp_path: Path) -> None:
    rows = samples_lake.read("derived/episodes").sort_by("start_ts").to_pylist()
    middle = rows[3]["start_ts"] + (rows[3]["end_ts"] - rows[3]["start_ts"]) / 2
    written = build_report(samples_lake, tmp_path / "r.html", since=middle)
    kept = sum(row["end_ts"] >= middle for row in rows)
    assert len(samples_rows(written)) == kept < len(rows)
    with pytest.raises(NoDataError, match="--since"):
        build_report(samples_lake, tmp_path / "r.html", since=datetime(2100, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", ["report.json", ".", "file/r.html"])
def test_an_out_that_cannot_be_written_is_one_line(
    samples_lake: Lake, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((InputError, UsageError), match="--out"):
        build_report(samples_lake, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ({"mean": 0.1, "low": 0.05, "high": 0.2, "told_apart": True}, "10.0% sooner than"),
        ({"mean": -0.1, "low": -0.2, "high": -0.05, "told_apart": True}, "10.0% later than"),
        ({"mean": 0.1, "low": -0.1, "high": 0.2, "told_apart": False}, "do not tell"),
        ({"mean": 0.1, "low": None, "high": None, "told_apart": None}, "do not tell"),
    ],
)
def test_verdict_claims_no_more_than_the_seeds_show(
    samples_lake: Lake,
    samples_study: dict[str, Any],
    tmp_path: Path,
    gain: dict[str, Any],
    words: str,
) -> None:
    study = json.loads(json.dumps(samples_study))
    study["baselines"][0]["gain_of_best"] = gain
    written = build_report(samples_lake, tmp_path / "r.html", study=study)
    assert written.failed == ()
    (card,) = [c for c in json.loads(written.json.read_text())["cards"] if c["name"] == "verdict"]
    assert words in card["blocks"][0]["text"]


def test_a_study_of_another_lake_is_said_to_be(
    samples_lake: Lake, samples_study: dict[str, Any], tmp_path: Path
) -> None:
    own = build_report(samples_lake, tmp_path / "own.html", study=samples_study)
    assert "not in this lake" not in own.html.read_text()
    foreign = {**samples_study, "calibration": "0123456789ab"}
    written = build_report(samples_lake, tmp_path / "r.html", study=foreign)
    assert "not in this lake" in written.html.read_text()


def test_time_with_an_episode_is_counted_once() -> None:
    second = 10**9
    assert union_seconds([0, 2 * second, 9 * second], [5 * second, 3 * second, 10 * second]) == 6.0


def test_rows_of_one_name_stay_two_rows() -> None:
    from xtune.reports.sections.timeline import _distinct

    assert _distinct(["a", "b", "a"]) == ["a", "b", "a (2)"]


@pytest.mark.parametrize(("apart", "remark"), [(None, "; not told apart from 8 / 8"), (True, "")])
def test_recommended_period_says_whether_the_seeds_tell_it_from_others(
    samples_lake: Lake,
    samples_study: dict[str, Any],
    tmp_path: Path,
    apart: bool | None,
    remark: str,
) -> None:
    study = json.loads(json.dumps(samples_study))
    for trial in study["trials"]:
        trial["gain_of_best"]["told_apart"] = apart
    written = build_report(samples_lake, tmp_path / "r.html", study=study)
    (card,) = [c for c in json.loads(written.json.read_text())["cards"] if c["name"] == "verdict"]
    (row,) = [r for r in card["blocks"][1]["rows"] if r[0].startswith("recommended T")]
    assert row[2] == f"simulated{remark}"

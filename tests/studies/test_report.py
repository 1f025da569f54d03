"""What a report shows of a study, on results written by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser import page
from tests.pipelines.lakes import A, at, new_lake, put
from tests.sim_loop.made import made
from tests.studies.analytic import OPTIONS, lake_in, search
from xtune.cli._common import share
from xtune.lake import Lake
from xtune.reports import _page, build_report
from xtune.reports._base import Grid
from xtune.reports._figures import number, percent
from xtune.reports.sections import verdict
from xtune.studies.__main__ import HEAD, _row
from xtune.studies.__main__ import main as tables_of_studies
from xtune.studies._stats import recommendation

SECTIONS = {"history", "pareto", "importance", "sensitivity", "held_out", "recommendation"}
OLD: dict[str, Any] = {
    "schema": 1, "study": "period_T", "title": "period", "calibration": "abc", "planned": 2,
    "objective": {"name": "time_to_target_s", "unit": "s", "direction": "minimize"},
    "space": {"period.iterations": [50, 200]}, "best": None, "trials": [], "baselines": [],
    "ablations": [], "assumed": [], "notes": [], "founding_document": [],
    "provenance": {"seeds": [0, 1], "iterations": 100, "xtune": "1"},
}  # fmt: skip


def gain(mean: float) -> dict[str, Any]:
    return {
        "mean": mean, "low": mean - 0.01, "high": mean + 0.01, "p": 0.01, "told_apart": True,
        "over_seeds": {"low": mean - 0.005, "high": mean + 0.005},
        "own_error": {"bias": 0.001, "sd": 0.004},
    }  # fmt: skip


def trial(number: int, state: str, time_s: float | None, penalty: float = 0.0) -> dict[str, Any]:
    row: dict[str, Any] = {
        "number": number, "state": state, "params": {f"a.f{i}": 0.1 * number for i in range(10)},
        "mean": time_s, "low": None, "high": None, "per_seed": [],
    }  # fmt: skip
    if time_s is not None:
        row["metrics"] = {"time_to_target_s": time_s, "perplexity_penalty": penalty}
    if state == "complete":
        row |= {"low": time_s, "high": time_s, "gain_of_best": gain(0.02)}
    return row


@pytest.fixture
def searched() -> dict[str, Any]:
    """A search for two ends, over ten fields, with everything that can become of a trial."""
    trials = [
        trial(0, "complete", 105.0, 0.001),
        trial(1, "screened", 110.0, 0.004),
        trial(2, "complete", 100.0, 0.003),
        *(
            {**trial(n, "infeasible", None), "reason": f"a.f0: {n + 6} is not in 0..1"}
            for n in (3, 4)
        ),
        {**trial(5, "pruned", None), "reason": "clearly worse than trial 0"},
        {**trial(6, "failed", None), "reason": "worker processes died on it"},
        trial(7, "complete", 120.0, 0.002),
    ]
    named = {"state": "complete", "low": 1.0, "high": 2.0, "metrics": {}}
    baselines = [{**named, "name": "static_dense", "mean": 130.0, "gain_of_best": gain(0.2)}]
    return {
        **OLD,
        "study": "joint", "title": "both", "planned": 4, "trials": trials,
        "space": {f"a.f{i}": {"low": 0, "high": 1} for i in range(10)},
        "sampler": {"name": "tpe", "arguments": {}},
        "objectives": [
            {"metric": name, "name": name, "unit": "s", "direction": "minimize"}
            for name in ("time_to_target_s", "perplexity_penalty")
        ],
        "counts": {"complete": 4, "pruned": 1, "infeasible": 2, "failed": 1},
        "pareto": [0, 2],
        "best": {**{k: trials[2][k] for k in ("number", "params", "mean", "low", "high")}},
        "baselines": baselines,
        "importance": {
            "evaluator": "PED-ANOVA", "values": {"a.f0": 0.7, "a.f1": 0.3},
            "other": {"evaluator": "f-ANOVA", "values": {"a.f0": 0.1, "a.f1": 0.9}},
        },
        "sensitivity": [
            {"field": "a.f0", "values": [
                {"value": 0.1, "mean": 100.0, "low": 99.0, "high": 101.0},
                {"value": 0.25, "mean": 104.0, "low": 103.0, "high": 105.0}]},
            {"field": "a.f1", "values": [
                {"value": "holt", "mean": 100.0, "low": 99.0, "high": 101.0},
                {"value": "ewma", "mean": 100.0, "low": 99.0, "high": 101.0}]},
            {"field": "a.f2", "values": []},
            {"field": "a.f3", "values": [{"value": 1, "mean": 9.0, "low": 9.0, "high": 9.0}]},
        ],
        "held_out": {
            "span": {"from": "2026-03-02T00:00:00.000000000Z", "to": "2026-03-03T00:00:00Z"},
            "best": {"mean": 99.0, "low": 98.0, "high": 100.0}, "baselines": baselines,
        },
        "recommendation": {
            "verdict": "no_difference", "text": "No difference <b>yet</b>.", "seeds_needed": 40,
            "difference": gain(0.2),
        },
        "fidelity": {"bias": -0.012, "sd": 0.034, "windows": 20},
    }  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path / "lake")
    put(made, "derived/link_rates", [{"ts": at(9), "interval_s": 1.0, "link": A, "level": 0}])
    return made


def cards(lake: Lake, folder: Path, study: dict[str, Any]) -> dict[str, Any]:
    written = build_report(lake, folder / "report.html", study=study)
    assert written.failed == ()
    return {c["name"]: c["blocks"] for c in json.loads(written.json.read_text())["cards"]}


def test_an_old_result_lacks_the_new_sections(lake: Lake, tmp_path: Path) -> None:
    found = cards(lake, tmp_path, OLD)
    assert "study" in found
    assert not SECTIONS & {*found}


def test_a_search_shows_what_became_of_each_trial(
    lake: Lake, tmp_path: Path, searched: dict[str, Any]
) -> None:
    found = cards(lake, tmp_path, searched)
    assert {*found} >= SECTIONS
    counts, course = found["history"]
    assert [row[:2] for row in counts["rows"]] == [
        ["complete", "4"], ["pruned", "1"], ["infeasible", "2"], ["failed", "1"]
    ]  # fmt: skip
    few, every, best = course["figure"]["data"]
    assert (few["x"], every["x"]) == ([1], [0, 2, 7])
    assert (best["x"], best["y"]) == ([0, 1, 2, 7], [105.0, 105.0, 100.0, 100.0])
    texts = [block["text"] for block in found["study"] if block["kind"] == "text"]
    assert texts[0].startswith(
        "both: 4 of 4 trials complete on few seeds, the 3 most promising of them again on 2,"
    )
    assert "infeasible: trial 3: a.f0: 9 is not in 0..1, and 1 alike" in texts
    assert "pruned: trial 5: clearly worse than trial 0" in texts
    values, trials = (block for block in found["study"] if block["kind"] == "grid")
    assert values["rows"][0] == ["a.f0", 0.2]
    # The best of all seeds first; a better one of few seeds would still stand behind them.
    assert [row[:2] for row in trials["rows"]] == [[2, 100.0], [0, 105.0], [7, 120.0], [1, 110.0]]


def test_front_importance_and_surroundings(
    lake: Lake, tmp_path: Path, searched: dict[str, Any]
) -> None:
    found = cards(lake, tmp_path, searched)
    _, grid, plot = found["pareto"]
    assert grid["rows"] == [[2, 100.0, 0.003], [0, 105.0, 0.001]]
    front = plot["figure"]["data"][1]
    assert (front["x"], front["y"]) == ([105.0, 100.0], [0.001, 0.003])
    bars = found["importance"][1]["figure"]["data"]
    assert [(bar["name"], bar["y"], bar["x"]) for bar in bars] == [
        ("PED-ANOVA", ["a.f1", "a.f0"], [0.3, 0.7]),
        ("f-ANOVA", ["a.f1", "a.f0"], [0.9, 0.1]),
    ]
    text, around = found["sensitivity"]
    assert text["text"].endswith("Nothing changes with: a.f1.")
    [moved] = around["figure"]["data"]
    assert (moved["x"], moved["error_y"]["array"]) == (["0.1", "0.25"], [1.0, 1.0])


def test_held_out_days_and_advice(lake: Lake, tmp_path: Path, searched: dict[str, Any]) -> None:
    found = cards(lake, tmp_path, searched)
    text, grid = found["held_out"]
    assert "(2026-03-02T00:00:00Z to 2026-03-03T00:00:00Z)" in text["text"]
    assert text["text"].endswith("the simulator's own error is not in them.")
    assert grid["rows"] == [
        ["tuned policy", "99", "98", "100", None, None, None],
        ["static_dense", "130", "1", "2", "20.0%", "19.0% .. 21.0%", "19.5% .. 20.5%"],
    ]
    advice, figures = found["recommendation"]
    assert advice["text"] == "No difference <b>yet</b>."
    assert figures["rows"] == [
        ["verdict", "no difference", "simulated"],
        [
            "gain over the default",
            "20.0%",
            "95 %: 19.0% .. 21.0%; seeds alone 19.5% .. 20.5%",
        ],
        ["seeds for an 80 % chance to settle it", "40", "tune.seeds"],
        ["step time against the full fabric model", "-1.2%", "± 3.4%, 20 windows"],
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_the_default_stands_beside_the_best_once(
    lake: Lake, tmp_path: Path, searched: dict[str, Any], alone: bool
) -> None:
    default = {**searched["baselines"][0], "name": "joint", "mean": 107.0}
    others = [] if alone else [default]
    for part in (searched, searched["held_out"]):
        part |= {"default": default, "baselines": others, "ablations": []}
    found = cards(lake, tmp_path, searched)
    for name, row in (("baselines", 0), ("held_out", 1)):
        grid = next(b for b in found[name] if b["kind"] == "grid")
        assert [r[:2] for r in grid["rows"][row:]] == [["joint", "107"]]


def test_why_one_did_not_run_on_the_held_out_days_is_said(
    lake: Lake, tmp_path: Path, searched: dict[str, Any]
) -> None:
    failed = {"state": "failed", "reason": "worker processes died on it", "mean": None}
    searched["held_out"] |= {
        "best": {**failed, "reason": "", "state": "infeasible"},
        "baselines": [{**failed, "name": "priority"}],
    }
    _, grid = cards(lake, tmp_path, searched)["held_out"]
    assert grid["rows"] == [
        ["tuned policy: infeasible", "-", "-", "-", None, None, None],
        ["priority: worker processes died on it", "-", "-", "-", None, None, None],
    ]


@pytest.mark.parametrize("known", [True, False])
def test_what_the_intervals_hold_is_said(
    lake: Lake, tmp_path: Path, searched: dict[str, Any], known: bool
) -> None:
    own = {"bias": 1.0, "sd": 2.0} if known else None
    searched["held_out"]["best"]["own_error"] = own
    searched["baselines"][0]["own_error"] = own
    found = cards(lake, tmp_path, searched)
    for name in ("held_out", "baselines"):
        assert ("and the simulator's own error" in found[name][0]["text"]) is known
        assert ("over the seeds alone: the simulator's" in found[name][0]["text"]) is not known


@pytest.mark.parametrize("part", sorted(SECTIONS))
def test_a_part_that_is_not_there_is_left_out(
    lake: Lake, tmp_path: Path, searched: dict[str, Any], part: str
) -> None:
    key = {"history": "counts"}.get(part, part)
    for study in ({**searched, key: None}, {k: v for k, v in searched.items() if k != key}):
        if key == "counts" and study.get("counts", 0) is None:
            continue  # is never null
        assert part not in cards(lake, tmp_path, study)


def test_all_of_it_in_a_browser(lake: Lake, tmp_path: Path, searched: dict[str, Any]) -> None:
    written = build_report(lake, tmp_path / "report.html", study=searched, language="zh")
    with page(viewport={"width": 1280, "height": 900}) as tab:
        tab.goto(written.html.as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        assert tab.errors == []
        for name in ("history", "pareto", "importance", "sensitivity"):
            assert tab.locator(f"#{name} .plot .main-svg").count() > 0
        assert "<b>" in tab.locator("#recommendation").inner_text()


def maximised(values: list[Any], means: list[float]) -> dict[str, Any]:
    """A grid over one field for a share that should be large, with a far and a near baseline."""
    rows = [
        {**trial(n, "complete", mean), "params": {"routing.mode": value}}
        for n, (value, mean) in enumerate(zip(values, means, strict=True))
    ]
    named: dict[str, Any] = {"state": "complete", "low": None, "high": None, "metrics": {}}
    return {
        **OLD, "planned": len(rows), "trials": rows, "space": {"routing.mode": values},
        "objective": {"name": "ratio_vs_bf16", "unit": "1", "direction": "maximize"},
        "best": {**rows[0], "gain_of_best": gain(0.0)},
        "baselines": [
            {**named, "name": "near", "mean": means[-1] - 0.01, "gain_of_best": gain(0.2)},
            {**named, "name": "far", "mean": means[-1] - 100.0, "gain_of_best": gain(0.2)},
        ],
    }  # fmt: skip


def test_an_objective_that_is_no_time_is_not_called_one(lake: Lake, tmp_path: Path) -> None:
    found = cards(lake, tmp_path, maximised(["static", "adaptive"], [-0.1, -0.2]))
    texts = [b["text"] for name in ("study", "baselines") for b in found[name]
             if b["kind"] == "text"]  # fmt: skip
    assert any("routing.mode = static, -0.1." in text for text in texts)
    assert any("by how much better ratio_vs_bf16 is" in text for text in texts)
    assert not any("sooner" in text or "target loss" in text for text in texts)
    plot = next(b for b in found["study"] if b["kind"] == "plot")
    axes = plot["figure"]["layout"]
    assert axes["yaxis"]["title"]["text"] == "ratio_vs_bf16"
    assert axes["xaxis"]["type"] == "category"
    assert [line["name"] for line in plot["figure"]["data"]] == ["tuned policy", "near"]
    assert "Off the scale: far (-100.2)." in plot["alternative"]
    for name in ("study", "baselines"):
        grid = next(b for b in found[name] if b["kind"] == "grid")
        assert "ratio_vs_bf16" in str(grid["columns"]) and "target, s" not in str(grid["columns"])


@pytest.mark.parametrize(
    ("values", "kind"),
    [([50, 200], "log"), ([0.0, 0.5], "linear"), ([True, False], "category"),
     ([[1, 2], [3, 4]], "category")],
)  # fmt: skip
def test_the_axis_is_of_the_kind_of_its_values(
    lake: Lake, tmp_path: Path, values: list[Any], kind: str
) -> None:
    found = cards(lake, tmp_path, maximised(values, [0.2, 0.1]))
    plot = next(b for b in found["study"] if b["kind"] == "plot")
    assert plot["figure"]["layout"]["xaxis"]["type"] == kind


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_verdict_calls_an_objective_by_its_name(language: str) -> None:
    share, time = {"name": "ratio_vs_bf16"}, {"name": "time_to_target_s"}
    for mean, by in ((0.2, "20.0%"), (-0.1, "10.0%")):
        text = verdict._compared("dense", gain(mean), share, language)
        assert "ratio_vs_bf16" in text and by in text
        assert verdict._compared("dense", gain(mean), time, language) != text
    assert not set("快") & set(verdict._beaten(["dense"], share, language))
    assert "Faster" not in verdict._beaten(["dense"], share, language)


def test_a_search_says_on_how_many_seeds_it_screened(
    lake: Lake, tmp_path: Path, searched: dict[str, Any]
) -> None:
    searched["provenance"] = {**OLD["provenance"], "search_seeds": [0, 1, 2], "seeds": [*range(5)]}
    found = cards(lake, tmp_path, searched)
    text = next(b["text"] for b in found["study"] if b["kind"] == "text")
    assert "complete on 3 seeds, the 3 most promising of them again on 5," in text


def test_a_table_puts_numbers_to_the_right_and_words_to_the_left() -> None:
    """Truth values are words; so is what is unknown among words."""
    content: Any = None
    grid = Grid(columns=["a", "b", "c"], rows=[(True, "1,291", "x"), (False, None, None)])
    html = _page._grid(grid, "t", content)
    heads = re.findall(r"<th [^>]*>", html)
    assert ['class="n"' in head for head in heads] == [False, True, False]
    cells = re.findall(r"<td([^>]*)>([^<]*)</td>", html)
    assert [text for _, text in cells] == ["True", "1,291", "x", "False", "-", "-"]
    assert ['class="n"' in mark for mark, _ in cells] == [False, True, False] * 2
    assert 'data-v="1291.0"' in cells[1][0]


def test_the_table_of_the_docs_is_one_that_the_command_prints() -> None:
    """Its form, not its figures: each cell written as those of a made-up row are."""
    lines = (Path(__file__).parents[2] / "docs/studies.md").read_text().splitlines()
    start = lines.index(HEAD.format(objective="time_to_target_s"))
    end = next(n for n in range(start, len(lines)) if not lines[n])
    row = {
        "mean": 3918.2, "low": 3904.0, "high": 3932.0,
        "gain_of_best": {**gain(0.02), "over_seeds": {"low": -0.01, "high": 0.03}},
        "metrics": {"ratio_vs_bf16": 0.5, "perplexity_penalty": 0.0, "jitter_s": 0.1,
                    "control_changes": 2.0},
    }  # fmt: skip
    best = {k: v for k, v in row.items() if k != "gain_of_best"}

    def form(line: str) -> str:
        return re.sub(r"-?\d+", "9", line[line.index(" |", 2) :])

    assert lines[start + 1] == "|" + "---|" * 9
    tuned, *others = lines[start + 2 : end]
    assert tuned.startswith("| tuned (trial ") and form(tuned) == form(_row("a", best))
    assert {form(line) for line in others} == {form(_row("a", row))}


def test_what_rounds_to_nothing_has_no_sign() -> None:
    nothing = {"mean": -0.0004, "low": -0.0006, "high": -0.0, "told_apart": False}
    row = {
        "name": "joint", "mean": -0.0, "low": None, "high": None,
        "gain_of_best": {**nothing, "over_seeds": {"low": -1e-9, "high": -1e-9}},
        "metrics": {"ratio_vs_bf16": -1e-9, "perplexity_penalty": -1e-9, "jitter_s": -1e-9},
    }  # fmt: skip
    told = _row("a", row)
    assert told.split(" | ")[1:-1] == [
        "0", "0.0% [-0.1%, 0.0%]", "[0.0%, 0.0%]", "no", "0.0%", "0.00%", "0.00",
    ]  # fmt: skip
    assert (percent(-1e-9), percent(-0.1), share(-1e-9), share(-0.1)) == (
        "0.0%", "-10.0%", "0.0%", "-10.0%",
    )  # fmt: skip
    said = recommendation([100.0004] * 5, [100.0] * 5, "minimize", "fresh seeds")["text"]
    assert "gains 0.00% [0.00%, 0.00%]" in said


def test_large_numbers_are_not_written_in_powers() -> None:
    shown = {12910.4: "12,910", 3931.26: "3931", 0.0123456: "0.01235", 5.0: "5", 1.5e13: "1.5e+13"}
    assert {value: number(value) for value in shown} == shown


def test_the_tables_of_a_lake_are_what_its_results_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = replace(made(), held_out=made(compute_s=0.123))
    lake = lake_in(tmp_path)
    document = search(lake, calibration=calibration, options=replace(OPTIONS, fidelity=True))
    assert tables_of_studies([str(lake.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert {len(row) for row in rows} == {9}
    held = document["held_out"]
    assert [row[0] for row in rows[2:]] == [
        f"tuned (trial {document['best']['number']})", "`joint`", "`static_dense`",
        "`compression_only`",
    ]  # fmt: skip
    gained = held["baselines"][0]["gain_of_best"]
    low, high = gained["low"], gained["high"]
    assert rows[4][2] == f"{gained['mean']:.1%} [{low:.1%}, {high:.1%}]"
    assert lines[-1] == document["recommendation"]["text"]
    assert tables_of_studies([str(tmp_path)]) == 2
    assert tables_of_studies([str(lake.root), "none"]) == 2
    path = next(lake.root.glob("studies/*/result.json"))
    path.write_text(json.dumps({k: v for k, v in document.items() if k != "counts"}))
    assert tables_of_studies([str(lake.root)]) == 2
    assert "has no counts: an older version made its result" in capsys.readouterr().err

"""What the command line says of the best trial."""

from __future__ import annotations

from typing import Any

import pytest

from xtune.cli.tune import _beside, _verdict


def said(capsys: pytest.CaptureFixture[str], unit: str, *means: float) -> str:
    apart = {"told_apart": False}
    rows: list[dict[str, Any]] = [
        {"number": n, "state": "complete", "mean": m, "gain_of_best": apart}
        for n, m in enumerate(means)
    ]
    best = {"number": 0, "params": {"a": 1}, "mean": means[0], "low": means[0], "high": 0.25,
            "fresh": True}  # fmt: skip
    document = {
        "best": best, "objective": {"name": "m", "unit": unit}, "provenance": {"seeds": [0]},
        "pareto": [], "recommendation": {"text": "so"},
    }  # fmt: skip
    _verdict(document, rows)
    return " ".join(capsys.readouterr().out.split())


def test_a_share_has_no_unit_and_no_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a = 1; 0.1665 [0.1665, 0.25] on fresh" in said(capsys, "1", 0.1665)
    assert "a = 1; 0 [0, 0.25] on fresh" in said(capsys, "1", -5.12e-8)
    assert "a = 1; 2e-08 s [2e-08, 0.25] on fresh" in said(capsys, "s", 2e-8)


def test_trials_with_the_best_s_mean_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the same mean as it has: trials 1, 3;" in said(capsys, "s", 1.0, 1.0, 2.0, 1.0)
    assert "same mean" not in said(capsys, "s", 1.0, 2.0)


@pytest.mark.parametrize(
    ("baselines", "tables"),
    [
        ([], ["default: joint"]),
        (["joint"], ["baselines: joint"]),
        (["a"], ["default: joint", "baselines: a"]),
    ],
)
def test_the_default_has_a_table_where_it_is_in_no_other(
    baselines: list[str], tables: list[str]
) -> None:
    rows = [{"name": name} for name in baselines]
    shown = _beside({"default": {"name": "joint"}, "baselines": rows, "ablations": []})
    assert [f"{role}: {r['name']}" for role, of in shown.items() for r in of] == tables
    assert "default" not in _beside({"default": None, "baselines": rows, "ablations": []})

"""What is said of a tuned policy that is not fit for use, and of the simulator's own error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xtune.studies import Constraint, Objective
from xtune.studies._recommend import recommend, widen_figures
from xtune.studies._result import Found
from xtune.studies._trials import Outcome

METRIC = "time_to_target_s"
LATE = "the target loss is not reached with seed 1000"


def setting(metric: str = METRIC) -> Any:
    study = SimpleNamespace(constraints=(Constraint(metric="jitter_s", at_most=1.0),))
    return SimpleNamespace(study=study, objective=Objective(metric=metric), default="joint")


def good(at: float = 100.0, jitter: float = 0.5) -> Outcome:
    runs = [{METRIC: at + i, "jitter_s": jitter} for i in range(5)]
    return Outcome(key="", params={}, per_seed=runs)


BAD = Outcome(key="", params={}, reason=LATE, infeasible=True)
FAILED = Outcome(key="", params={}, reason="no memory")


@pytest.mark.parametrize(
    ("best", "default", "verdict", "says"),
    [
        (BAD, good(), "worse", f"on held-out telemetry the tuned policy is infeasible: {LATE}"),
        (FAILED, good(), "worse", "the tuned policy is failed: no memory"),
        (good(50, 2.0), good(), "worse", "infeasible: jitter_s 2 is above 1"),
        (good(50, 2.0), good(jitter=2.0), "better", "Neither keeps to the constraints"),
        (good(50), BAD, "no_difference", f"the default is infeasible: {LATE}"),
        (FAILED, BAD, "no_difference", "the tuned policy is failed: no memory; the default is"),
        (good(50), good(), "better", "Use the tuned policy"),
    ],
)
def test_what_fails_on_held_out_days_is_said(
    best: Outcome, default: Outcome, verdict: str, says: str
) -> None:
    """Whatever the fresh seeds were."""
    found = Found(fresh={"": good(50), "joint": good()}, held_out={"": best, "joint": default})
    said = recommend(setting(), found)
    assert said["verdict"] == verdict
    assert says in said["text"]


@pytest.mark.parametrize(
    ("metric", "verdict"), [(METRIC, "no_difference"), ("jitter_s", "better")]
)
def test_the_error_of_step_times_is_of_times_alone(metric: str, verdict: str) -> None:
    own = {"difference_from_default": {"bias": 0.6, "sd": 0.0}}
    found = Found(fresh={"": good(50, 0.4), "joint": good(100, 0.8)}, fidelity=own)
    assert recommend(setting(metric), found)["verdict"] == verdict


def test_an_absolute_figure_holds_bias_and_deviation_in_quadrature() -> None:
    """100 [97, 104] with a bias of 4 %: halves 3 and 4 become 5 and 4 * 2**0.5."""
    row = {"mean": 100.0, "low": 97.0, "high": 104.0}
    for _ in range(2):  # a row that is shown twice is widened once
        widen_figures(row, METRIC, {"bias": -0.04, "sd": 0.0})
    assert row == {
        "mean": 100.0,
        "low": pytest.approx(95.0),
        "high": pytest.approx(100 + 4 * 2**0.5),
        "over_seeds": {"low": 97.0, "high": 104.0},
    }
    for metric, own in ((METRIC, None), (METRIC, {"bias": float("nan"), "sd": 0.0}), ("u", row)):
        same = {"mean": 1.0, "low": 0.5, "high": 2.0}
        widen_figures(same, metric, own)
        assert same == {"mean": 1.0, "low": 0.5, "high": 2.0}

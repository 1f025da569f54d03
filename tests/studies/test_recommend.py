"""What is said of a tuned policy that is not fit for use, and of the simulator's own error."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from xtune.sim.fidelity import Fidelity
from xtune.studies import Constraint, Objective
from xtune.studies._own_error import OwnErrors
from xtune.studies._recommend import recommend
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
    """50 for 100 gains half; 1.2 less nothing, of which half counts, is more than that."""
    fidelity = {"": window(1.2), "joint": window(0.0)}
    found = Found(fresh={"": good(50, 0.4), "joint": good(100, 0.8)}, fidelity=fidelity)
    assert recommend(setting(metric), found)["verdict"] == verdict


def test_the_error_is_that_of_the_telemetry_that_is_judged_by() -> None:
    both = {"": good(50), "joint": good(100)}
    large, none = {"": window(1.2), "joint": window(0.0)}, {"": window(0.1), "joint": window(0.1)}
    for fresh, held, verdict in ((large, none, "better"), (none, large, "no_difference")):
        found = Found(fresh=both, held_out=both, fidelity=fresh, held_out_fidelity=held)
        assert recommend(setting(), found)["verdict"] == verdict


def window(error: float) -> Fidelity:
    """One window, off by so much."""
    return Fidelity(
        policy="p", bias=error, sd=0.0, phase_bias=0.0, phase_sd=0.0, windows=1,
        errors=(error,), shares=(1.0,),
    )  # fmt: skip


def test_own_errors_by_hand() -> None:
    """Two windows, of three quarters and one quarter of the time."""
    measured = {
        "": replace(window(0.01), errors=(0.03, -0.01), shares=(0.75, 0.25), sd=0.5),
        "a": replace(window(0.02), errors=(0.01, 0.01), shares=(0.75, 0.25)),
        "b": replace(window(0.02), errors=(None, 0.01), shares=(0.75, 0.25)),
        "c": replace(window(float("nan")), errors=(None, None), shares=(0.75, 0.25)),
    }
    own = OwnErrors(metric=METRIC, measured=measured)
    assert own.absolute("") == (0.01, 0.5)
    # 0.02 three times out of four, else -0.02: mean 0.01, deviation 0.04 * (3/4 * 1/4)**0.5.
    assert own.of_difference("a") == pytest.approx((0.01, 0.04 * (3 / 16) ** 0.5))
    assert own.of_difference("b") == pytest.approx((-0.02, 0.0))  # what both have
    for unknown in ("c", "d"):
        assert own.absolute(unknown) is own.of_difference(unknown) is None
    other = OwnErrors(metric="jitter_s", measured=measured)
    assert other.absolute("") is other.of_difference("a") is None

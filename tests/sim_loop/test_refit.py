"""A response measured on runs of one's own: what it changes, what it leaves, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim_loop.lakes import Truth, make_lake
from tests.sim_loop.made import made
from tests.sim_loop.test_measured import bits, document, row
from xtune.errors import CalibrationError
from xtune.sim import Calibration, calibrate
from xtune.sim.measured import constants, read
from xtune.sim.response import EARLY, dropped_power, with_response


def own() -> dict[str, Any]:
    """Three methods and their seeds; nothing of dropping with a residual or of sharing."""
    made_of = document(
        a=row("quantise", 0.02, **bits(4, 4, 4.0)),
        b=row("quantise", 0.05, gain=0.5, **bits(4, 4, 4.0)),
        c=row("drop", 0.6, keep_share=0.1),
    )
    return {"schema": 1, **made_of}


def written(folder: Path, content: Any) -> Path:
    path = folder / "own.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_was_measured_is_no_longer_assumed(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", Truth(hours=0.2))
    before, after = calibrate(lake), calibrate(lake, response=written(tmp_path, own()))
    expected = constants(own(), dropped_power, EARLY)
    assert set(expected) == {"lost", "noise", "drop"}
    for name, constant in expected.items():
        p = after.parameters[f"penalty_{name}"]
        assert (
            not p.assumed
            and p.value == max(0.0, constant.value)
            and p.low == max(0.0, constant.low or 0.0)
        )
        assert p.n == 3 * 3  # runs: three methods, three seeds each
    for name in ("penalty_shared", "penalty_drop_residual", "early_penalty"):
        assert after.parameters[name] == before.parameters[name]
    assert len(after.assumed) == len(before.assumed) - 3
    assert after.response == own()["provenance"] and before.response is None
    assert after.fingerprint != before.fingerprint
    assert Calibration.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_what_was_won_is_no_penalty_with_an_interval_around_it() -> None:
    content = own()
    content["methods"]["c"]["perplexity_changes"] = [-0.01, -0.011, -0.012]
    p = with_response(made(), content, "digest").parameters["penalty_drop"]
    assert p.value == p.low == p.high == 0.0


def test_quantisers_of_one_gain_leave_both_constants_assumed() -> None:
    content = own()
    content["methods"]["b"]["gain"] = None
    assert set(constants(content, dropped_power, EARLY)) == {"drop"}


def test_other_runs_with_the_same_constants_are_another_calibration(tmp_path: Path) -> None:
    one, digest = read(written(tmp_path, own()))
    again = {**own(), "provenance": {**own()["provenance"], "xtune": "2"}}
    two, other = read(written(tmp_path, again))
    assert (
        with_response(made(), one, digest)["penalty_drop"]
        == (with_response(made(), two, other)["penalty_drop"])
    )
    assert with_response(made(), one, digest).fingerprint != (
        with_response(made(), two, other).fingerprint
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=7), "schema 7"),
        (lambda d: d.pop("methods"), "no 'methods'"),
        (lambda d: d["provenance"]["settings"].pop("warm"), "no 'warm'"),
        (lambda d: d["provenance"]["settings"].update(steps=0), "steps is 0"),
        (lambda d: d["full_precision"].update(nats_per_e_fold=0.0), "nats_per_e_fold is 0.0"),
        (lambda d: d["methods"]["c"].update(seeds=[1]), "c: a perplexity change for each seed"),
        (lambda d: d["methods"]["c"].update(keep_share=None), "c: keep_share is None"),
        (lambda d: d["methods"]["c"].update(keep_share=1.0), "c: keep_share is 1.0"),
        (lambda d: d["methods"]["c"].update(keep_share=7), "c: keep_share is 7"),
        (lambda d: d["methods"]["c"].update(seeds=[1, 1, 2]), "c: its seeds are not"),
        (lambda d: d["methods"]["c"].update(perplexity_changes=["0.1"] * 3), "c: seed 0: '0.1'"),
        (lambda d: d["methods"]["b"].update(gain="x"), "b: gain is 'x'"),
        (lambda d: d["methods"]["b"].pop("gain"), "b: no 'gain'"),
        (lambda d: d["methods"]["b"].update(block=1), "b: block is 1"),
        (lambda d: d["methods"]["b"].update(bits_head=8, mean_bits=9.0), "b: mean_bits is 9.0"),
        (lambda d: d["provenance"]["settings"].update(warm=True), "warm is True"),
        (lambda d: d["provenance"]["settings"].update(steps=10**10), "steps is 10000000000"),
        (lambda d: d["provenance"].update(loss=float("nan")), "not JSON compliant"),
        # Runs that diverged, of each form of method; and one that no penalty can explain.
        (
            lambda d: d["methods"]["b"].update(perplexity_changes=[0.1, 50.0, 0.1]),
            "b: seed 1: a perplexity change of 50 after 1000 iterations is a diverged run",
        ),
        (lambda d: d["methods"]["c"].update(perplexity_changes=[50.0] * 3), "c: seed 0: a perpl"),
        (
            lambda d: [
                d["full_precision"].update(nats_per_e_fold=1e-6),
                d["methods"]["c"].update(perplexity_changes=[-0.999] * 3),
                d["methods"]["a"].update(perplexity_changes=[0.0] * 3),
                d["methods"]["b"].update(perplexity_changes=[0.0] * 3),
            ],
            "c: seed 0: .* more than can be won",
        ),
        # Two quantisers of the same gain say nothing of bias beside noise.
        (
            lambda d: [d["methods"].pop("c"), d["methods"]["b"].update(gain=None)],
            "two quantisers of 4 bits or more with unlike gain",
        ),
        (
            lambda d: d["methods"]["a"].update(perplexity_changes=[0.1, float("nan"), 0.1]),
            "a: seed 1: nan is no change",
        ),
        (lambda d: d["methods"]["a"].update(seeds=[7, 8, 9]), "no seed in common"),
        (lambda d: d.update(methods={"fp32": d["methods"]["fp32"]}), "no method of kind quantise"),
    ],
)
def test_what_is_no_response_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    content = own()
    change(content)
    with pytest.raises(CalibrationError, match=message) as caught:
        read(written(tmp_path, content))
    assert "\n" not in str(caught.value) and "own.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", '"text"', "null", "\x00"])
def test_what_is_no_json_object_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        CalibrationError, match=r"cannot be read|is no measured response"
    ) as caught:
        read(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        read(tmp_path / "none.json")

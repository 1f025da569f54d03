"""A calibration as data: round trip, fingerprint, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sim_loop.made import made
from xtune.errors import CalibrationError
from xtune.sim import Calibration


def test_a_saved_calibration_reads_back_equal(tmp_path: Path) -> None:
    calibration = replace(made(), span_ns=(1, 2))
    path = calibration.save(tmp_path / "calibrations")
    assert path.name == f"{calibration.fingerprint}.json"
    assert Calibration.load(path) == calibration
    assert json.loads(path.read_text())["schema"] == 1
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left


def test_fingerprint_follows_values_and_inputs_alone() -> None:
    one = made()
    assert made(compute_s=0.2).fingerprint != one.fingerprint
    assert replace(one, inputs={"steps": "0" * 12}).fingerprint != one.fingerprint
    assert replace(one, notes=("a note",), span_ns=(1, 2)).fingerprint == one.fingerprint
    shuffled = dict(reversed(list(one.parameters.items())))
    assert replace(one, parameters=shuffled).fingerprint == one.fingerprint
    # A sum taken in another order differs in the last bits; that is not another calibration.
    assert made(compute_s=0.1 + 1e-17 + 0.2 - 0.2).fingerprint == one.fingerprint


def test_values_set_by_hand_count_as_assumed() -> None:
    calibration = made(change_s=0.3)
    assert [p.name for p in calibration.assumed if p.why == "set by hand"] == ["change_s"]
    with pytest.raises(CalibrationError, match="no_such: no such parameter"):
        calibration.with_values(no_such=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, this version reads 1"),
        ({"buckets": [1]}, "changed by hand"),
        ({"parameters": [{"value": 1.0}]}, "incomplete"),
        ({"layers": None}, "incomplete"),
    ],
)
def test_another_document_is_refused_in_one_line(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**made().to_json(), **change}))
    with pytest.raises(CalibrationError, match=message) as caught:
        Calibration.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("{")
    with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
        Calibration.load(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: [],
        lambda d: "text",
        lambda d: {**d, "schema": 99},
        lambda d: {**d, "layers": 3},
        lambda d: {**d, "span_ns": []},
        lambda d: {**d, "parameters": [{**p, "value": "abc"} for p in d["parameters"]]},
        lambda d: {**d, "parameters": [{**p, "value": None} for p in d["parameters"]]},
        lambda d: {**d, "parameters": [{**p, "value": 7.0} for p in d["parameters"]]},
        lambda d: {**d, "parameters": ["x"]},
    ],
)
def test_a_spoilt_file_is_one_line_that_names_it(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(spoil(made().to_json())))
    with pytest.raises(CalibrationError, match=r"^\S*c\.json: [^\n]*run xtune calibrate again\)$"):
        Calibration.load(path)

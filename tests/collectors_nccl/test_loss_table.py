from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors._steps import measure_of
from xtune.collectors.loss_table import COLLECTOR

NAMES = ("step", "split", "loss", "grad_norm", "learning_rate")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", ("loss", "train", 1.0)),
        ("train/loss", ("loss", "train", 1.0)),
        ("val_loss", ("loss", "validation", 1.0)),
        ("eval/loss", ("loss", "validation", 1.0)),
        ("lm-loss-training/lm loss", ("loss", "train", 1.0)),
        ("lm-loss-training/lm loss vs samples", None),
        ("grad-norm/grad-norm", ("grad_norm", "train", 1.0)),
        ("learning_rate", ("learning_rate", "train", 1.0)),
        ("iteration-time", ("step_time_s", "train", 1.0)),
        ("step_time_ms", ("step_time_s", "train", 1e-3)),
        ("train_loss_step", ("loss", "train", 1.0)),
        ("val_loss_step", None),  # of one batch
        ("epoch_loss", None),  # counts epochs
        ("loss_scale", None),
        ("aux_loss", None),
        ("tokens", None),  # of the step or of the run: not said
        ("", None),
    ],
)
def test_only_unmistakable_names_are_taken(name: str, expected: tuple[Any, ...] | None) -> None:
    found = measure_of(name)
    assert (found and (found.column, found.split, found.scale)) == expected


def test_json_lines(tmp_path: Path) -> None:
    data = (
        b'{"step": 1, "loss": 2.5, "val_loss": 3.5, "lr": 0.25, "_timestamp": 1700000000.5}\n'
        b'{"step": 2, "loss": NaN}\n{"step": 3, "loss": Infinity, "grad_norm": "nan"}\n'
    )
    assert COLLECTOR.claim(tmp_path, data) > 0.5
    read = read_bytes(COLLECTOR, data, tmp_path, ctx=context(job="j", run="r"))
    assert not read.rejects and not read.notes
    assert some(read.rows[0], *NAMES) == (1, "train", 2.5, None, 0.25)
    assert some(read.rows[1], *NAMES) == (1, "validation", 3.5, None, None)
    assert read.rows[0]["ts"] == 1_700_000_000_500_000_000
    assert some(read.rows[0], "job", "run") == ("j", "r")
    assert math.isnan(read.rows[2]["loss"]) and read.rows[3]["loss"] == math.inf
    assert math.isnan(read.rows[3]["grad_norm"])


def test_log_of_llama_factory(tmp_path: Path) -> None:
    data = b'{"current_steps": 10, "total_steps": 30, "loss": 1.5, "lr": 0.25, "epoch": 0.1}\n'
    data += b'{"current_steps": 20, "total_steps": 30, "eval_loss": 1.25, "epoch": 0.2}\n'
    assert COLLECTOR.claim(tmp_path, data) > 0.5
    rows = read_bytes(COLLECTOR, data, tmp_path).rows
    assert [some(row, "step", "split", "loss") for row in rows] == [
        (10, "train", 1.5), (20, "validation", 1.25),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_700_000_000, 1_700_000_000 * 10**9),
        (1_700_000_000_123, 1_700_000_000_123 * 10**6),
        (1_700_000_000_123_456, 1_700_000_000_123_456 * 10**3),
        (1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        ("2026-01-31T12:00:00Z", 1_769_860_800 * 10**9),
        (12.5, None),  # seconds since some start
        ("2026-01-31 12:00:00", None),  # local, and no zone is named
    ],
)
def test_times(tmp_path: Path, value: Any, expected: int | None) -> None:
    data = json.dumps({"step": 1, "loss": 2.0, "timestamp": value}).encode() + b"\n"
    assert read_bytes(COLLECTOR, data, tmp_path).rows[0]["ts"] == expected


def test_csv_and_map(tmp_path: Path) -> None:
    data = b'Step;my loss;other\n1;2.5;x\n2;;y\n3;nan;"z"\n4;1.5\n5;2.5;z'
    assert COLLECTOR.claim(tmp_path, data) == 0.0  # "my loss" could be anything
    read = read_bytes(COLLECTOR, data, tmp_path, ctx=context(column_map={"loss": "my loss"}))
    assert [r["step"] for r in read.rows] == [1, 3] and math.isnan(read.rows[1]["loss"])
    assert ["line 5" in read.rejects[0].offset, "cut" in read.rejects[1].reason] == [True, True]
    assert read.note("records without").count == 1  # the empty cell
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rows and "my loss" in read.note("--map").text


def test_mapped_column_stands_in_for_the_usual_one(tmp_path: Path) -> None:
    data = b"iteration,loss,ema,mode\n1,2.5,2.0,train\n1,3.5,3.0,eval\n"
    assert COLLECTOR.claim(tmp_path, data) > 0.5
    read = read_bytes(COLLECTOR, data, tmp_path, ctx=context(column_map={"loss": "ema"}))
    assert [some(r, "step", "split", "loss") for r in read.rows] == [
        (1, "train", 2.0), (1, "validation", 3.0),
    ]  # fmt: skip


STATE = {
    "global_step": 20,
    "log_history": [
        {"step": 10, "loss": 2.5, "grad_norm": 0.5, "learning_rate": 0.25, "epoch": 1.0},
        {"step": 10, "eval_loss": 3.5, "eval_runtime": 1.0},
        {"step": 20, "loss": float("nan")},
        {"step": 20, "train_loss": 2.25, "train_runtime": 9.0},
        {"predict_loss": 1.0},
        7,
    ],
}


def test_trainer_state(tmp_path: Path) -> None:
    for data in (json.dumps(STATE, indent=1).encode(), json.dumps(STATE).encode()):
        assert COLLECTOR.claim(tmp_path, data) > 0.9
        read = read_bytes(COLLECTOR, data, tmp_path)
        assert [some(r, "step", "split") for r in read.rows] == [
            (10, "train"), (10, "validation"), (20, "train"),
        ]  # fmt: skip
        assert some(read.rows[0], *NAMES) == (10, "train", 2.5, 0.5, 0.25)
        assert math.isnan(read.rows[2]["loss"])
        assert read.note("closing row").count == 1
        assert [r.offset for r in read.rejects] == ["log_history[5]"]


def test_golden_values_in_a_list(tmp_path: Path) -> None:
    series = {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [10.5, 9.5, 8.5]}
    zeros = {"start_step": 0, "end_step": 15, "step_interval": 0, "values": [1.0]}
    document = {"lm loss": series, "num-zeros": zeros, "iteration_timing_avg": 0.06}
    read = read_bytes(COLLECTOR, json.dumps(document).encode(), tmp_path)
    assert [some(r, "step", "split", "loss") for r in read.rows] == [
        (0, "train", 10.5), (5, "train", 9.5), (10, "train", 8.5),
    ]  # fmt: skip


def test_golden_values(tmp_path: Path) -> None:
    series = {"start_step": 1, "end_step": 2, "step_interval": 1}
    data = json.dumps(
        {
            "lm loss": {**series, "values": {"1": 2.5, "2": "nan"}},
            "iteration-time": {**series, "values": {"1": 9.0}},
            "num-zeros": {**series, "values": {"1": 5}},
        },
        indent=2,
    ).encode()
    assert COLLECTOR.claim(tmp_path, data) > 0.8
    first, second = read_bytes(COLLECTOR, data, tmp_path).rows
    assert some(first, "step", "loss", "step_time_s") == (1, 2.5, 9.0)
    assert second["step"] == 2 and math.isnan(second["loss"])


def test_bad_lines_cost_themselves(tmp_path: Path) -> None:
    good = b'{"step": 1, "loss": 2.5}\n'
    for first in (b'{"step": 0, "loss"\n', good):  # also where the first line is bad
        data = first + good + b'[1]\n{"step": 3,\n{"step": 4, "loss": 1.0}\n{"step": 5, "lo'
        read = read_bytes(COLLECTOR, data, tmp_path)
        assert [r["step"] for r in read.rows][-2:] == [1, 4]
        assert "cut last line" in read.rejects[-1].reason
    cut = json.dumps(STATE, indent=1).encode()[:200]
    assert "not JSON" in read_bytes(COLLECTOR, cut, tmp_path).rejects[0].reason
    assert read_bytes(COLLECTOR, b"", tmp_path).rejects[0].reason == "the file is empty"


def test_steps_that_go_back_are_marked(tmp_path: Path) -> None:
    data = b"step,loss\n1,2\n2,2\n2,1\n3,1\n"
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [(r["extra"] or {}).get("attempt") for r in read.rows] == [None, None, "1", "1"]
    assert read.note("went back").count == 1


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises_and_good_lines_stay(tmp_path: Path, data: st.DataObject) -> None:
    header, good = data.draw(
        st.sampled_from([(b"", b'{"step": 7, "loss": 2.5}'), (b"step,loss\n", b"7,2.5")])
    )
    odd = bytearray(good)
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(0, len(odd) - 1))] = data.draw(st.integers(0, 255))
    content = header + good + b"\n" + bytes(odd) + b"\n" + good + b"\n"
    COLLECTOR.claim(tmp_path, content)
    read = read_bytes(COLLECTOR, content, tmp_path)
    assert sum(r["step"] == 7 for r in read.rows) >= 2
    read_bytes(COLLECTOR, data.draw(st.binary(max_size=100)), tmp_path)


@pytest.mark.shared_samples
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("agc_trainer_state.json", 4),
        ("jaong_trainer_state.json", 20),
        ("megatron_bert_golden_h100.json", 100),
    ],
)
def test_public_tables(name: str, rows: int) -> None:
    path = samples("loss_curve_json", name)
    assert COLLECTOR.claim(path, path.read_bytes()) > 0.8
    read = read_path(COLLECTOR, path)
    assert len(read.rows) == rows and not read.rejects


def test_mapped_field_that_is_not_there_is_said(tmp_path: Path) -> None:
    mapping = {"loss": "train/ce", "grad_norm": "gnorm", "port_xmit_data": "tx"}
    data = b'{"step": 1, "train/ce": 2.5}\n{"step": 2, "train/ce": 2.25, "loss": 9.0}\n'
    read = read_bytes(COLLECTOR, data, tmp_path, ctx=context(column_map=mapping))
    assert [some(r, "step", "loss") for r in read.rows] == [(1, 2.5), (2, 2.25)]
    (note,) = read.notes
    assert "'gnorm'" in note.text and "grad_norm" in note.text


def test_times_that_are_none_are_said(tmp_path: Path) -> None:
    """Text, and seconds since the start of the run; an empty field says nothing wrong."""
    data = b"step,loss,time\n1,3.5,2026-03-01T10:00:00Z\n2,3.25,yesterday\n3,3.0,\n4,2.5,12.5\n"
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [r["ts"] is None for r in read.rows] == [False, True, True, True]
    (note,) = read.notes
    assert note.text.startswith("times that are no date") and note.count == 2

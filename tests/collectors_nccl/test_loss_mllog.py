from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors.loss_mllog import COLLECTOR


def line(key: str, value: Any, **metadata: Any) -> bytes:
    record = {"time_ms": 1_700_000_000_123, "key": key, "value": value, "metadata": metadata}
    return b"3: :::MLLOG " + json.dumps(record).encode() + b"\n"


NAMES = ("ts", "step", "split", "loss")
AT = 1_700_000_000_123_000_000


def test_losses_of_a_language_benchmark(tmp_path: Path) -> None:
    data = b"noise\n" + line("submission_benchmark", "llama2_70b_lora")
    data += line("global_batch_size", 8) + line("train_loss", 3.25, samples_count=192)
    data += line("eval_accuracy", 0.925, samples_count=1537) + b":::MLLOG {cut\n"
    assert COLLECTOR.claim(tmp_path, data) > 0.9
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert [some(r, *NAMES) for r in read.rows] == [
        (AT, 24, "train", 3.25), (AT, None, "validation", 0.925),
    ]  # fmt: skip
    assert len(read.rejects) == 1


def test_tokens_count_steps_where_a_trainer_counts_them(tmp_path: Path) -> None:
    data = line("submission_benchmark", "gpt3") + line("global_batch_size", 2048)
    data += line("max_sequence_length", 2048) + line("eval_accuracy", 2.75, epoch_num=50331648)
    (row,) = read_bytes(COLLECTOR, data, tmp_path).rows
    assert some(row, *NAMES) == (AT, 12, "validation", 2.75)  # 12 * 2048 * 2048 tokens


def test_losses_of_newer_benchmarks(tmp_path: Path) -> None:
    data = line("submission_benchmark", "gpt-oss-20b") + line("global_batch_size", 16)
    data += line("train_loss", 11.5, samples_count=0, lr=0.25)
    data += line("tracked_stats", {"throughput": 30.5}, step=32)
    stats = {"reduced_train_loss": 4.5, "train_step_time": 0.75}
    data += line("tracked_stats", stats, samples_count=32)
    data += line("eval_accuracy", 3.25, samples_count=32)
    rows = read_bytes(COLLECTOR, data, tmp_path).rows
    assert [some(r, *NAMES) for r in rows] == [
        (AT, 0, "train", 11.5), (AT, 2, "train", 4.5), (AT, 2, "validation", 3.25),
    ]  # fmt: skip
    assert [some(r, "learning_rate", "step_time_s") for r in rows] == [
        (0.25, None), (None, 0.75), (None, None),
    ]  # fmt: skip


def test_an_accuracy_is_no_loss(tmp_path: Path) -> None:
    data = line("submission_benchmark", "resnet") + line("eval_accuracy", 0.75, epoch_num=4)
    read = read_bytes(COLLECTOR, data, tmp_path)
    assert not read.rows and read.note("left out").count == 1 and read.note("this MLPerf log")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    good = line("train_loss", 2.5, samples_count=8)
    odd = bytearray(good)
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(0, len(odd) - 2))] = data.draw(st.integers(0, 255))
    content = good + bytes(odd) + good + data.draw(st.binary(max_size=20))
    COLLECTOR.claim(tmp_path, content)
    rows = read_bytes(COLLECTOR, content, tmp_path).rows
    assert rows[0]["loss"] == 2.5 and len(rows) >= 2


@pytest.mark.shared_samples
@pytest.mark.parametrize(
    ("name", "rows"),
    [("google_gpt3.txt", 24), ("habana_llama2_70b.txt", 15), ("nvidia_h200_llama2_70b.txt", 5)],
)
def test_public_logs(name: str, rows: int) -> None:
    path = samples("loss_curve_mllog", name)
    assert COLLECTOR.claim(path, path.read_bytes()) > 0.9
    read = read_path(COLLECTOR, path)
    assert not read.rejects and len(read.rows) == rows
    steps = [r["step"] for r in read.rows if r["split"] == "validation"]
    assert None not in steps and steps == sorted(steps)

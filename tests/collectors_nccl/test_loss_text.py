"""Loss lines of trainers: Megatron-LM's and the small ones'."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import Read, context, read_bytes, read_path, some
from tests.samples import samples
from xtune.collectors import loss_megatron, loss_text
from xtune.collectors._base import Collector


def read_lines(tmp_path: Path, collector: Collector, *lines: str, **ctx: Any) -> Read:
    data = "".join(line + "\n" for line in lines).encode()
    return read_bytes(collector, data, tmp_path, ctx=context(**ctx))


def megatron(n: int, loss: str | None = "2.5E+00", *, skipped: int = 0, tokens: int = 0) -> str:
    said = "" if loss is None else f"lm loss: {loss} | "
    return (
        f" iteration {n:8}/   10000 | consumed samples: {n * 8:12} | "
        + (f"consumed tokens: {tokens} | " if tokens else "")
        + "elapsed time per iteration (ms): 1250.0 | learning rate: 1.500E-04 | "
        f"global batch size:     8 | {said}loss scale: 4096.0 | grad norm: 0.750 | "
        f"number of skipped iterations: {skipped:3} | number of nan iterations:   0 |"
    )


MEGATRON = loss_megatron.COLLECTOR
TEXT = loss_text.COLLECTOR


def test_megatron_line_by_hand(tmp_path: Path) -> None:
    line = "[2026-07-01 14:00:00.5]" + megatron(20)
    read = read_lines(tmp_path, MEGATRON, line, tz="Europe/Berlin", job="j", run="r")
    assert not read.rejects and not read.notes
    (row,) = read.rows
    noon = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp())
    assert row["ts"] == noon * 10**9 + 500_000_000
    assert some(row, "job", "run", "step", "split") == ("j", "r", 20, "train")
    assert some(row, "loss", "grad_norm", "learning_rate") == (2.5, 0.75, 1.5e-4)
    assert some(row, "step_time_s", "skipped", "tokens") == (1.25, 0, None)
    read = read_lines(tmp_path, MEGATRON, line)
    assert read.rows[0]["ts"] is None and read.note("--tz").count == 1


def test_loss_of_an_interval_of_skipped_steps_is_null(tmp_path: Path) -> None:
    read = read_lines(tmp_path, MEGATRON, megatron(10), megatron(20, None, skipped=10))
    assert [some(r, "loss", "skipped") for r in read.rows] == [(2.5, 0), (None, 10)]
    assert read.rows[1]["extra"]["steps_since_last_line"] == "10"


def test_nan_and_infinity_stay(tmp_path: Path) -> None:
    read = read_lines(tmp_path, MEGATRON, megatron(1, "nan"), megatron(2, "inf"))
    assert math.isnan(read.rows[0]["loss"]) and read.rows[1]["loss"] == math.inf


def test_tokens_are_those_of_one_step(tmp_path: Path) -> None:
    lines = [megatron(n, tokens=1000 * n) for n in (10, 20, 25)]
    assert [r["tokens"] for r in read_lines(tmp_path, MEGATRON, *lines).rows] == [None, 1000, 1000]


def test_restart_keeps_both_passes_and_marks_the_later(tmp_path: Path) -> None:
    valid = "validation loss at iteration {} | lm loss value: 3.0E+00 | lm loss PPL: 2.0E+01 |"
    lines = [megatron(10), megatron(20), valid.format(20), megatron(30), megatron(20)]
    lines += [valid.format(20), megatron(30), megatron(40), megatron(40)]
    read = read_lines(tmp_path, MEGATRON, *lines)
    seen = [(r["step"], r["split"], (r["extra"] or {}).get("attempt")) for r in read.rows]
    assert seen == [
        (10, "train", None),
        (20, "train", None),
        (20, "validation", None),
        (30, "train", None),
        (20, "train", "1"),
        (20, "validation", "1"),
        (30, "train", "1"),
        (40, "train", "1"),
        (40, "train", "2"),
    ]
    assert read.note("went back").count == 2


@pytest.mark.parametrize("width", [37, 60, 100])
def test_lines_wrapped_anywhere(tmp_path: Path, width: int) -> None:
    line = megatron(30)
    wrapped = [line[i : i + width] for i in range(0, len(line), width)]
    read = read_lines(tmp_path, MEGATRON, "before", *wrapped, "time (ms)", megatron(40))
    assert not read.rejects
    assert [some(r, "step", "loss", "grad_norm", "skipped") for r in read.rows] == [
        (30, 2.5, 0.75, 0), (40, 2.5, 0.75, 0),
    ]  # fmt: skip


def test_older_variants(tmp_path: Path) -> None:
    seconds = (
        "[default7]: iteration    7/  99 | consumed samples: 1 | elapsed time per iteration (s): "
        "104.70 | learning rate: 1.0E-05 | lm loss: 1.9E+00 | grad norm: 0.1 | number of skipped "
        "iterations: 0 | number of nan iterations: 0 | samples per second: 19.561 | TFLOPs: 149.77"
    )
    bare = (
        " iteration 100/ 1000 | elapsed time per iteration (ms): 500.0 | learning rate 1.500E-04 |"
        " lm loss 7.1E+00 | loss scale 8192.0 |"
    )
    read = read_lines(tmp_path, MEGATRON, seconds, bare)
    assert [some(r, "step", "loss", "step_time_s", "learning_rate") for r in read.rows] == [
        (7, 1.9, 104.7, 1e-5), (100, 7.1, 0.5, 1.5e-4),
    ]  # fmt: skip


@given(at=st.integers(1, 350))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_line_cut_by_another_gives_no_wrong_row(tmp_path: Path, at: int) -> None:
    cut = megatron(50, "9.0E+00")[:at] + megatron(60, "3.0E+00")
    read = read_lines(tmp_path, MEGATRON, megatron(40), cut, megatron(70))
    said = {some(r, "step", "loss", "grad_norm", "skipped") for r in read.rows}
    truth = {(40, 2.5, 0.75, 0), (60, 3.0, 0.75, 0), (70, 2.5, 0.75, 0)}
    assert truth <= said <= truth | {(50, 9.0, 0.75, 0)}


def test_cut_file(tmp_path: Path) -> None:
    data = (megatron(10) + "\n" + megatron(20)[:150]).encode()
    read = read_bytes(MEGATRON, data, tmp_path)
    assert [r["step"] for r in read.rows] == [10] and len(read.rejects) == 1
    assert read_lines(tmp_path, MEGATRON, "nothing here").note("no Megatron")


FORMS: list[tuple[str, tuple[Any, ...]]] = [
    ("s:12 trl:3.5 lr:0.25 norm:1.5", (12, "train", 3.5, 1.5, 0.25, None)),
    ("s:12 tel:3.5", (12, "validation", 3.5, None, None, None)),
    (
        "step:12/100 train_loss:3.5 train_time:700ms step_avg:50ms",
        (12, "train", 3.5, None, None, None),
    ),
    ("step:12/100 val_loss:3.5 train_time:7ms", (12, "validation", 3.5, None, None, None)),
    ("iter 12: loss 3.5000, time 250.00ms, mfu 3.20%", (12, "train", 3.5, None, None, 0.25)),
    (
        "step   12/18865 | loss 3.500000 (+0.12z)| norm 1.5000 (-0.3z)| lr 2.50e-01 |"
        " 250.00 ms | 45.0% bf16 MFU | 123 tok/s",
        (12, "train", 3.5, 1.5, 0.25, 0.25),
    ),
    (
        "\x1b[31mstep: 12  \x1b[32mloss:  3.50000  \x1b[33mgrad_norm:  1.5000  memory: 9GiB(1%)",
        (12, "train", 3.5, 1.5, None, None),
    ),
    (
        "[rank0]:[titan] 2026-01-31 12:00:00,123 - root - INFO - step: 12  loss: 3.5",
        (12, "train", 3.5, None, None, None),
    ),
    (
        "[rank0]:2026-01-31 12:00:00Z - root - INFO - validate step: 12  loss:  3.5",
        (12, "validation", 3.5, None, None, None),
    ),
    (
        "2: 2026-01-16 06:33:23,797 [INFO] __main__: Batch 12 Loss: 3.5, Speed: 1 s/s, lr: 0.25",
        (12, "train", 3.5, None, 0.25, None),
    ),
    ("12 3.5", (12, "train", 3.5, None, None, None)),
]


@pytest.mark.parametrize(("line", "expected"), FORMS)
def test_each_form(tmp_path: Path, line: str, expected: tuple[Any, ...]) -> None:
    read = read_lines(tmp_path, TEXT, line)
    names = ("step", "split", "loss", "grad_norm", "learning_rate", "step_time_s")
    assert [some(r, *names) for r in read.rows] == [expected]
    assert TEXT.claim(tmp_path, f"{line}\n{line}\n".encode()) > 0.3


def test_stamp_of_a_plain_line(tmp_path: Path) -> None:
    line = "2: 2026-07-01 14:00:00,250 [INFO] __main__: Batch 1 Loss: 3.5, lr: 0.25"
    (row,) = read_lines(tmp_path, TEXT, line, tz="Europe/Berlin").rows
    noon = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp())
    assert row["ts"] == noon * 10**9 + 250_000_000


def test_two_losses_in_one_line(tmp_path: Path) -> None:
    read = read_lines(tmp_path, TEXT, "step 500: train loss 3.25, val loss nan")
    first, second = read.rows
    assert some(first, "step", "split", "loss") == (500, "train", 3.25)
    assert second["split"] == "validation" and math.isnan(second["loss"])


def test_embedded_source_and_tables_are_no_data(tmp_path: Path) -> None:
    noise = [
        'print(f"step:{step}/{args.num_iterations} val_loss:{val_loss:.4f}")',
        "| N/A   37C    P0   120W / 700W |  1529MiB / 81559MiB |  0%  Default |",
        "    s:int = 12",
        "loss 3.5 at step 12",
        "step 12: saved",
        "1 2 3.5",
        "12 3.5 tokens",
    ]
    read = read_lines(tmp_path, TEXT, *noise, "s:1 trl:3.5")
    assert [some(r, "step", "loss") for r in read.rows] == [(1, 3.5)]
    assert read_lines(tmp_path, TEXT, *noise).note("no loss line")
    assert TEXT.claim(tmp_path, "\n".join(noise).encode()) == 0.0


def test_last_line_without_an_end_is_not_believed(tmp_path: Path) -> None:
    # The learning rate of the whole line was 0.000578.
    read = read_bytes(TEXT, b"s:1 trl:3.6 lr:0.000578\ns:2 trl:3.7 lr:0.0005", tmp_path)
    assert [r["step"] for r in read.rows] == [1] and "cut" in read.rejects[0].reason


def test_training_events(tmp_path: Path) -> None:
    line = (
        "[2026-07-01T12:00:00.25Z] [426] [17b6] [Trainer] [#log] [INSTANT] "
        '{"global_step": 7, "logs": {"elapsed time per iteration (ms)": 1500.0, '
        '"learning rate": 0.25, "grad norm": 0.5, "loss": NaN, '
        '"number of skipped iterations": 2}}'
    )
    (row,) = read_lines(tmp_path, TEXT, line).rows
    assert some(row, "step", "step_time_s", "grad_norm", "skipped") == (7, 1.5, 0.5, 2)
    assert math.isnan(row["loss"])
    noon = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp())
    assert row["ts"] == noon * 10**9 + 250_000_000


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_raises_and_good_lines_stay(tmp_path: Path, data: st.DataObject) -> None:
    for collector, good in (
        (MEGATRON, megatron(77)),
        (TEXT, "s:77 trl:3.5"),
        (TEXT, data.draw(st.sampled_from(FORMS))[0]),
    ):
        odd = bytearray(good.encode())
        for _ in range(data.draw(st.integers(1, 5))):
            odd[data.draw(st.integers(0, len(odd) - 1))] = data.draw(st.integers(0, 255))
        line = good.encode() + b"\n"
        content = line + bytes(odd) + b"\n" + line + data.draw(st.binary(max_size=40))
        collector.claim(tmp_path, content)
        read = read_bytes(collector, content, tmp_path)
        step = 77 if "77" in good else 12
        assert [r["step"] for r in read.rows].count(step) >= 2


@pytest.mark.shared_samples
@pytest.mark.parametrize(
    ("collector", "name", "rows", "cut"),
    [
        (TEXT, "aioneks_fsdp_srun_label.log", 12, 0),
        (TEXT, "nanogpt_adamw.log", 9612, 0),
        (TEXT, "nanogpt_llmc_main.log", 3034, 1),
        (TEXT, "nanogpt_medium_main.log", 241, 0),
        (TEXT, "torchtitan_llama3_cuda.txt", 100, 0),
        (TEXT, "dlrover_events_0.log", 1, 0),
        (MEGATRON, "bigscience_megatron_log_blocks.txt", 101, 0),
    ],
)
def test_public_logs(collector: Collector, name: str, rows: int, cut: int) -> None:
    path = samples("loss_curve_text", name)
    assert collector.claim(path, path.read_bytes()[:65536]) >= 0.4
    read = read_path(collector, path)
    assert len(read.rows) == rows and len(read.rejects) == cut
    assert all(r["loss"] is None or 0 < r["loss"] < 100 for r in read.rows)

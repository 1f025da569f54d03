"""Loss lines of trainers: Megatron-LM's and the small ones'."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import hugging_face, read_bytes, read_lines, read_path, some
from tests.samples import samples
from xtune.collectors import loss_megatron, loss_text
from xtune.collectors._base import Collector


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


def test_megatron_lines_of_its_kin(tmp_path: Path) -> None:
    neox = (
        " samples/sec: 8.0 | iteration        6/     90 | elapsed time per iteration (ms): 500.0 |"
        " learning rate: 2.0E-06 | lm_loss: 5.5E+00 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |"
    )
    evaluated = " validation results at iteration 6 | lm_loss value: 5.25E+00 |"
    tested = " validation loss at iteration 6 on test set | lm loss value: 7.0E+00 |"
    read = read_lines(tmp_path, MEGATRON, neox, evaluated, tested)
    assert [some(r, "step", "split", "loss") for r in read.rows] == [
        (6, "train", 5.5),
        (6, "validation", 5.25),
    ]
    assert read.rows[0]["step_time_s"] == 0.5 and not read.rejects
    primus = megatron(7).replace("1250.0", "1500.0/1250.5")
    read = read_lines(tmp_path, MEGATRON, f"[rank-7/8][INFO ] [trainer.py:2560] :{primus}")
    assert read.rows[0]["step_time_s"] == 1.5


def test_megatron_line_that_a_memory_report_follows(tmp_path: Path) -> None:
    old = " iteration 9/ 90 | elapsed time per iteration (ms): 331.5 | lm loss 7.5E+00 |"
    for after in (
        "after 9 iterations memory usage (MB) | allocated: 12.5 | cached: 20.0 |",
        "[Rank 1] (after 9 iterations) memory (MB) | allocated: 12.5 | reserved: 20.0",
    ):
        read = read_lines(tmp_path, MEGATRON, old, after)
        assert not read.rejects
        assert [some(r, "step", "loss") for r in read.rows] == [(9, 7.5)]


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


DEEPSPEED = "[2026-07-01 14:00:00,250] [INFO] [logging.py:96:log_dist] [Rank 0] "
FORMS += [
    (
        "steps: 12 loss: 3.5000 iter time (s): 0.250 samples/sec: 256.000",
        (12, "train", 3.5, None, None, 0.25),
    ),
    (
        DEEPSPEED + "step=12, skipped=0, lr=[0.25, 0.25], mom=[[0.9, 0.95], [0.9, 0.95]]",
        (12, "train", None, None, 0.25, None),
    ),
    (
        "Epoch 0: :   3%|▎         | 12/400 [09:07<78:01, v_num=, reduced_train_loss=3.500, "
        "global_step=12.0, consumed_samples=1.63e+6, train_step_timing in s=0.250]",
        (12, "train", 3.5, None, None, 0.25),
    ),
    (
        "Training epoch 0, iteration 12/99 | lr: 0.25 | consumed_samples: 416 | global_batch_size:"
        " 32 | global_step: 12 | reduced_train_loss: 3.5 | train_step_timing in s: 0.25",
        (12, "train", 3.5, None, 0.25, 0.25),
    ),
    (
        "[rank0]:\x1b[31mstep: 12  \x1b[32mloss:  3.5000  \x1b[38;2;180;60;0mgrad_norm:  1.5000  "
        "\x1b[38;2;54;234;195mmemory: 17.89GiB(22.60%)  \x1b[34mtps: 1,034  "
        "\x1b[36mtflops: 72.50  \x1b[35mmfu: 10.91%  elapsed_time_per_step: 0.250s\x1b[39m",
        (12, "train", 3.5, 1.5, None, 0.25),
    ),
    (
        "step   12/100 | train loss 3.500000 | norm 1.5000 | lr 2.50e-01 | (250.00 ms | 99 tok/s)",
        (12, "train", 3.5, 1.5, 0.25, 0.25),
    ),
    (
        "step    12 | loss: 3.500000 | lr 2.5000e-01 | norm: 1.5000 | dt: 338.99ms | tok/sec: 15",
        (12, "train", 3.5, 1.5, 0.25, 0.33899),
    ),
    ("Step 12/100, aux loss: 9.0, loss=3.5, lr=0.25", (12, "train", 3.5, None, 0.25, None)),
    ("iteration 12: train loss 3.5", (12, "train", 3.5, None, None, None)),
    ("global_step=12 val_loss=3.5", (12, "validation", 3.5, None, None, None)),
    (
        "{'loss': 3.5, 'grad_norm': 1.5, 'learning_rate': 0.25, 'epoch': 0.1, 'step': 12}",
        (12, "train", 3.5, 1.5, 0.25, None),
    ),
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
        "step 12 moe loss: 3.5",
        "step 12: aux_loss 3.5, loss_scale: 4.0",
        "Epoch 1:  39%|███ | 12/99 [05:59<09:15, 13.47it/s, loss=0.0136, v_num=1]",
        "config = {'loss': 'cross_entropy', 'epoch': 3}",
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
        last = "977 3.5" if good == "12 3.5" else "s:977 trl:3.5"
        last = megatron(977) if collector is MEGATRON else last
        content = f"{good}\n".encode() + bytes(odd) + f"\n{last}\n".encode()
        content += data.draw(st.binary(max_size=40))
        collector.claim(tmp_path, content)
        read = read_bytes(collector, content, tmp_path)
        step = 77 if "77" in good else 12
        assert {step, 977} <= {r["step"] for r in read.rows}


def test_lines_of_one_step_are_one_row(tmp_path: Path) -> None:
    """DeepSpeed says a step's loss in one line and its learning rate in another."""
    lines = []
    for step, skipped in ((10, 0), (20, 3), (30, 4)):
        lines += [
            DEEPSPEED + f"step={step}, skipped={skipped}, lr=[0.25], mom=[(0.9, 0.95)]",
            f"steps: {step} loss: {step / 4:.4f} iter time (s): 0.500 samples/sec: 64.000",
            DEEPSPEED + "time (ms) | fwd_microstep: 38.13 | bwd_microstep: 72.53",
            "epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=64.1, "
            "CurrSamplesPerSec=63.9, MemAllocated=9.3GB, MaxMemAllocated=20.1GB",
        ]
    read = read_lines(tmp_path, TEXT, *lines, tz="UTC")
    names = ("step", "loss", "learning_rate", "step_time_s", "skipped")
    assert [some(r, *names) for r in read.rows] == [
        (10, 2.5, 0.25, 0.5, 0), (20, 5.0, 0.25, 0.5, 3), (30, 7.5, 0.25, 0.5, 1),
    ]  # fmt: skip
    assert not read.notes and read.rows[0]["ts"] is not None


def test_one_rank_counts_where_all_print(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]:step: {step}  loss: {8 - step}.5"
        for steps in ((1,), (2, 3))  # ranks are not in step: 0 is at 2 while 1 is at 3
        for rank in (0, 1, 2)
        for step in steps
    ]
    read = read_lines(tmp_path, TEXT, *lines)
    assert [some(r, "step", "loss") for r in read.rows] == [(1, 7.5), (2, 6.5), (3, 5.5)]
    assert [note.text for note in read.notes] == [read.note("other ranks").text]
    assert read.note("other ranks").count == 6
    # Without a rank before them they are the same line again.
    plain = [line.partition(":")[2] for line in lines]
    assert len(read_lines(tmp_path, TEXT, *plain[:3]).rows) == 1


@given(at=st.integers(1, 40))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ranks_that_share_a_pipe_give_no_wrong_row(tmp_path: Path, at: int) -> None:
    first, second = (f"step: 1{n}  loss: {n}.12345  grad_norm: {n}.5" for n in (4, 5))
    read = read_lines(tmp_path, TEXT, first[:at] + second, first[at:] or "rest")
    truth = {(14, 4.12345, 4.5), (14, 4.12345, None), (15, 5.12345, 5.5)}
    assert {some(r, "step", "loss", "grad_norm") for r in read.rows} <= truth


def test_two_lines_in_one(tmp_path: Path) -> None:
    line = "step: 14  loss: 4.5  grad_norm: step: 15  loss: 5.5  grad_norm: 0.5"
    read = read_lines(tmp_path, TEXT, line)
    assert [some(r, "step", "loss", "grad_norm") for r in read.rows] == [
        (14, 4.5, None), (15, 5.5, 0.5),
    ]  # fmt: skip


def test_line_with_the_loss_says_the_rest_too(tmp_path: Path) -> None:
    """DeepSpeed rounds, and prints its learning rate before the trainer does."""
    lines = [DEEPSPEED + "step=10, skipped=0, lr=[4.9e-05], mom=[(0.9, 0.95)]", *hugging_face(10)]
    (row,) = read_lines(tmp_path, TEXT, *lines, tz="UTC").rows
    assert some(row, "step", "loss", "learning_rate", "skipped") == (10, 2.5, 5e-5, 0)


def test_restart_with_ranks(tmp_path: Path) -> None:
    lines = [f"{rank}: step 1{n}: train loss {n}.5, val loss {n}.25"
             for n in (1, 2, 1, 2) for rank in (0, 1)]  # fmt: skip
    read = read_lines(tmp_path, TEXT, *lines)
    assert [(r["step"], r["split"], (r["extra"] or {}).get("attempt")) for r in read.rows] == [
        (step, split, attempt)
        for attempt in (None, "1")
        for step in (11, 12)
        for split in ("train", "validation")
    ]


def test_plain_text_is_nobodys(tmp_path: Path) -> None:
    words = b"Training is a joy.\nThe loss was small, the step was long.\n" * 20
    assert TEXT.claim(tmp_path, words) == 0.0 and MEGATRON.claim(tmp_path, words) == 0.0


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


@pytest.mark.parametrize(
    "line",
    [
        "loss\r" * 50_000,
        "step 1 " * 500 + "loss",
        "step 1 loss 2 " * 280,
        "a: " * 1300 + "loss 1",
        "{'loss': 1" * 350,
        "| 1/2 [global_step= loss" * 150,
        "step=1, skipped=1, lr=[" * 150 + "loss",
        "step 1 " + " " * 3900 + "loss",
        "step 1 loss 2 " * 100_000,
    ],
)
def test_odd_lines_end_soon(tmp_path: Path, line: str) -> None:
    started = time.process_time()
    read_lines(tmp_path, TEXT, line)
    assert time.process_time() - started < 3


def test_step_time_of_a_plain_step_line(tmp_path: Path) -> None:
    rows = read_lines(
        tmp_path,
        TEXT,
        "step     7 | loss: 3.125000 | lr 6.0e-04 | norm: 0.25 | dt: 250.00ms | tok/sec: 9.0",
        "step 8 | loss: 3.0 | step time: 0.5s | time: 90s",
    ).rows
    assert [some(r, "step", "loss", "step_time_s") for r in rows] == [
        (7, 3.125, 0.25),
        (8, 3.0, 0.5),
    ]


def test_lines_of_maxtext_and_colours_without_their_escape(tmp_path: Path) -> None:
    said = "completed step: 9, seconds: 1.25, TFLOP/s/device: 257.9, total_weights: 96, loss: 10.5"
    (row,) = read_lines(tmp_path, TEXT, said).rows
    assert some(row, "step", "loss", "step_time_s") == (9, 10.5, 1.25)
    pasted = "[rank0]:[titan] INFO - [31mstep: 10  [32mloss:  7.25  [38;2;180;60;0mgrad_norm:  3.5"
    (row,) = read_lines(tmp_path, TEXT, pasted + "  [33mmemory:  2.47GiB[39m").rows
    assert some(row, "step", "loss", "grad_norm") == (10, 7.25, 3.5)

"""Loss lines between progress bars, which a terminal overwrites and a file keeps."""

from __future__ import annotations

import math
from pathlib import Path

from tests.collectors_nccl.helpers import hugging_face, read_lines, some
from xtune.collectors import loss_text

TEXT = loss_text.COLLECTOR


def test_hugging_face_steps_are_those_of_the_bar(tmp_path: Path) -> None:
    lines = ["  0%|          | 0/100 [00:00<?, ?it/s]", *hugging_face(10), *hugging_face(20)]
    lines += ["\r 25%|██        | 25/100 [00:25<01:15]\r" + " " * 60 + "\r" + hugging_face(30)[0]]
    lines += ["  0%|          | 0/7 [00:00<?, ?it/s]\r 50%|███   | 4/7 [00:00<00:00]"]
    lines += ["{'eval_loss': 3.5, 'eval_runtime': 1.0, 'epoch': 0.6}", hugging_face(30)[1]]
    lines += ["{'train_runtime': 9.5, 'train_loss': 1.5, 'epoch': 2.0}"]
    read = read_lines(tmp_path, TEXT, *lines)
    assert [some(r, "step", "split", "loss", "learning_rate") for r in read.rows] == [
        (10, "train", 2.5, 5e-5),
        (20, "train", 5.0, 5e-5),
        (30, "train", 7.5, 5e-5),
        (30, "validation", 3.5, None),
    ]
    assert math.isnan(read.rows[0]["grad_norm"]) and read.rows[0]["extra"] == {"epoch": "0.2"}
    assert read.note("closing row").count == 1


def test_hugging_face_without_a_bar_has_no_steps(tmp_path: Path) -> None:
    lines = [hugging_face(n)[0].replace("2.5", "'2.5'") for n in (10, 20)]
    read = read_lines(tmp_path, TEXT, *lines)
    assert [some(r, "step", "loss") for r in read.rows] == [(None, 2.5), (None, 5.0)]
    assert read.note("say no step").count == 2


def test_bars_of_one_line_are_many_lines(tmp_path: Path) -> None:
    """NeMo's bar ends its lines with a carriage return, and repeats its validation loss."""
    bar = "Epoch 0: {0}%|▏ | {0}/99 [00:01<00:09, reduced_train_loss={0}.5, global_step={0}.0"
    seen = [bar.format(n) + (", val_loss=4.25]" if n > 2 else "]") for n in (1, 2, 2, 3, 4)]
    read = read_lines(tmp_path, TEXT, "\r".join(seen))
    assert [some(r, "step", "split", "loss") for r in read.rows] == [
        (1, "train", 1.5), (2, "train", 2.5), (3, "train", 3.5), (3, "validation", 4.25),
        (4, "train", 4.5),
    ]  # fmt: skip
    assert not read.notes and TEXT.claim(tmp_path, ("\r".join(seen)).encode()) > 0.5


def test_nemo_bar_with_padded_and_rounded_values(tmp_path: Path) -> None:
    bar = (
        "Epoch 0:   3%|3   | {}/900 [0:10<9:00, v_num=0-1, reduced_train_loss={}, global_step={}]"
    )
    read = read_lines(
        tmp_path, TEXT, bar.format(7, "nan.0", "7.000"), bar.format(9, "2.50", "9e+3")
    )
    assert [row["step"] for row in read.rows] == [7, None]
    assert math.isnan(read.rows[0]["loss"]) and read.rows[1]["loss"] == 2.5
    line = bar.format(8, "2.250", "8.000, gradient_norm=0.50, iteration_time=16.0")
    (row,) = read_lines(tmp_path, TEXT, line).rows
    assert some(row, "step", "loss", "grad_norm", "step_time_s") == (8, 2.25, 0.5, 16.0)


def test_bar_that_a_terminal_left_behind_gives_no_step(tmp_path: Path) -> None:
    said = "{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.06}"
    left = "  8%|8   | 1999/24128 [1:52:09<20:27:23,  3.33s/it][2026-01-02 03:04:05,006] [INFO] x"
    (row,) = read_lines(tmp_path, TEXT, said, left).rows
    assert some(row, "step", "loss") == (None, 2.5)
    drawn = "\r  6%|6   | 1500/24128 [1:20:00<20:27:23,  3.33s/it]\r" + left
    (row,) = read_lines(tmp_path, TEXT, said, drawn).rows
    assert some(row, "step", "loss") == (1500, 2.5)

"""Commands run side by side: stamps, exit status, limits."""

from __future__ import annotations

import time

from xtune.cli._fabric_run import run_side_by_side


def test_lines_are_stamped_when_they_are_written() -> None:
    (output,) = run_side_by_side([["sh", "-c", "echo a; sleep 0.4; echo b; echo c >&2; exit 3"]])
    assert [line for _, line in output.lines] == ["a", "b"]
    assert output.lines[1][0] - output.lines[0][0] >= 300_000_000
    assert list(output.errors) == ["c"] and output.status == 3


def test_commands_run_at_the_same_time() -> None:
    began = time.monotonic()
    outputs = run_side_by_side([["sh", "-c", "sleep 0.7; echo x"]] * 3)
    assert time.monotonic() - began < 1.9
    assert [[line for _, line in o.lines] for o in outputs] == [["x"]] * 3


def test_a_command_that_is_not_there_is_missing_and_the_others_run() -> None:
    missing, there = run_side_by_side([["xtune-no-such-tool"], ["echo", "x"]])
    assert missing.missing and not there.missing and there.lines[0][1] == "x"


def test_one_that_takes_too_long_is_ended_and_what_it_said_is_kept() -> None:
    began = time.monotonic()
    (output,) = run_side_by_side([["sh", "-c", "echo a; exec sleep 30"]], timeout_s=0.8)
    assert time.monotonic() - began < 10
    assert output.status is None and [line for _, line in output.lines] == ["a"]


def test_an_interrupt_ends_them() -> None:
    began = time.monotonic()
    outputs = run_side_by_side(
        [["sleep", "30"]] * 2, stopped=lambda: time.monotonic() - began > 0.3
    )
    assert time.monotonic() - began < 10 and [o.status for o in outputs] == [None, None]


def test_a_last_line_without_its_end_is_no_line() -> None:
    (output,) = run_side_by_side([["printf", r"whole\npar"]])
    assert [line for _, line in output.lines] == ["whole"]

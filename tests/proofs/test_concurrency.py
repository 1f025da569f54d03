from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from xtune.pipelines._knee import find_knee
from xtune.proofs import concurrency
from xtune.proofs.concurrency import Scene, job_flows, main, study, watch
from xtune.sim.fabric import LeafSpine

SMALL = Scene(hosts=16, ranks=4, burst_bytes=250_000, pause_ns=60_000, window_ns=400_000)
ROOMY = 1 << 30


def test_two_ranks_alone_wait_for_nothing() -> None:
    scene = Scene(hosts=16, ranks=2, burst_bytes=250_000, pause_ns=60_000, window_ns=400_000)
    figures = watch(scene, 1, ROOMY, 0)
    assert figures["waited"] == pytest.approx(0.0, abs=0.02)  # steps, and what is under way
    assert figures["dropped"] == figures["retransmitted"] == 0.0
    # Each of two lines is in use for 5 of 67.6 us, from a start within the first pause.
    assert 4 * 250_000 * 2 <= figures["load"] * 16 * 50 * 400_000 <= 6 * 250_000 * 2


def test_a_burst_waits_for_all_ranks_of_the_one_before() -> None:
    flows = job_flows(SMALL, 2, LeafSpine.square(16), seed=1)
    bursts = len(flows) // 2 // 4
    assert bursts == int(400_000 // (60_000 + 250_000 / 50 + 2000 + 3 * 4096 / 50)) + 1
    seen = {(int(a), int(b)) for a, b in flows.after}
    for job in range(2):
        for burst in range(1, bursts):
            first = (job * bursts + burst) * 4
            assert {
                (a, b) for a in range(first - 4, first) for b in range(first, first + 4)
            } <= seen
    assert len(seen) == 2 * (bursts - 1) * 16
    # Each rank sends to the next of its ring.
    src, dst = flows.src[:4], flows.dst[:4]
    assert dst.tolist() == np.roll(src, -1).tolist()
    assert len(set(src.tolist())) == 4


def test_more_jobs_on_less_memory_lose_more() -> None:
    lost = {
        (jobs, buffer): watch(SMALL, jobs, buffer, 0)["retransmitted"]
        for jobs in (4, 48)
        for buffer in (300_000, ROOMY)
    }
    assert lost[48, 300_000] > lost[4, 300_000]
    assert lost[48, ROOMY] == 0.0


def test_the_knee_is_that_of_the_derived_table() -> None:
    jobs, seeds = (2, 4, 8, 16, 24, 32, 48), 3
    case = study(SMALL, jobs, [0.6], seeds)["buffers"]["0.6 MB"]
    values = np.array(
        [watch(SMALL, n, 600_000, seed)["dropped"] for n in jobs for seed in range(seeds)]
    )
    number = np.repeat(np.array(jobs, dtype=float), seeds)
    found = find_knee(number, values, np.ones(len(values)), np.arange(len(values)))
    assert case["knees"]["dropped"]["verdict"] == found.verdict
    assert case["knees"]["dropped"]["knee"] == found.knee
    assert found.blocks == len(jobs) * seeds
    mean = case["by_jobs"]["48"]["dropped"]
    assert mean["mean"] == pytest.approx(values[-3:].mean())
    assert mean["low"] <= mean["mean"] <= mean["high"]


def test_the_command_shows_the_claim_as_a_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "Scene", lambda: SMALL)
    out = tmp_path / "figures.json"
    assert main(["--seeds", "1", "--jobs", "2", "8", "--buffers", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "dropped share: too few" in text
    assert text.endswith("own claim: past 64 concurrent jobs switch buffers overflow\n")
    assert json.loads(out.read_text())["buffers"]["1 MB"]["by_jobs"].keys() == {"2", "8"}


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--jobs", "0"], ["--buffers", "0"]])
def test_numbers_that_are_none_are_one_line(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(wrong) == 1
    assert capsys.readouterr().err.count("\n") == 1

"""Pipelines beside data parallel traffic: the bound by hand, and that steps keep to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xtune.proofs import mixed
from xtune.proofs.mixed import Job, bound_ns, joined, main, run, step_flows
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import build_flows, join_flows
from xtune.sim.patterns import pipeline

A, G = 1_000_000, 8_000_000
F, B = 50_000, 100_000
TINY = Job(
    stages=2, replicas=2, micro_batches=1, activation_bytes=A, gradient_bytes=G, forward_ns=F,
    backward_ns=B, others=0, other_bytes=1,
)  # fmt: skip


def test_the_bound_of_two_pipelines_of_two_stages_by_hand() -> None:
    fabric = LeafSpine(4, 1, 1)
    pipes = join_flows(
        *(pipeline(fabric, [h, h + 1], 1, A, forward_ns=F, backward_ns=B) for h in (0, 2))
    ).with_paths([0] * 4)
    rings = build_flows([0, 1, 2, 3], [2, 3, 0, 1], G, lane=1).with_paths([0] * 4)
    none = build_flows([], [], 1)
    way = fabric.latency_ns(4) + 4 * 1000
    hop = A / 50 + way
    # Each host's ports carry a micro-batch, beside a stage's gradients of 8 MB.
    reduce = (G + 2 * A) / 50 + way + 3 * 100 * 4096 / 50
    expected = F + hop + (F + B) + hop + B + reduce
    assert bound_ns(fabric, TINY, pipes, rings, none) == pytest.approx(expected, rel=1e-9)
    # Another job's flow to the receiver of a ring is waited for, by nothing of the pipelines.
    other = build_flows([1], [2], 500_000).with_paths([0])
    later = bound_ns(fabric, TINY, pipes, rings, other)
    assert later == pytest.approx(expected + 500_000 / 50, rel=1e-9)


def test_gradients_wait_for_the_last_backward_pass_of_their_stage() -> None:
    job = replace(TINY, stages=3, micro_batches=2)
    pipes, rings, _ = step_flows(LeafSpine.square(16), replace(job, others=1), 5)
    flows = joined(job, pipes, rings)
    count = len(pipes)
    assert rings.size.tolist() == [2 * G // 2] * 6
    for number, host in enumerate(rings.src.tolist()):
        ((before, _),) = flows.after[flows.after[:, 1] == count + number].tolist()
        stage = number % 3
        # The last flow of the stage; for the first, the last that comes to it, and its own pass.
        ends = flows.dst if stage == 0 else flows.src
        assert before == np.flatnonzero(ends[:count] == host)[-1]
        assert flows.release_ns[count + number] == (B if stage == 0 else 0)


def test_steps_keep_to_the_bound_and_take_their_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(micro_batches=4, gradient_bytes=4 << 20, other_bytes=4 << 20)
    report = run(job, 3)
    for row in report["ways"].values():
        assert (4 + 8 - 1) * 0.3e3 <= row["p50_us"] <= row["p99_us"]
    upper = report["ways"]["pipeline in the upper lane"]
    assert upper["beyond_bound"] == 0 and upper["p99_of_bound"] <= 1.0
    assert run(job, 3) == report
    out = tmp_path / "mixed.json"
    assert main(["--seeds", "1", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["seeds"] == 1
    assert "held" in capsys.readouterr().out


def test_a_bound_that_is_not_kept_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mixed, "bound_ns", lambda *_: 1e6)  # a millisecond is too little
    assert main(["--seeds", "1"]) == 1
    assert "did not hold (1 steps beyond it)" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])

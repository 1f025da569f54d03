"""What a trace of a run holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.sim_loop.made import made
from xtune.policies.presets import preset
from xtune.sim.loop import Step, simulate


def test_a_trace_holds_each_iteration_without_the_time_of_control() -> None:
    trace: list[Step] = []
    costs = made(regulation_s=0.25, change_s=0.0, episode_rate_per_h=40.0, episode_length_s=30.0)
    policy = preset("compression_only")
    run = simulate(policy, costs, iterations=500, trace=trace)
    assert len(trace) == run.steps
    between = [b.start_s - a.start_s - a.seconds for a, b in pairwise(trace)]
    stopped = [g for g in between if g > 1e-6]
    assert stopped == pytest.approx([0.25] * len(stopped))
    assert run.metrics["regulations"] - 1 <= len(stopped) <= run.metrics["regulations"]
    assert len({step.plan.rung for step in trace}) == len(run.rungs)

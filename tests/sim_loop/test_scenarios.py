"""Scenarios: what the documents say of them, and one run whole on a small fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim_loop.made import BUCKET_S, made
from xtune.errors import InputError, UsageError
from xtune.policies.presets import preset
from xtune.sim.network import Network, scope_notes
from xtune.sim.scenarios import SCENARIOS, Claim, Scenario, scenario
from xtune.sim.scenarios.experiment import BASELINE, HALVES, OTHERS, run_scenario

CLAIM = Claim(metric="throughput", change=0.6, text="+60 %")
SMALL = Scenario(
    name="small", title="eight hosts", calibration=made(compute_s=0.02), flops_per_card=1e12,
    claims=(CLAIM, Claim(metric="time", change=-0.35, text="-35 %")),
)  # fmt: skip


@pytest.mark.parametrize(("name", "needed"), [("founding-dense", 0.374), ("founding-moe", 0.432)])
def test_the_share_that_a_claim_needs(name: str, needed: float) -> None:
    """What the documents' readers reckon: 1 - 12.4 / 19.8, and 1 - 1 / 1.76."""
    assert scenario(name).needed_share == pytest.approx(needed, abs=5e-4)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_all_1024_cards_and_says_what_it_assumes(name: str) -> None:
    made_ = scenario(name)
    c = made_.calibration
    network = Network.of(c)
    assert len(network.job) == 1024 and scope_notes(c) == ()
    assert (network.leaves, network.spines, network.rings) == (32, 32, 2)
    assert len(c.assumed) == len(c.parameters)
    assert all(p.why for p in c.assumed)
    # 6 operations an element and token, and attention's, of 2^20 tokens on 1024 cards.
    assert made_.flops_per_card == pytest.approx(6 * 1.3e9 * 1024, rel=0.2)
    assert c["compute_s"] * 39e12 == pytest.approx(made_.flops_per_card, rel=0.03)
    assert {claim.metric for claim in made_.claims} == {"throughput", "iterations", "time"}
    assert scenario(name).calibration.fingerprint == c.fingerprint


def test_no_such_scenario() -> None:
    with pytest.raises(UsageError, match="no scenario 'founding'"):
        scenario("founding")
    with pytest.raises(UsageError, match="no scenario ''"):
        scenario("")


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: a folder, not a file"):
        scenario(str(tmp_path))
    for absent in (str(tmp_path / "job"), "absent.txt"):
        with pytest.raises(InputError, match=f"{absent}: no such file"):
            scenario(absent)
    with pytest.raises(InputError, match="/dev/null: not a regular file"):
        scenario("/dev/null")


def test_a_run_shows_all_policies_beside_the_claims() -> None:
    done: list[tuple[int, str]] = []
    found = run_scenario(
        SMALL, replace(preset("fixed_drop"), name="own"), seeds=(0, 1), iterations=30,
        progress=lambda count, text: done.append((count, text)),
    )  # fmt: skip
    names = [row["name"] for row in found["policies"]]
    assert names == [BASELINE, *OTHERS, *HALVES, "own"]
    assert done == [(i + 1, names[i // 2]) for i in range(2 * len(names))]
    base, whole = found["policies"][0], found["policies"][-1]
    # The network is what it waits for: a bucket and a half of compute come before the last.
    step = 0.01 + 4 * BUCKET_S
    assert base["metrics"]["mean_step_s"]["mean"] == pytest.approx(step, rel=0.01)
    assert base["metrics"]["tflops_per_card"]["mean"] == pytest.approx(1 / step, rel=0.01)
    assert base["against"] is None
    assert found["exposed"]["baseline"]["mean"] == pytest.approx(1 - 0.02 / step, rel=0.01)
    assert found["exposed"]["needed"] == pytest.approx(1 - 1 / 1.6)
    throughput, time = found["claims"]
    assert (throughput["founding_document"], throughput["text"]) == (0.6, "+60 %")
    own = whole["metrics"]["steps_per_s"]["mean"] / base["metrics"]["steps_per_s"]["mean"] - 1
    assert own < -0.1  # of eight ranks, each one's own 35 % are more than a dense ring sends
    assert throughput["simulated"]["mean"] == pytest.approx(own, rel=1e-6)
    assert time["simulated"] == whole["against"]["time"]
    assert found["simulated"] is True


def test_a_policy_of_ones_own_and_one_that_never_gets_there() -> None:
    lossy = replace(SMALL, calibration=made(penalty_drop=1e4), flops_per_card=None)
    own = replace(
        preset("joint"), name="joint", period=replace(preset("joint").period, iterations=7)
    )
    found = run_scenario(lossy, own, seeds=(0,), iterations=10)
    rows = {row["name"]: row for row in found["policies"]}
    assert found["policy"] == "joint" in rows
    assert rows["fixed_drop"]["metrics"]["time_to_target_s"]["mean"] is None
    assert rows["fixed_drop"]["against"]["time"]["mean"] is None
    assert "tflops_per_card" not in rows["joint"]["metrics"]

"""The studies that are shipped: legal, from a policy that is itself one of their points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim_loop.made import made
from tests.studies.analytic import lake_in
from xtune.executor import open_executor
from xtune.policies import Policy
from xtune.policies.controller import Controller
from xtune.policies.learned_ratio import HIDDEN, INPUTS, WEIGHTS
from xtune.policies.plan import Layer
from xtune.policies.presets import preset
from xtune.studies import Options, Study, all_studies, run_study
from xtune.studies._space import apply, base_value, check, distributions, start_points

FIELD = "compression.learned_weights"
SEARCHES = [study for study in all_studies().values() if study.space]


@pytest.mark.parametrize("study", all_studies().values(), ids=lambda study: study.name)
def test_it_is_legal_and_says_what_is_claimed(study: Study) -> None:
    check(study)
    assert study.claims
    assert study.title[0].islower()  # it stands within a sentence


@pytest.mark.parametrize("study", SEARCHES, ids=lambda study: study.name)
def test_its_base_is_a_point_of_the_search(study: Study) -> None:
    base = preset(study.base)
    ranges = distributions(study)
    own = {field: base_value(base, field) for field in ranges}
    for field, allowed in ranges.items():
        assert allowed._contains(allowed.to_internal_repr(own[field])), field
    assert apply(base, own).digest() == base.digest()
    for point in start_points(study, base):
        apply(base, point)  # the policy takes it


def test_the_fine_ladder_starts_as_the_hand_set_one() -> None:
    # The same widths at every level, so that what a search gains is not the ladder's doing.
    fine, hand = preset("fine_ladder").compression, preset("joint").compression

    def widths(policy: str) -> list[tuple[int, int]]:
        chosen = preset(policy).compression
        rungs = [chosen.ladder[rung] for rung in chosen.rung_by_level]
        return [(rung.bits_input, rung.bits_head) for rung in rungs]

    assert widths("fine_ladder") == widths("joint")
    assert replace(fine, ladder=hand.ladder, rung_by_level=hand.rung_by_level) == hand


@pytest.mark.slow
def test_a_trained_rule_is_exported_and_ranks_agree(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    calibration = made(episode_rate_per_h=120.0, episode_length_s=6.0, gradient_change=0.3)
    whole = all_studies()["learned_ratio"]
    # One weight into a unit, one of another input, and one out of it.
    places = (0, len(INPUTS) - 1, HIDDEN * len(INPUTS))
    study = replace(
        whole,
        space={f: whole.space[f] for f in (f"{FIELD}[{i}]" for i in places)},
        trials=4,
        batch=4,
        finalists=1,
        baselines=("joint",),
        ablations=(),
        start=(),
    )
    document = run_study(
        study, lake, calibration, Options(seed=1, seeds=2, iterations=150),
        pool=lambda: open_executor("local", 1),
    )  # fmt: skip
    policy = Policy.from_json(document["policy"])
    assert policy.compression.ratio_rule == "learned"
    weights = [0.0] * WEIGHTS
    for place, field in zip(places, study.space, strict=True):
        weights[place] = document["best"]["params"][field]
    assert list(policy.compression.learned_weights) == weights
    assert all(weights[place] for place in places)
    layers = [Layer(name=str(i), elements=10**6, depth=i / 3) for i in range(4)]
    ranks = [Controller(policy, layers, 2) for _ in range(2)]
    for step in range(1000):
        plans = [rank.begin(step) for rank in ranks]
        assert plans[0] == plans[1]
        for i, rank in enumerate(ranks):  # they differ in what they see
            rank.observe(
                step, comm_s=1.0 + (step // 300) * (1 + i), modelled_s=1.0, wire_bytes=10**6,
                gradient_change=0.1 * i + 0.1, step_s=2.0,
            )  # fmt: skip
        if ranks[0].due(step):
            combined = [max(pair) for pair in zip(*(r.report() for r in ranks), strict=True)]
            for rank in ranks:
                rank.agree(step, combined)

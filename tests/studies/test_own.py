"""A user's own study: what is wrong in it is one line that names the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.analytic import OPTIONS, Runs, lake_in, search
from xtune.errors import StudyError
from xtune.policies import dumps
from xtune.policies.presets import preset
from xtune.policies.spec import replace_fields
from xtune.studies import Constraint, Dimension, Objective, select
from xtune.studies._base import find_study
from xtune.studies._space import apply, base_value, distribution
from xtune.studies._toml import load_study

WHOLE = """
name = "mine"
title = "my own"
base = "joint"
sampler = "tpe"
trials = 6
batch = 3
baselines = ["static_dense"]
ablations = []
objectives = ["time_to_target_s", {metric = "jitter_s"}]

[space]
"period.iterations" = {low = 5, high = 1000, log = true}
"bus.enter_slowdown[0]" = {low = 1.1, high = 1.4, step = 0.1}
"routing.mode" = ["flowlet", "spray"]

[[constraints]]
metric = "control_changes"
at_most = 50

[[start]]
"routing.mode" = "spray"
"bus.enter_slowdown[0]" = 1.2
"""


CONSTRAINED = '[[constraints]]\nmetric = "control_changes"\nat_most = 9\n[[start]]'


def written(folder: Path, text: str) -> Path:
    path = folder / "a.toml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, WHOLE)).study
    assert (study.name, study.title, study.base, study.sampler) == (
        "mine",
        "my own",
        "joint",
        "tpe",
    )
    assert (study.trials, study.batch, study.finalists) == (6, 3, 5)
    assert study.baselines == ("static_dense",)
    assert study.ablations == ()
    assert study.objectives == (
        Objective(metric="time_to_target_s"),
        Objective(metric="jitter_s"),
    )
    assert study.constraints == (Constraint(metric="control_changes", at_most=50),)
    assert study.space == {
        "period.iterations": Dimension(low=5, high=1000, log=True),
        "bus.enter_slowdown[0]": Dimension(low=1.1, high=1.4, step=0.1),
        "routing.mode": Dimension(choices=("flowlet", "spray")),
    }
    assert study.start == ({"routing.mode": "spray", "bus.enter_slowdown[0]": 1.2},)


def test_it_runs_and_its_name_alone_runs_it_again(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    own = load_study(written(tmp_path, WHOLE))
    document = search(lake, study=own.study, options=OPTIONS, files=own.files)
    assert document["trials"][0]["params"] == {
        "period.iterations": 200, "bus.enter_slowdown[0]": 1.2, "routing.mode": "spray",
    }  # fmt: skip
    again = select("mine", lake)
    assert again.study == own.study
    runs = Runs()
    assert search(lake, runs, study=again.study, files=again.own.files) == document
    assert runs.ran == []


def test_a_policy_file_may_be_the_base_and_is_kept(tmp_path: Path) -> None:
    base = replace_fields(preset("joint"), {"period.iterations": 77})
    (tmp_path / "policy.json").write_text(dumps(base))
    text = 'name = "mine"\nbase = "policy.json"\nbaselines = []\nablations = []\n'
    text += 'trials = 2\n[space]\n"bus.smoothing" = {}\n[[start]]\n'
    own = load_study(written(tmp_path, text))
    assert own.base == base
    lake = lake_in(tmp_path)
    document = search(lake, study=own.study, base=own.base, files=own.files)
    assert document["default"]["name"] == "default"
    assert document["trials"][0]["params"] == {"bus.smoothing": base.bus.smoothing}
    (tmp_path / "policy.json").unlink()
    assert select("mine", lake).own.base == base


@pytest.mark.filterwarnings("error")  # Optuna's words are none of ours
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "mine"', "", "name: is missing"),
        ('name = "mine"', 'name = "../x"', "name: '../x' is not of letters"),
        ('name = "mine"', 'name = "period_T"', "comes with xtune"),
        ("trials", "trails", "trails: no such key (did you mean trials?)"),
        ("trials = 6", 'trials = "6"', "trials: '6' is not a whole number"),
        ("trials = 6", "trials = true", "trials: True is not a whole number"),
        ("trials = 6", "trials = 0", "trials: 0 is below 1"),
        ("batch = 3", "batch = -1", "batch: -1 is below 1"),
        ('"joint"', '"joit"', "base: 'joit' is neither a preset nor a file (did you mean joint?)"),
        ('"tpe"', '"tpes"', "sampler 'tpes' is not known (did you mean tpe?)"),
        ('"tpe"', '"grid"', "sampler grid does not fit"),
        ('"tpe"', '"cmaes"', "routing.mode: cmaes takes ranges of numbers"),
        ("static_dense", "static", "preset 'static' is not known (did you mean static_dense?)"),
        ('"jitter_s"', '"jiter_s"', "metric 'jiter_s' is not known (did you mean jitter_s?)"),
        ('"jitter_s"', '"time_to_target_s"', "objectives: a metric is there twice"),
        ('{metric = "jitter_s"}', '{metrics = "jitter_s"}', "objectives: metrics: no such key"),
        (
            '{metric = "jitter_s"}',
            '{metric = "jitter_s", direction = "min"}',
            "direction 'min' is not known (there are: minimize",
        ),
        ("at_most = 50", "", "constraints: at_most: is missing"),
        ("at_most = 50", 'at_most = "50"', "constraints: at_most: '50' is not a number"),
        (
            "period.iterations",
            "period.iteration",
            "period.iteration: the policy has no such field (did you mean period.iterations?)",
        ),
        ("slowdown[0]", "slowdown[3]", "bus.enter_slowdown has 3 entries, from 0"),
        ("slowdown[0]", "slowdown", "bus.enter_slowdown: it has 3 entries (say"),
        ("period.iterations", "period.iterations[0]", "period.iterations is one value"),
        ("period.iterations", "compression.ladder", "a ladder cannot be searched"),
        ("low = 5,", "low = 0,", "period.iterations: low 0 is below the policy's 1"),
        ("low = 5,", "low = 5.5,", "period.iterations: 5.5 is not a whole number"),
        ("low = 5,", "low = 2000,", "low 2000 is not below high 1000"),
        ("low = 5,", "lo = 5,", "lo: no such key (did you mean low?)"),
        ("log = true", "log = true, step = 5", "log and step exclude each other"),
        ("step = 0.1", "step = 9", "step 9 is not within its range"),
        ('"flowlet", "spray"', '"flowlets", "spray"', "'flowlets' is not known (did you mean"),
        ('"flowlet", "spray"', '7, "spray"', "routing.mode: 7 is not a str"),
        ('= "spray"', '= "static"', "start: routing.mode = 'static' is outside its range"),
        ('"routing.mode" = "spray"', '"safety.gate" = 0.0', "start: safety.gate is not searched"),
        ("[space]", "[grid]", "is not a list"),
        ("low = 1.1", "low = nan", "bus.enter_slowdown[0]: low: nan is not a finite number"),
        ("step = 0.1", "step = inf", "bus.enter_slowdown[0]: step: inf is not a finite number"),
        ("log = true", 'log = "yes"', "period.iterations: log: 'yes' is neither true nor false"),
        ('metric = "jitter_s"', "metric = 3", "objectives: metric: 3 is not text"),
        ('metric = "control_changes"', "metric = 3", "constraints: metric: 3 is not text"),
        ("at_most = 50", "at_most = nan", "constraints: at_most: nan is not a finite number"),
        ("[[start]]", CONSTRAINED, "constraints: a metric is there twice"),
        ('["flowlet", "spray"]', "[]", "routing.mode: choices: [] is not a list of values"),
        ('["flowlet", "spray"]', "{choices = []}", "routing.mode: choices: [] is not a list"),
        ('["flowlet", "spray"]', '{choices = "spray"}', "choices: 'spray' is not a list"),
        ('"flowlet", "spray"', '"spray", "spray"', "routing.mode: a choice is there twice"),
        ('"flowlet", "spray"', '["spray"]', "routing.mode: ['spray'] is not a str"),
        ("high = 1000, log = true", "choices = [5, 10]", "choices and a range exclude each"),
        ("low = 5, high = 1000, log = true", "choices = [5, [3]]", "[3] is not a whole number"),
        ("trials = 6", f"trials = {10**23}", "is above 100000"),
        ("batch = 3", f"batch = {10**9}", "batch: 1000000000 is above 100000"),
        (WHOLE, "name = ", "no TOML"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in WHOLE
    with pytest.raises(StudyError) as caught:
        load_study(written(tmp_path, WHOLE.replace(old, new)))
    text = str(caught.value)
    assert says in text
    assert text.startswith(str(tmp_path / "a.toml"))
    assert "\n" not in text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_cmaes_needs_a_population(tmp_path: Path, batch: int) -> None:
    text = f'name = "mine"\nbase = "joint"\nsampler = "cmaes"\nbatch = {batch}\ntrials = 4\n'
    text += 'baselines = []\nablations = []\n[space]\n"bus.smoothing" = {}\n'
    path = written(tmp_path, text + '"period.iterations" = {}\n')
    if batch == 4:
        document = search(lake_in(tmp_path), study=load_study(path).study)
        assert document["counts"]["complete"] >= 4
        return
    with pytest.raises(StudyError, match=f"batch: {batch} is below 4"):
        load_study(path)


def test_a_start_that_leans_on_a_base_outside_the_range_is_refused(tmp_path: Path) -> None:
    lean = WHOLE.replace('"routing.mode" = "spray"\n', "")
    own = load_study(written(tmp_path, lean))
    with pytest.raises(StudyError, match="'binary', the base's, is outside its range"):
        search(lake_in(tmp_path), study=own.study)


def test_what_is_no_study_is_refused_with_what_is_near(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    for text, says in (
        ("perid_T", "did you mean period_T?"),
        ("period_T@0123456789ab", "there is no study period_T@0123456789ab"),
        (str(tmp_path / "none.toml"), "No such file"),
    ):
        with pytest.raises(StudyError) as caught:
            select(text, lake)
        assert says in str(caught.value)
    assert select("period_T", lake).study == find_study("period_T")


def test_entries_of_a_tuple_are_set_one_by_one() -> None:
    base = preset("joint")
    point = {"bus.enter_slowdown[0]": 1.2, "bus.enter_slowdown[2]": 9.0, "period.iterations": 5}
    made = apply(base, point)
    assert made.bus.enter_slowdown == (1.2, base.bus.enter_slowdown[1], 9.0)
    assert made.period.iterations == 5
    assert {field: base_value(made, field) for field in point} == point


def test_a_step_counts_from_the_low_end_and_stays_below_the_high_one() -> None:
    made = distribution("period.iterations", Dimension(low=5, high=100, step=10))
    assert (made.to_external_repr(5), getattr(made, "high"), getattr(made, "step")) == (5, 95, 10)  # noqa: B009
    whole = distribution("compression.error_feedback", Dimension())
    assert getattr(whole, "choices") == (False, True)  # noqa: B009

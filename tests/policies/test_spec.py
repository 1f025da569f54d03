from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.policies import PARAMETERS, PRESETS, Policy, PolicyError, dumps, loads, preset
from xtune.policies import replace_fields as change
from xtune.policies.spec import SECTIONS, Bus, Compression, Routing, Rung, Safety


def test_the_founding_documents_values() -> None:
    joint = preset("joint")
    assert joint.period.iterations == 200  # L3
    assert joint.routing.horizon_ns == 200_000  # R2
    assert joint.routing.cold_occupancy == 0.4  # R3
    assert joint.routing.decision_delay_ns <= 10_000  # R5
    assert joint.routing.strikes == 3  # N4
    assert joint.safety.iterations == 10  # L4
    assert {rung.bits_input for rung in joint.compression.ladder[-2:]} == {4}  # C3


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_legal_and_survive_the_file(name: str) -> None:
    policy = preset(name)
    assert policy.name == name
    text = dumps(policy)
    assert loads(text) == policy
    assert dumps(loads(text)) == text


def test_presets_differ_in_their_parameters() -> None:
    assert len({preset(name).digest() for name in PRESETS}) == len(PRESETS)


def test_the_table_names_every_field_with_unit_and_meaning() -> None:
    named = {f"{s}.{item.name}" for s, cls in SECTIONS.items() for item in fields(cls)}
    assert set(PARAMETERS) == named
    for entry in PARAMETERS.values():
        assert entry.unit
        assert entry.meaning
        for ending, unit in (("_ns", "ns"), ("_bytes", "bytes"), ("_iterations", "iterations")):
            assert not entry.path.endswith(ending) or entry.unit == unit
        if entry.kind in ("int", "float"):
            assert entry.low is not None
            assert entry.high is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing.cold_occupancy": 1.4}, "routing.cold_occupancy: 1.4 is not in 0..1"),
        ({"routing.cold": 0.4}, "routing.cold: unknown field"),
        ({"elsewhere": 1}, "elsewhere: unknown field"),
        ({"period.iterations": True}, "period.iterations: true is not a number"),
        ({"period.iterations": 50.0}, "period.iterations: 50.0 is not a whole number"),
        ({"period.iterations": "50"}, "period.iterations: '50' is not a number"),
        ({"period.iterations": 0}, "period.iterations: 0 is not in 1..1e+06"),
        ({"safety.gate": math.nan}, "safety.gate: nan is not a finite number"),
        ({"safety.gate": 10**400}, "safety.gate: a very large number is not a finite number"),
        ({"safety.gate": None}, "safety.gate: null is not a number"),
        ({"compression.error_feedback": 1}, "compression.error_feedback: 1 is not a bool"),
        ({"routing.mode": "fast"}, "routing.mode: 'fast' is not one of static, binary"),
        ({"routing.mode": 3}, "routing.mode: 3 is not a str"),
        (
            {"routing.exit_occupancy": 0.7},
            "routing.exit_occupancy: 0.7 is not below routing.enter_occupancy 0.7",
        ),
        (
            {"routing.cold_occupancy": 0.8},
            "routing.cold_occupancy: 0.8 is above routing.enter_occupancy 0.7",
        ),
        (
            {"bus.exit_slowdown": (1.05, 1.6, 2.0)},
            "bus.exit_slowdown[1]: 1.6 is not below bus.enter_slowdown[1] 1.5",
        ),
        ({"bus.enter_slowdown": (2.0, 1.5, 3.0)}, "bus.enter_slowdown: [2.0, 1.5, 3.0] does not"),
        ({"bus.enter_slowdown": 2.0}, "bus.enter_slowdown: 2.0 is not a list of 3 numbers"),
        ({"bus.enter_slowdown": (1.1, "x", 3)}, "bus.enter_slowdown[1]: 'x' is not a number"),
        ({"compression.rung_by_level": (1, 2, 2, 9)}, "compression.rung_by_level[3]: 9 is not in"),
        ({"compression.rung_by_level": (2, 1, 2, 3)}, "compression.rung_by_level: [2, 1, 2, 3] f"),
        ({"compression.block": 100}, "compression.block: 100 is not a power of two"),
        ({"compression.ladder": []}, "compression.ladder: [] is not a list of 1 to 16 rungs"),
        ({"compression.ladder": [{"name": "off"}]}, "compression.ladder[0].bits_input: missing"),
        ({"safety.watch_iterations": 5}, "safety.watch_iterations: 5 is below safety.iterations"),
        ({"name": "A policy"}, "name: 'A policy' is not lower-case letters"),
    ],
)
def test_a_wrong_value_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        change(Policy(), changes)
    assert str(caught.value).startswith(message)


RUNG_FIELDS = ("name", "bits_input", "bits_head", "keep_share")


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ([("off", 16, 16), ("q", 4, 9)], "compression.ladder[1].bits_head: 9 is not 2 to 8 or 16"),
        ([("off", 16, 16), ("q", 1, 8)], "compression.ladder[1].bits_input: 1 is not 2 to 8"),
        ([("off", 16, 16, 0.5)], "compression.ladder[0]: the first rung must be 16 bits"),
        ([("off", 16, 16), ("s", 16, 16, 0.0)], "compression.ladder[1].keep_share: 0.0 is not in"),
        ([("off", 16, 16), ("s", 16, 16, True)], "compression.ladder[1].keep_share: true is not"),
        ([("off", 16, 16), ("s", 4, 8, 0.1)], "compression.ladder[1]: with keep_share below 1"),
        (
            [("off", 16, 16), ("s", 16, 16, 0.1), ("q", 4, 4)],
            "compression.ladder[2]: it sends more elements",
        ),
        ([("off", 16, 16), ("q", 8, 4)], "compression.ladder[1].bits_head: 4 is below bits_input"),
        ([("q", 8, 8)], "compression.ladder[0]: the first rung must be 16 bits"),
        ([("off", 16, 16), ("a", 4, 8), ("b", 8, 8)], "compression.ladder[2]: it compresses less"),
        ([("off", 16, 16), ("off", 8, 8)], "compression.ladder: two rungs have one name"),
        ([("off", 16, 16), ("A", 8, 8)], "compression.ladder[1].name: 'A' is not a plain name"),
    ],
)
def test_a_wrong_ladder_is_refused(ladder: list[Any], message: str) -> None:
    rungs = tuple(Rung(**dict(zip(RUNG_FIELDS, entry, strict=False))) for entry in ladder)
    with pytest.raises(PolicyError) as caught:
        Compression(ladder=rungs, rung_by_level=(0, 0, 0, 0))
    assert str(caught.value).startswith(message)


def test_a_rung_of_shared_elements_survives_the_file() -> None:
    ladder = (*Compression().ladder, Rung(name="s", bits_input=16, bits_head=16, keep_share=0.05))
    policy = Policy(compression=Compression(ladder=ladder))
    assert loads(dumps(policy)) == policy
    document = policy.to_json()
    del document["compression"]["ladder"][0]["keep_share"]  # it has a default
    assert Policy.from_json(document) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "policy: not JSON"),
        ("[" * 100_000, "policy: not JSON"),
        ("1" * 5000, "policy: not JSON"),
        (b'{"name": "\xff"}', "policy: not JSON"),
        ("[]", "policy: [] is not an object"),
        ("{}", "schema: null is not 1"),
        ('{"schema": 2}', "schema: 2 is not 1"),
        ('{"schema": true}', "schema: true is not 1"),
        ('{"schema": 1, "routing": 3}', "routing: 3 is not an object"),
        ('{"schema": 1, "routing": {"hold_us": 3}}', "routing.hold_us: unknown field"),
        ('{"schema": 1, "speed": 3}', "speed: unknown field"),
        ('{"schema": 1, "name": "a", "name": "b"}', "name: given twice"),
        ('{"schema": 1, "safety": {"gate": NaN}}', "safety.gate: nan is not a finite number"),
        ('{"schema": 1, "units": {"routing.hold_ns": "us"}}', "units.routing.hold_ns: 'us' is"),
        ('{"schema": 1, "provenance": 1}', "provenance: 1 is not an object"),
        (
            '{"schema": 1, "compression": {"ladder": [{"name": "x", "bits_input": 16,'
            ' "bits_head": 16, "bits": 4}]}}',
            "compression.ladder[0].bits: unknown field",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str | bytes, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        loads(text)
    assert str(caught.value).startswith(message)


def test_what_a_file_does_not_name_keeps_its_default() -> None:
    policy = loads('{"schema": 1, "name": "mine", "period": {"iterations": 50}}')
    assert policy == change(Policy(), {"name": "mine", "period.iterations": 50})


def test_fields_that_depend_on_each_other_change_together() -> None:
    policy = change(Policy(), {"routing.enter_occupancy": 0.45, "routing.exit_occupancy": 0.3})
    assert policy.routing.exit_occupancy == 0.3


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    policy = change(
        Policy(),
        {"period.iterations": np.int64(50), "safety.gate": np.float64(0), "bus.smoothing": 1},
    )
    assert type(policy.period.iterations) is int
    assert type(policy.safety.gate) is float
    assert type(policy.bus.smoothing) is float


def test_digest_is_of_the_parameters_alone() -> None:
    policy = preset("joint")
    assert replace(policy, name="other", provenance={"trial": 3}).digest() == policy.digest()
    for path, entry in PARAMETERS.items():
        default = entry.default
        if entry.kind == "float" and entry.length is None:
            low, high = entry.low, entry.high
            assert isinstance(default, float)
            assert low is not None
            assert high is not None
            other = change(policy, {path: default + 1e-6 * (high - low) * (-1) ** (default > 0.5)})
            assert other.digest() != policy.digest()
    assert len(policy.digest()) == 64


def test_units_stand_in_the_file() -> None:
    units = json.loads(dumps(Policy()))["units"]
    assert units["routing.moves_per_ms"] == "moves/ms"
    assert units["period.iterations"] == "iterations"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(path=st.sampled_from(sorted(PARAMETERS)), value=JSON)
def test_any_value_is_taken_or_refused_by_name(path: str, value: Any) -> None:
    section, _, name = path.partition(".")
    try:
        policy = Policy.from_json({"schema": 1, section: {name: value}})
    except PolicyError as error:
        assert str(error).startswith(section)
    else:
        assert loads(dumps(policy)) == policy


def test_sections_are_checked_wherever_they_are_made() -> None:
    for make in (
        lambda: Routing(hold_ns=-1),
        lambda: Safety(smoothing=0.0),
        lambda: Bus(bandwidth_margin=2.0),
        lambda: Policy(routing=Safety()),  # type: ignore[arg-type]
    ):
        with pytest.raises(PolicyError):
            make()


def test_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, xtune.policies as p; p.preset('joint'); p.loads; "
        "heavy = {'torch', 'numba', 'triton'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

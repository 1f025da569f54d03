"""A file of the lake that is gone or torn: named where it matters, made again where it can be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.pipelines.lakes import A, derived, new_lake, port_rows, put
from xtune.errors import LakeError, UsageError
from xtune.pipelines import EpisodeRules, rebuild

OTHER = EpisodeRules(max_gap_s=7.0)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("name", ["derived/link_rates", "derived/episodes", "derived/impact_by"])
def test_a_torn_derived_file_is_made_again(tmp_path: Path, name: str) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    put(lake, "steps", [{"ts": 10**9, "job": "j", "step": 1, "step_time_s": 1.0}])
    rebuild(lake)
    before = derived(lake, name.partition("/")[2])
    for file in lake.files(name):
        tear(file.path)
    rebuild(lake)
    assert derived(lake, name.partition("/")[2]) == before


@pytest.mark.parametrize("gone", [False, True])
def test_raw_telemetry_that_is_torn_or_gone_is_named(tmp_path: Path, gone: bool) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 0.6, 0.6, 0.6, 0]))
    rebuild(lake)
    [file] = lake.files("link_counters")
    if gone:
        file.path.unlink()
    else:
        tear(file.path)
    with pytest.raises(
        LakeError, match=f"{file.path.name}: .*(No such file|were written)"
    ) as told:
        rebuild(lake, rules=OTHER)
    assert "restore it" in told.value.hint


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["min_length_s", "max_gap_s"])
def test_rules_are_finite(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a finite number"):
        EpisodeRules(**{name: value})  # type: ignore[arg-type]

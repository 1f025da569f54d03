"""All rows of the reference that the model covers, as the proof compares them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.sim_fabric.reference import FOLDER
from xtune.proofs.packet_simulator import (
    NOT_COVERED,
    RULES,
    Row,
    acknowledged,
    compare,
    main,
    reference_permutation,
    rows,
)
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import build_flows
from xtune.sim.phase import run_phase

WIDEST = {64: 0.60, 256: 0.50, 1024: 0.40}  # band of last under ECMP, share of its median


@cache
def compared(hosts: int, seeds: int) -> tuple[Row, ...]:
    stored = [row for row in rows(FOLDER) if int(row["hosts"]) == hosts]
    return tuple(compare(row, seeds) for row in stored if row["scheme"] in RULES)


def check(hosts: int, seeds: int) -> list[bool]:
    """Check means and widths; which p99 and last lie in their bands."""
    inside = []
    for row in compared(hosts, seeds):
        low, high = np.quantile(row.draws[:, 0], [0.05, 0.95])
        assert abs(row.mean_error) <= 0.08 or low <= row.theirs[0] <= high, row
        inside += row.inside(0.05, 0.95)
        if row.scheme == "roce_ecmp":
            assert row.width <= WIDEST[hosts], row
    return inside


def test_rows_of_64_hosts_lie_in_the_bands_of_own_draws() -> None:
    inside = check(64, 12)
    assert len(inside) == 22
    assert np.mean(inside) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "seeds"), [(256, 20), (1024, 3)])
def test_larger_rows_have_the_mean_and_the_width_of_own_draws(hosts: int, seeds: int) -> None:
    check(hosts, seeds)


@pytest.mark.parametrize("hosts", [64, 1024])
def test_the_permutation_is_that_of_the_stored_flows(hosts: int) -> None:
    table = np.loadtxt(FOLDER / f"htsim_flows_perm{hosts}.csv", delimiter=",", skiprows=1)
    side = round(hosts**0.5)
    flows = reference_permutation(LeafSpine(hosts, side, side))
    np.testing.assert_array_equal(np.stack([flows.src, flows.dst], axis=1), table[:, :2])


def test_what_waits_for_a_flow_waits_for_its_acknowledgement() -> None:
    fabric = LeafSpine.square(16)
    flows = acknowledged(build_flows([0, 0], [4, 8], 1_000_000, after=[(0, 1)], release_ns=9))
    assert flows.after.tolist() == [[0, 2], [1, 3], [2, 1]]
    assert flows.src.tolist() == [0, 0, 4, 8]
    result = run_phase(fabric, flows.with_paths([0, 1, 2, 3]), dt_ns=100)
    data = 1_000_000 / 50 + 4 * 500 + 3 * 4096 / 50
    ack = 4 * 500 + 4 * 64 / 50
    # Each release waits for the next step.
    by_hand = 2 * (data + ack)
    assert by_hand <= result.completion_ns[3] <= by_hand + 4 * 100


def test_every_scheme_is_covered_or_said_not_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["scheme"] for row in rows(FOLDER)} == {*RULES, *NOT_COVERED}
    assert main(["--reference", str(FOLDER), "--seeds", "2", "--hosts", "64"]) == 0
    said = capsys.readouterr().out
    for row in rows(FOLDER):
        if int(row["hosts"]) == 64:
            assert row["scheme"] in said
            assert row["workload"] in said
    assert main(["--reference", "/nowhere"]) == 2

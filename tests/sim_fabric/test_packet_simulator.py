"""All rows of the reference that the model covers, as the proof compares them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
    traffic,
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


def test_rows_that_cannot_be_run_are_named_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = "1,1,1,1,50,50,80,90"
    (tmp_path / "htsim_results.csv").write_text(
        "scheme,hosts,workload,wall_s,rss_mb,flows_done,flows,mean_us,p50_us,p99_us,last_us\n"
        f"roce_ecmp,16,a2a16_g4,{figures}\nroce_ecmp,20,perm20,{figures}\n"
        f"roce_ecmp,16,a2a16_g5,{figures}\nroce_new,16,perm16,{figures}\n"
        f"roce_ecmp,16,storm16,{figures}\nroce_ecmp,many,perm16,{figures}\n"
    )
    assert main(["--reference", str(tmp_path), "--seeds", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    ran = [line.split()[1] for line in said if line.startswith("roce")]
    assert ran == ["a2a16_g4"]
    left = [line.split(": ")[1] for line in said if line.startswith("not covered")]
    assert left == [
        "roce_ecmp perm20", "roce_ecmp a2a16_g5", "roce_new perm16", "roce_ecmp storm16",
        "roce_ecmp perm16",
    ]  # fmt: skip
    assert main(["--reference", str(tmp_path), "--hosts", "99"]) == 2
    for wrong in (["--seeds", "0"], ["--workers", "0"]):
        with pytest.raises(SystemExit, match="2"):
            main(["--reference", str(tmp_path), *wrong])


def test_groups_of_an_all_to_all_are_those_of_its_name() -> None:
    flows = traffic("a2a16_g4", LeafSpine.square(16))
    assert len(flows) == 16 * 3
    assert set((flows.src - flows.dst) % 4) == {0}  # every fourth host is of the same group

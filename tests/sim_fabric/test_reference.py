from __future__ import annotations

import numpy as np
import pytest

from tests.sim_fabric.reference import SEEDS, figures, in_band, reference_fabric, replay
from xtune.sim.bounds import all_to_all_bound_ns, ring_bound_ns
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, all_to_all, halving_doubling, permutation, ring, ring_steps
from xtune.sim.phase import run_phase


@pytest.mark.parametrize("hosts", [64, 1024])
def test_flows_on_the_stored_paths_complete_as_in_the_packet_simulator(hosts: int) -> None:
    found = replay(hosts, dt_ns=500)
    assert found.correlation >= 0.98
    assert found.mean_error <= 0.06
    assert found.last_error <= 0.03


def bands(hosts: int, workloads: tuple[str, ...]) -> list[bool]:
    fabric = reference_fabric(hosts)

    def make(workload: str, seed: int) -> Flows:
        return permutation(fabric, seed=seed) if workload == "perm" else ring(fabric, seed=seed)

    inside = []
    for workload in workloads:
        draws = [make(workload, seed) for seed in range(SEEDS)]
        inside += in_band(hosts, f"{workload}{hosts}", draws)
    return inside


def test_the_reference_lies_in_the_band_of_own_draws_at_64_hosts() -> None:
    assert np.mean(bands(64, ("perm", "ringflow"))) >= 0.85


@pytest.mark.slow
def test_the_reference_lies_in_the_band_of_own_draws_at_all_sizes() -> None:
    inside = bands(64, ("perm", "ringflow")) + bands(256, ("perm",))
    inside += bands(1024, ("perm", "ringflow"))
    assert len(inside) == 15
    assert np.mean(inside) >= 0.85


@pytest.mark.parametrize("hosts", [64, 1024])
def test_a_ring_in_order_reaches_its_bound(hosts: int) -> None:
    fabric = LeafSpine.square(hosts)
    bound = ring_bound_ns(fabric, 8 << 20, hosts)
    result = run_phase(fabric, ring(fabric))
    # 335.5 us less a 64th (1024th): 2(n-1)/n of 8 MiB at 50 B/ns.
    assert bound == pytest.approx(2 * (8 << 20) / 50 * (hosts - 1) / hosts)
    assert bound <= result.phase_ns <= 1.03 * bound


@pytest.mark.parametrize(("chains", "size"), [(31, 1 << 20), (1, 8 << 20)])
def test_an_all_to_all_without_conflicts_reaches_its_bound(chains: int, size: int) -> None:
    # Inside a leaf there is one path; all sends at once share evenly, and shifted rounds meet
    # nowhere. (A few chains do: they drift apart and then collide at receivers.)
    fabric = LeafSpine(64, 2, 4)
    flows = all_to_all(fabric, 32, size, chains=chains, spread=False, release_ns=0)
    bound = all_to_all_bound_ns(fabric, 32, size)
    assert bound == pytest.approx(31 * size / 50)
    result = run_phase(fabric, flows)
    assert bound <= result.phase_ns <= 1.03 * bound


def test_rounds_over_the_spines_without_conflicts_reach_the_bound() -> None:
    # In a round hosts of one leaf send to one other leaf, each by a spine of its own.
    fabric = LeafSpine.square(16)
    flows = all_to_all(fabric, 16, 8 << 20, chains=1, release_ns=0)
    result = run_phase(fabric, flows.with_paths(flows.src % 4))
    bound = all_to_all_bound_ns(fabric, 16, 8 << 20)
    assert bound <= result.phase_ns <= 1.03 * bound


def dependent_flows(workload: str, fabric: LeafSpine, seed: int) -> Flows:
    if workload == "hd64":
        return halving_doubling(fabric)
    if workload == "ringsteps64":
        return ring_steps(fabric, seed=seed)
    return all_to_all(fabric)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["hd64", "ringsteps64", "a2a64_g64"])
def test_dependent_flows_complete_near_the_packet_simulator(workload: str) -> None:
    fabric = reference_fabric(64)
    draws = []
    for seed in range(20):
        flows = dependent_flows(workload, fabric, seed)
        us = run_phase(fabric, flows, seed=seed, dt_ns=500).completion_ns / 1e3
        draws.append((us.mean(), us.max()))
    mean, _, last = figures(workload)
    ours = np.median(np.array(draws), axis=0)
    assert ours[0] == pytest.approx(mean, rel=0.08)
    assert ours[1] == pytest.approx(last, rel=0.10)

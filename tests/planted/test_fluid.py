"""The fluid against cases worked out by hand, and conservation along paths."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planted.fabric import Fabric
from tests.planted.fluid import Group, max_min, settle
from tests.planted.plan import JOB_DEMAND, draw_plan
from tests.planted.run import run

FABRIC = Fabric(hosts=12, leaves=3, spines=2)
FREE = FABRIC.vector()


def flow(name: str, src: int, dst: int, spine: int, demand: float = 1.0) -> Group:
    return Group(name=name, paths=(FABRIC.path((src, 0), (dst, 0), spine),), demand=demand)


def test_max_min_by_hand() -> None:
    """One port for all three, a second for one: 1/4 there leaves (1 - 1/4) / 2 for the others."""
    counts = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    rates, stopped = max_min(counts, np.ones(3), np.array([1.0, 0.25]))
    assert rates == pytest.approx([0.25, 0.375, 0.375])
    assert stopped == [[1], [0], [0]]


def test_an_incast_waits_up_to_the_senders() -> None:
    """Three senders of other leaves: each port behind sends what it carries and waits the rest."""
    groups = [flow("a", 4, 0, 0), flow("b", 5, 0, 0), flow("c", 8, 0, 1)]
    steady = settle(groups, FREE + 1.0, FREE)
    root = groups[0].paths[0][-1]
    assert steady.limiting == {root}
    assert steady.load[root] == pytest.approx(1.0)
    assert steady.wait[root] == 0.0
    for group in groups:
        assert steady.rates[group.name] == pytest.approx(1 / 3)
        assert steady.wait[group.paths[0][0]] == pytest.approx(2 / 3)
    shared = groups[0].paths[0][1]
    assert groups[1].paths[0][1] == shared
    assert steady.wait[shared] == pytest.approx(1 / 3)


def test_what_passes_a_full_port_is_held_back_with_it() -> None:
    """Host 5's flow to an idle host shares the uplink of host 4's, which an incast holds."""
    senders = [flow("a", 4, 0, 0), flow("b", 8, 0, 1), flow("c", 9, 0, 1)]
    victim = flow("victim", 5, 10, 0, demand=0.6)
    steady = settle([*senders, victim], FREE + 1.0, FREE)
    root = senders[0].paths[0][-1]
    assert steady.rates["victim"] == pytest.approx(1 / 3)
    assert steady.limits["victim"] == {root}
    assert steady.roots[victim.paths[0][0]] == {root}
    assert victim.paths[0][2] not in steady.roots  # beyond the shared uplink nothing waits


def test_a_slow_receiver_waits_itself() -> None:
    group = flow("a", 4, 0, 0)
    root = group.paths[0][-1]
    capacity = FREE + 1.0
    capacity[root] = 0.3
    steady = settle([group], capacity, FREE)
    assert [steady.wait[p] for p in group.paths[0]] == pytest.approx([0.7] * 4)
    assert steady.limiting == {root}


def test_a_collective_moves_at_the_pace_of_its_slowest_flow() -> None:
    """Only the flow over the slow port has data that waits; the others lack data."""
    ring = Group(
        name="ring",
        paths=tuple(FABRIC.path((a, 0), (b, 0), 0) for a, b in ((0, 4), (4, 8), (8, 0))),
        demand=JOB_DEMAND,
    )
    capacity = FREE + 1.0
    slow = ring.paths[1][2]
    capacity[slow] = 0.4
    steady = settle([ring], capacity, FREE)
    assert steady.rates["ring"] == pytest.approx(0.4)
    assert sorted(steady.roots) == sorted(ring.paths[1][:3])


def test_without_back_pressure_nobody_waits() -> None:
    groups = [flow("a", 4, 0, 0), flow("b", 8, 0, 1)]
    steady = settle(groups, FREE + 1.0, FREE, mild=frozenset(range(len(FREE))))
    assert steady.rates["a"] == pytest.approx(0.5)
    assert not steady.wait.any()


@pytest.mark.parametrize(
    "fabric",
    [
        Fabric(),
        Fabric(hosts=64, leaves=4, spines=4, rails=2),
        Fabric(hosts=64, leaves=8, spines=4, pods=2),
    ],
)
def test_bytes_are_conserved_along_paths(fabric: Fabric) -> None:
    """At every switch, in every state, what comes in goes out: as flows, port by port."""
    rng = np.random.default_rng(5)
    history = run(draw_plan(fabric, rng, 400.0), rng)
    hosts = {port.guid for port in fabric.ports if port.host}
    for steady, _ in history.states:
        into = dict.fromkeys((p.peer_guid for p in fabric.ports), 0.0)
        out = dict.fromkeys(into, 0.0)
        for port in fabric.ports:
            into[port.peer_guid] += float(steady.load[port.index])
            out[port.guid] += float(steady.load[port.index])
        for guid in into.keys() - hosts:
            assert into[guid] == pytest.approx(out[guid], abs=1e-9)
        assert steady.load.max() <= 1.0 + 1e-9
        assert (steady.load + steady.wait <= 1.0 + 1e-9).all()
    assert not history.strange


def test_a_step_is_compute_and_the_transfer_at_the_rates_of_its_time() -> None:
    rng = np.random.default_rng(9)
    history = run(draw_plan(Fabric(), rng, 300.0), rng)
    for step in history.steps:
        job = history.plan.jobs[step.job]
        middle = (history.edges[:-1] + history.edges[1:]) / 2
        inside = (middle > step.transfer_s) & (middle < step.end_s)
        rates = np.array([s.rates.get(job.name, 0.0) for s, _ in history.states])
        moved = (rates[history.state] * np.diff(history.edges))[inside].sum()
        assert moved == pytest.approx(job.transfer_s, abs=1e-6)
        if not step.plants:
            assert step.end_s - step.transfer_s == pytest.approx(job.transfer_s / JOB_DEMAND)
            assert step.lost_s == pytest.approx(0.0, abs=1e-6)

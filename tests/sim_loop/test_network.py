"""The job's flows and its background on the fabric, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.sim_loop.made import BUCKET_S, made
from xtune.policies.presets import preset
from xtune.policies.spec import Routing
from xtune.sim import simulate
from xtune.sim.beside import Beside, traffic_beside
from xtune.sim.cache import PhaseCache, Phases
from xtune.sim.calibration import Calibration, Parameter
from xtune.sim.network import PEERS, SAMPLES, Network, State

NETWORK = Network.of(made())  # 4 leaves of 2 job hosts, 2 spines
STATIC = Routing(mode="static")


def adding(calibration: Calibration, **values: float) -> Calibration:
    """With parameters that a calibration from telemetry does not have."""
    more = {n: Parameter(name=n, value=v, assumed=True, why="test") for n, v in values.items()}
    return replace(calibration, parameters={**calibration.parameters, **more})


def large(**values: float) -> Network:
    c = made(job_hosts=1024.0, hosts=1024.0, leaves=32.0, spines=32.0)
    return Network.of(adding(c, slice_hosts=1024.0, **values))


def crossing(network: Network, flows: object) -> np.ndarray:
    per = network.hosts_per_leaf
    return np.asarray(flows.src // per != flows.dst // per)  # type: ignore[attr-defined]


def test_rings_side_by_side() -> None:
    one, eight = large(), large(job_rings=8.0)
    assert len(one.job) == 1024 and one.slice_of is None
    assert crossing(one, one.flows("ring", 1, 0)).sum() == 32
    flows = eight.flows("ring", 1, 0)
    assert crossing(eight, flows).sum() == 8 * 32
    # Eight rings of 128: after 128 hops everyone is back at its own host, and not before.
    follow = dict(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))
    at = start = int(flows.src[5])
    seen = [at := follow[at] for _ in range(128)]
    assert seen[-1] == start and len(set(seen)) == 128
    # What leaves a leaf does so by spines of its own, and arrives by others than its neighbour's.
    pairs = np.stack([flows.src // eight.hosts_per_leaf, flows.spine])[:, crossing(eight, flows)]
    assert len(np.unique(pairs, axis=1).T) == 8 * 32


def test_more_rings_than_hosts_are_one() -> None:
    network = Network.of(adding(made(), job_rings=100.0))
    flows = network.flows("ring", 1, 0)
    assert sorted(flows.dst) == sorted(flows.src) and (flows.src != flows.dst).all()


def test_a_pipeline_sends_below_the_next_leaf() -> None:
    flows = NETWORK.flows("pipeline", 1000, 0)
    per = NETWORK.hosts_per_leaf
    np.testing.assert_array_equal(flows.dst, (flows.src + per) % (4 * per))
    alone = replace(NETWORK, leaves=1).flows("pipeline", 1000, 0)
    assert (alone.src != alone.dst).all()


def test_some_peers_stand_for_all_in_a_large_all_to_all() -> None:
    network = large()
    flows = network.flows("all_to_all", 63 * 1000, 0)
    assert len(flows) == 1024 * (PEERS - 1)
    sent = np.bincount(flows.src, weights=flows.size)
    received = np.bincount(flows.dst, weights=flows.size)
    assert set(sent[network.job]) == set(received[network.job]) == {63_000}
    # 2 of a leaf's 32 hosts are in one group: one peer of 63 is below the same leaf.
    assert crossing(network, flows).mean() == pytest.approx(62 / 63)


@pytest.mark.parametrize("place", range(6))
def test_an_episode_strikes_a_drawn_path_of_the_job_too(place: int) -> None:
    network = Network.of(made(ecmp_share=1.0))
    state = State(depth_bin=8)
    noise, _ = network.background(state, place)
    flows = network.flows("ring", 1, place)
    per = network.hosts_per_leaf
    own = {
        (int(s) // per, int(p))
        for s, p, out in zip(flows.src, flows.spine, crossing(network, flows), strict=True)
        if out
    }
    assert noise is not None
    assert {(int(s) // per, int(p)) for s, p in zip(noise.src, noise.spine, strict=True)} <= own
    seconds = Phases(network, STATIC, PhaseCache()).seconds("ring", 10**9, state, place)
    assert seconds >= 0.94 * 4.0 * 10**9 * 8 / 400e9


@pytest.mark.parametrize("place", range(24))
def test_wherever_an_episode_strikes_a_fixed_path_has_its_depth(place: int) -> None:
    network = Network.of(made(job_hosts=16.0, ranks=16.0))
    run = Phases(network, STATIC, PhaseCache()).run("ring", 1 << 26, State(depth_bin=8), place)
    assert run.phase_ns == pytest.approx(4.0 * (1 << 26) * 8 / 400, rel=0.01)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 1.0])
def test_samples_take_leaves_and_targets_in_turn_and_lanes_by_their_share(
    leaves: int, share: float
) -> None:
    c = made(job_hosts=16.0 * leaves, leaves=float(leaves), same_lane_share=share)
    network = replace(Network.of(c), leaves=leaves)
    places = [network.sampled_place(k) for k in range(SAMPLES)]
    assert [p % leaves for p in places] == [k % leaves for k in range(SAMPLES)]
    assert [network.same_lane(p) for p in places] == [network.same_lane(k) for k in range(SAMPLES)]
    if leaves > 1:
        turns = [p // leaves % (leaves - 1) for p in places]
        assert turns == [k % (leaves - 1) for k in range(SAMPLES)]


def test_traffic_beside_data_parallel_adds_to_every_iteration_by_hand() -> None:
    hop_bytes = 50_000_000  # a millisecond at line rate
    pipeline = adding(made(), pipeline_bytes=float(hop_bytes), pipeline_per_step=6.0)
    assert traffic_beside(pipeline) == (
        Beside(kind="pipeline", bytes_per_host=hop_bytes, per_step=6.0),
    )
    assert traffic_beside(made()) == ()
    policy, cache = preset("static_dense"), PhaseCache()
    alone, beside = (
        simulate(policy, c, iterations=20, cache=cache).metrics for c in (made(), pipeline)
    )
    assert beside["mean_step_s"] - alone["mean_step_s"] == pytest.approx(0.006, rel=0.02)
    assert beside["mean_comm_s"] == alone["mean_comm_s"]
    assert beside["ratio_vs_bf16"] == alone["ratio_vs_bf16"]
    exposed = (BUCKET_S + 0.006) / (0.1 + BUCKET_S + 0.006)
    assert beside["exposed_share"] == pytest.approx(exposed, rel=0.01)
    # Experts exchange with all: three of four leaves' hosts over the spines, as fast as the NIC.
    expert = adding(made(), expert_bytes=7.0 * 10**6, expert_per_step=10.0)
    more = simulate(policy, expert, iterations=20, cache=cache).metrics["mean_step_s"]
    assert 10 * 7e6 * 8 / 400e9 <= more - alone["mean_step_s"] <= 1.3 * 10 * 7e6 * 8 / 400e9


def test_traffic_beside_meets_the_background_and_the_routing() -> None:
    c = adding(
        made(episode_rate_per_h=60.0, episode_length_s=60.0, episode_length_shape=100.0,
             episode_slowdown=4.0, compute_s=1.0),
        tensor_bytes=50_000_000.0, tensor_per_step=100.0,
    )  # fmt: skip
    cache = PhaseCache()
    static, routed = (  # gaps are a twentieth of the episodes
        simulate(preset(n), c, iterations=200, cache=cache).metrics["mean_step_s"]
        for n in ("static_dense", "routing_only")
    )
    assert static == pytest.approx(1.0 + 0.1 * 4.0 + 4 * BUCKET_S, rel=0.06)
    assert routed < 0.9 * static


def test_what_drawn_paths_cost_is_not_in_the_time_of_a_collective() -> None:
    """Both hosts of a leaf send out of it over two spines: a draw often meets another."""
    policy, cache = preset("static_dense"), PhaseCache()
    spread, drawn = (
        simulate(policy, adding(made(ecmp_share=s), job_rings=2.0), iterations=20, cache=cache)
        for s in (0.0, 1.0)
    )
    assert spread.metrics["mean_comm_s"] == pytest.approx(4 * BUCKET_S, rel=0.01)
    assert drawn.metrics["mean_comm_s"] == pytest.approx(8 * BUCKET_S, rel=0.01)

from __future__ import annotations

import numpy as np
import pytest

from xtune.errors import UsageError
from xtune.sim.bounds import load_bound_ns
from xtune.sim.fabric import Backpressure, LeafSpine
from xtune.sim.flows import (
    all_to_all,
    build_flows,
    halving_doubling,
    incast,
    permutation,
    random_pairs,
    ring,
    ring_steps,
    shift,
)
from xtune.sim.phase import run_phase


def test_ports_are_numbered_without_gap_or_overlap() -> None:
    fabric = LeafSpine(12, 3, 2)
    names = [fabric.nic(h) for h in range(12)]
    names += [fabric.uplink(leaf, spine) for leaf in range(3) for spine in range(2)]
    names += [fabric.downlink(spine, leaf) for spine in range(2) for leaf in range(3)]
    names += [fabric.delivery(h) for h in range(12)]
    assert names == list(range(fabric.ports)) == list(range(36))
    assert fabric.path(0, 3, 1) == (0, fabric.delivery(3))
    assert fabric.path(1, 11, 1) == (1, fabric.uplink(0, 1), fabric.downlink(1, 2), 35)


def test_a_square_fabric_is_non_blocking() -> None:
    fabric = LeafSpine.square(256)
    assert (fabric.leaves, fabric.spines, fabric.hosts_per_leaf) == (16, 16, 16)
    with pytest.raises(UsageError, match="not a square"):
        LeafSpine.square(200)


def test_step_bytes_of_unequal_links() -> None:
    fabric = LeafSpine(4, 2, 2, 100.0, uplink_gbps=400.0, slow_ports=((0, 0.5),))
    rate = fabric.step_bytes(1000)
    assert rate[:4].tolist() == [6_250, 12_500, 12_500, 12_500]
    assert set(rate[4:12]) == {50_000}
    with pytest.raises(UsageError, match="a step of"):
        LeafSpine(4, 2, 2, 0.001).step_bytes(1)


def test_backpressure_is_checked() -> None:
    with pytest.raises(UsageError, match="unknown"):
        Backpressure(kind="hope")
    with pytest.raises(UsageError, match="do not fit"):
        Backpressure(xoff_bytes=10, xon_bytes=20)


@pytest.mark.parametrize("seed", range(5))
def test_a_permutation_is_one_and_leaves_its_leaf(seed: int) -> None:
    flows = permutation(LeafSpine.square(64), seed=seed)
    assert sorted(flows.dst) == list(range(64))
    assert (flows.src // 8 != flows.dst // 8).all()


def test_a_shift_goes_to_the_next_leaf() -> None:
    flows = shift(LeafSpine.square(16))
    np.testing.assert_array_equal(flows.dst, (np.arange(16) + 4) % 16)


def test_a_ring_visits_every_rank_once() -> None:
    flows = ring(LeafSpine.square(64), 6_400, seed=9)
    host, seen = 0, []
    for _ in range(64):
        seen.append(host)
        host = int(flows.dst[flows.src.tolist().index(host)])
    assert sorted(seen) == list(range(64)) and host == 0
    assert set(flows.size) == {2 * 63 * 100}


def test_ring_steps_send_what_a_ring_sends() -> None:
    fabric = LeafSpine.square(16)
    flows = ring_steps(fabric, 16_000, wait_for_data=True)
    sent = np.bincount(flows.src, weights=flows.size)
    np.testing.assert_array_equal(sent, np.full(16, 2 * 15 * 1_000))
    # Each step but a rank's first waits for its own last send and for its neighbour's.
    waits = np.bincount(flows.after[:, 1], minlength=len(flows)).reshape(16, 30)
    assert (waits[:, 0] == 0).all()
    assert (waits[:, 1:] == 2).all()
    result = run_phase(fabric, flows)
    own = result.completion_ns.reshape(16, 30)
    assert (np.diff(own, axis=1) > 0).all()
    # Data that a rank forwards has come from the rank before it.
    assert (result.released_ns.reshape(16, 30)[1:, 1:] >= own[:-1, :-1]).all()


def test_halving_doubling_sends_what_any_all_reduce_sends() -> None:
    flows = halving_doubling(LeafSpine.square(64), 64 << 10)
    sent = np.bincount(flows.src, weights=flows.size)
    np.testing.assert_array_equal(sent, np.full(64, 2 * 63 * 1024))
    # Partners exchange: the same pairs both ways.
    assert sorted(zip(flows.src, flows.dst, strict=True)) == sorted(
        zip(flows.dst, flows.src, strict=True)
    )
    with pytest.raises(UsageError, match="power of two"):
        halving_doubling(LeafSpine(12, 3, 2))


@pytest.mark.parametrize("spread", [True, False])
def test_all_to_all_has_every_pair_of_a_group(spread: bool) -> None:
    flows = all_to_all(LeafSpine.square(64), 8, 1000, spread=spread)
    pairs = set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))
    group = [h % 8 if spread else h // 8 for h in range(64)]
    expected = {(a, b) for a in range(64) for b in range(64) if a != b and group[a] == group[b]}
    assert pairs == expected
    assert len(flows) == len(expected)
    with pytest.raises(UsageError, match="do not fill"):
        all_to_all(LeafSpine.square(64), 7)


def test_incast_and_pairs_stay_in_the_fabric() -> None:
    fabric = LeafSpine.square(16)
    assert incast(fabric, 15).src.tolist() == list(range(15, 0, -1))
    with pytest.raises(UsageError, match="16 senders"):
        incast(fabric, 16)
    noise = random_pairs(fabric, 40, seed=1)
    assert (noise.src // 4 != noise.dst // 4).all()
    assert noise.background.all()
    first = noise.src[:4].tolist() + noise.dst[:4].tolist()
    assert len(set(first)) == 8  # no host twice in one round


def test_the_load_bound_by_hand() -> None:
    fabric = LeafSpine(4, 2, 2)
    flows = build_flows([0, 1], [2, 3], [100_000, 50_000])
    assert load_bound_ns(fabric, flows) == 100_000 / 50
    assert load_bound_ns(fabric, flows.with_paths([1, 1])) == 150_000 / 50

from __future__ import annotations

import numpy as np

from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import build_flows, permutation
from xtune.sim.phase import run_phase


def test_single_flow_takes_its_size_over_the_rate_and_three_hops() -> None:
    fabric = LeafSpine.square(64)
    result = run_phase(fabric, build_flows([0], [63], 8_000_000))
    # 8 MB at 50 B/ns; four links of 500 ns; a 4096 B packet stored at each of three switches.
    assert result.phase_ns == 8_000_000 / 50 + 4 * 500 + 3 * 4096 / 50


def test_every_byte_of_a_permutation_arrives() -> None:
    fabric = LeafSpine.square(64)
    result = run_phase(fabric, permutation(fabric, 1_000_003), seed=3)
    assert result.finished
    assert result.in_fabric_bytes == 0
    np.testing.assert_array_equal(result.delivered_bytes, np.full(64, 1_000_003))

"""The bare loop in C that the kernel's speed is measured against moves the same fragments."""

from __future__ import annotations

import numpy as np
import pytest

from bench._bare import BareLoop, compiler, fresh_state
from xtune.sim import _layout as k
from xtune.sim.fabric import LeafSpine
from xtune.sim.flows import Flows, permutation, ring


@pytest.fixture(scope="module")
def loop() -> BareLoop:
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    return BareLoop(cc)


@pytest.mark.parametrize("make", [permutation, ring])
def test_the_bare_loop_ends_as_the_kernel_does(loop: BareLoop, make: object) -> None:
    assert callable(make)
    fabric = LeafSpine.square(64)
    flows: Flows = make(fabric, seed=3)
    state, twin = fresh_state(fabric, flows, 5), fresh_state(fabric, flows, 5)
    state.run()
    _, steps = loop.time_s(fabric, twin)
    assert steps == state.cfg[k.STEP]
    np.testing.assert_array_equal(twin.flow_i[:, k.DELIVERED], flows.size)
    for name in ("queued", "resident", "paused"):
        assert not getattr(twin, name).any(), name
    assert state.pauses.sum() > 0

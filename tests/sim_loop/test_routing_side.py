"""What routing says on the bus, through the engine's own router."""

from __future__ import annotations

import pytest

from tests.sim_loop.made import made
from xtune.policies.bus import Bus
from xtune.policies.presets import preset
from xtune.policies.spec import Routing
from xtune.sim.cache import PhaseCache, Phases
from xtune.sim.network import CLEAR, Network, State
from xtune.sim.routing_side import RoutingSide


@pytest.mark.parametrize(("occupancy", "level"), [(0.1, 0), (0.6, 1), (0.75, 2), (0.95, 3)])
def test_a_steady_occupancy_arrives_as_share_and_level(occupancy: float, level: int) -> None:
    bus = Bus()
    RoutingSide(preset("joint"), bus, 400.0).tell(occupancy, 1.0)
    # Levels enter at 0.5, 0.7 and 0.85: exit, entry and half-way to full.
    assert bus.routing.level == level
    assert bus.routing.available_share == pytest.approx(1.0 - occupancy, abs=0.01)
    assert bus.routing.available_gbps == pytest.approx(400.0 * (1.0 - occupancy), abs=4.0)


def test_it_follows_from_one_regulation_to_the_next() -> None:
    bus = Bus()
    side = RoutingSide(preset("joint"), bus, 400.0)
    side.tell(0.95, 1.0)
    version = bus.routing.version
    side.tell(0.0, 2.0)
    assert bus.routing.version > version
    assert bus.routing.level == 0
    assert bus.routing.available_share == pytest.approx(1.0, abs=0.1)


def test_occupancy_is_that_of_the_best_path_of_the_worst_pair() -> None:
    network, cache = Network.of(made()), PhaseCache()
    static = Phases(network, Routing(mode="static"), cache)
    # One of two spines is full of others' traffic: the other spine's path is empty.
    assert static.sample("ring", 10**9, CLEAR, 0).occupancy < 0.1
    assert static.sample("ring", 10**9, State(depth_bin=8), 0).occupancy < 0.1
    # With a single spine there is no other path.
    narrow = Phases(Network.of(made(spines=1)), Routing(mode="static"), cache)
    assert narrow.sample("ring", 10**9, State(depth_bin=8), 0).occupancy > 0.9

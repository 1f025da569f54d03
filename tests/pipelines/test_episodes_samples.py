"""What samples tell that are far apart, or taken at the far end of a link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipelines.fabrics import busy, down, errors, fabric, nic, out, timelines, up, waits
from tests.pipelines.lakes import at
from xtune.pipelines import EpisodeRules
from xtune.pipelines._components import seen_from_receivers
from xtune.pipelines._episodes import Episode, build_episodes
from xtune.pipelines._stretches import Stretch, Timeline, fit

RULES = EpisodeRules()
TOPOLOGY, IDENTITY = fabric()
PORTS = set(TOPOLOGY.hops)


def sampled(stretch: Stretch, step_s: float) -> Stretch:
    """The same stretch, from samples this far apart."""
    return replace(stretch, samples=round(stretch.length_ns / 1e9 / step_s))


def marked(link: str, start: float, end: float, utilization: float) -> Stretch:
    """A stretch at its level by marks alone."""
    found = waits(link, start, end, wait=0.0, utilization=utilization)
    return replace(found, signal="marks", mark_rate=1e6)


def saturated(own: list[Stretch], received: list[Stretch]) -> list[tuple[str, int, int]]:
    kinds = {**timelines([], own), "received": Timeline(received)}
    found = seen_from_receivers(kinds, TOPOLOGY, PORTS)["busy"]
    return [(s.link, s.start_ns, s.end_ns) for s in found]


def built(wait: list[Stretch], full: list[Stretch], sick: list[Stretch] | None = None,
          received: list[Stretch] | None = None) -> list[Episode]:  # fmt: skip
    kinds = {**timelines(wait, full, sick), "received": Timeline(received or [])}
    kinds = seen_from_receivers(kinds, TOPOLOGY, PORTS)
    return build_episodes(kinds, TOPOLOGY, IDENTITY, RULES, PORTS)


def test_what_arrives_at_line_rate_was_sent_so() -> None:
    link = down(1, 0)
    arrives = busy(nic(1, 0), 71, 78)
    # A switch's port read every 10 s never shows 7 s at line rate.
    assert saturated([], [arrives]) == [(link, at(71), at(78))]
    # Where it shows it, what is read every second has the better bounds.
    assert saturated([sampled(busy(link, 65, 85), 10.0)], [arrives]) == [(link, at(71), at(78))]
    # But what is read seldom may have been read for longer.
    whole = sampled(busy(link, 20, 85), 10.0)
    assert saturated([whole], [arrives]) == [(link, at(20), at(78))]
    assert saturated([busy(link, 100, 110)], [arrives]) == [
        (link, at(71), at(78)),
        (link, at(100), at(110)),
    ]


def test_an_incast_is_seen_from_its_host_where_switches_are_read_seldom() -> None:
    coarse = [sampled(waits(up(0, 0), 65, 85, 0.3), 10), sampled(waits(out(0, 1), 68, 78), 10)]
    fine = [waits(nic(0, 0), 71, 78, 0.8), waits(nic(0, 1), 71, 78, 0.8)]
    [found] = built([*coarse, *fine], [], received=[busy(nic(1, 0), 71, 78)])
    assert (found.cause, found.root) == ("incast", down(1, 0))
    assert found.evidence["seen_from"] == nic(1, 0)
    assert len(found.members) == 5


@pytest.mark.parametrize(
    ("a", "b", "step_s", "agrees"),
    [
        # Both began in the first 10 s and ended in the last.
        ((428, 448), (436, 445), 10.0, True),
        # Began long before the first interval, and ended long after the last.
        ((428, 448), (405, 465), 10.0, False),
        ((428, 448), (436, 445), 1.0, False),
    ],
)
def test_bounds_are_known_to_a_sample(
    a: tuple[int, int], b: tuple[int, int], step_s: float, agrees: bool
) -> None:
    one = sampled(waits(up(0, 0), *a), step_s)
    other = waits(nic(0, 0), *b)
    assert (fit(one, other) >= RULES.alike) == agrees
    assert fit(one, other) == fit(other, one)


def test_a_port_with_room_left_holds_back_nobody() -> None:
    wait = [waits(nic(0, 0), 100, 140), waits(nic(0, 1), 100, 140)]
    roomy = replace(busy(up(0, 1), 100, 140), peak_utilization=0.95, mean_utilization=0.95)
    [found] = built(wait, [busy(up(0, 0), 100, 140), roomy])
    assert found.root == up(0, 0)
    # Where no other is full, it may be one that cannot do better.
    [found] = built(wait, [roomy])
    assert found.root == up(0, 1)


def test_a_sender_that_comes_late_is_marked_while_it_is_there() -> None:
    drops = replace(
        waits(up(0, 0), 100, 170, wait=0.0, utilization=1.0), signal="discards", discard_rate=1e4
    )
    long, late = marked(nic(0, 0), 100, 170, 0.5), marked(nic(0, 1), 160, 170, 0.4)
    [found] = built([drops, long, late], [])
    assert (found.cause, found.root) == ("uplink_collision", up(0, 0))
    assert {m.link for m in found.members} == {up(0, 0), nic(0, 0), nic(0, 1)}
    # An adapter that sends nothing has received its marks, and not from its own leaf's uplink.
    receives = marked(nic(0, 2), 160, 170, 0.01)
    [found, unseen] = built([drops, long, receives], [])
    assert (found.root, unseen.root) == (up(0, 0), None)
    assert [m.link for m in unseen.members] == [nic(0, 2)]


def test_errors_of_a_long_time_do_not_pass_for_those_of_a_short_one() -> None:
    # One stretch of few errors over 500 s: its samples tell of no bounds near the wait's.
    assert fit(errors(down(0, 0), 0, 500, per_s=0.5), waits(nic(0, 0), 200, 230)) == 0.06


def test_no_way_comes_back_to_the_node_that_it_left() -> None:
    assert TOPOLOGY.distance(up(0, 0), out(0, 1)) == 1
    assert TOPOLOGY.distance(up(0, 0), down(1, 0)) == 2
    assert TOPOLOGY.distance(nic(0, 0), down(1, 0)) == 3
    assert TOPOLOGY.distance(up(0, 0), out(0, 0)) is None
    assert TOPOLOGY.distance(up(0, 0), down(0, 2)) is None

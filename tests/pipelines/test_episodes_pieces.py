"""Independent pieces: together they give what building at once gives, whatever else there is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.fabrics import busy, down, errors, fabric, nic, out, timelines, up, waits
from tests.pipelines.lakes import at
from xtune.pipelines import EpisodeRules
from xtune.pipelines._episodes import Episode, build_component, build_episodes, components
from xtune.pipelines._identity import identify
from xtune.pipelines._stretches import Stretch, Timeline
from xtune.pipelines._topology import Topology

RULES = EpisodeRules()
TOPOLOGY, IDENTITY = fabric()
PORTS = sorted(TOPOLOGY.hops)


def told(episodes: list[Episode]) -> list[tuple[object, ...]]:
    return [
        (e.id, e.root, e.cause, e.start_ns, e.end_ns, e.evidence_text(), tuple(e.members))
        for e in episodes
    ]


@st.composite
def spans(draw: st.DrawFn, most: int) -> list[Stretch]:
    """Stretches of some ports; those of one port do not overlap."""
    found = []
    for port in draw(st.lists(st.sampled_from(PORTS), max_size=most, unique=True)):
        start = draw(st.integers(0, 60))
        for _ in range(draw(st.integers(1, 2))):
            end = start + draw(st.integers(2, 40))
            found.append(waits(port, start, end, utilization=draw(st.sampled_from([0.3, 0.95]))))
            start = end + draw(st.integers(11, 40))
    return found


@settings(max_examples=60, deadline=None)
@given(
    wait=spans(14),
    saturated=spans(5),
    sick=spans(3),
    seed=st.integers(0, 9),
)
def test_pieces_in_any_order_give_the_whole(
    wait: list[Stretch], saturated: list[Stretch], sick: list[Stretch], seed: int
) -> None:
    sick = [replace(s, errors=20.0) for s in sick]
    whole = build_episodes(timelines(wait, saturated, sick), TOPOLOGY, IDENTITY, RULES)
    for rows in (wait, saturated, sick):
        random.Random(seed).shuffle(rows)
    found = components(timelines(wait, saturated, sick), TOPOLOGY, RULES)
    random.Random(seed).shuffle(found)
    parts = [e for c in found for e in build_component(c, TOPOLOGY, IDENTITY, RULES)]
    assert told(sorted(parts, key=lambda e: (e.start_ns, e.id))) == told(whole)
    # Nothing is lost, and no two episodes have one id.
    assert {m.key for e in whole for m in e.members} >= {s.key for s in wait}
    assert len({e.id for e in whole}) == len(whole)


@settings(max_examples=40, deadline=None)
@given(wait=spans(12), saturated=spans(4))
def test_what_comes_later_changes_nothing(wait: list[Stretch], saturated: list[Stretch]) -> None:
    before = components(timelines(wait, saturated), TOPOLOGY, RULES)
    later = [waits(nic(0, 0), 5000, 5030), waits(nic(0, 1), 5000, 5030)]
    line = timelines([*wait, *later], [*saturated, busy(up(0, 0), 5000, 5030)])
    after = components(line, TOPOLOGY, RULES)
    assert [c.digest for c in after][: len(before)] == [c.digest for c in before]
    assert len(after) == len(before) + 1
    old = build_episodes(timelines(wait, saturated), TOPOLOGY, IDENTITY, RULES)
    assert told(build_episodes(line, TOPOLOGY, IDENTITY, RULES))[: len(old)] == told(old)


def test_an_ever_busy_fabric_falls_into_pieces() -> None:
    """One collision after the other, overlapping, each on its leaf: not one piece."""
    wait, saturated = [], []
    for i in range(60):
        leaf, start = i % 3, i * 10
        wait += [waits(nic(leaf, slot), start, start + 13) for slot in (0, 1)]
        saturated.append(busy(up(leaf, i % 2), start, start + 13))
    found = components(timelines(wait, saturated), TOPOLOGY, RULES)
    assert max(len(c.waits) for c in found) == 2


def episodes(
    wait: list[Stretch], saturated: list[Stretch] | None = None, sick: list[Stretch] | None = None
) -> list[Episode]:
    return build_episodes(timelines(wait, saturated, sick), TOPOLOGY, IDENTITY, RULES)


def test_a_busy_port_hosts_two_collisions_far_apart() -> None:
    """It sends at line rate all day; what waits behind it does so twice."""
    wait = [waits(nic(0, slot), s, s + 30) for s in (100, 900) for slot in (0, 1)]
    first, second = episodes(wait, [busy(up(0, 0), 0, 2000)])
    assert (first.root, first.start_ns, first.end_ns) == (up(0, 0), at(100), at(130))
    assert (second.root, second.start_ns, second.end_ns) == (up(0, 0), at(900), at(930))


def test_an_episode_lasts_as_long_as_what_is_its_alone() -> None:
    """node10 waits for both; neither episode lasts as long as it does."""
    shared = waits(nic(1, 0), 0, 100)
    slow = [waits(link, 0, 60, utilization=0.3) for link in (up(1, 0), out(0, 0), down(0, 1))]
    incast = [waits(link, 40, 100) for link in (up(1, 1), out(1, 2), nic(2, 1))]
    found = episodes([shared, *slow, *incast], [busy(down(2, 0), 40, 100)])
    assert {(e.cause, e.start_ns, e.end_ns) for e in found} == {
        ("slow_receiver", at(0), at(60)),
        ("incast", at(40), at(100)),
    }


def test_the_better_agreement_in_time_is_the_reason() -> None:
    """A slow receiver's uplink waits meanwhile, but the collision has the span of the waits."""
    slow = [waits(link, 0, 80) for link in (nic(0, 3), up(0, 0), out(0, 1), down(1, 0))]
    wait = [waits(nic(0, slot), 20, 50) for slot in (0, 1)]
    found = episodes([*slow, *wait], [busy(up(0, 1), 20, 50)])
    by_cause = {e.cause: {m.link for m in e.members} for e in found}
    assert by_cause == {
        "slow_receiver": {s.link for s in slow},
        "uplink_collision": {nic(0, 0), nic(0, 1), up(0, 1)},
    }


def test_errors_of_always_do_not_outdo_a_collision_of_now() -> None:
    wait = [waits(nic(0, 0), 200, 230), waits(nic(0, 1), 200, 230)]
    [found] = episodes(wait, [busy(up(0, 1), 200, 230)], [errors(down(0, 0), 0, 500, per_s=0.5)])
    assert (found.cause, found.root) == ("uplink_collision", up(0, 1))


def marks(link: str, start: float, end: float, utilization: float) -> Stretch:
    """A stretch at its level by ECN marks or notifications alone."""
    return replace(
        waits(link, start, end, wait=0.0, utilization=utilization),
        signal="marks", mark_rate=2e5, peak_level=2,
    )  # fmt: skip


def test_marks_of_senders_and_receiver_are_one_incast() -> None:
    """Lossy: nothing waits; the receiver's marks and the senders' notifications agree."""
    wait = [marks(nic(0, 0), 10, 40, 0.01), marks(nic(1, 0), 10, 40, 0.5),
            marks(nic(2, 0), 11, 40, 0.5)]  # fmt: skip
    [found] = episodes(wait, [busy(down(0, 0), 10, 40)])
    assert (found.cause, found.root) == ("incast", down(0, 0))
    assert found.evidence["marks_per_s"] == 2e5
    assert found.evidence["signals"] == ["marks"]


def test_drops_of_a_switch_port_are_its_own() -> None:
    drops = replace(waits(up(0, 0), 10, 40, wait=0.0, utilization=0.99), signal="discards",
                    discard_rate=500.0)  # fmt: skip
    wait = [drops, marks(nic(0, 0), 10, 40, 0.5), marks(nic(0, 1), 10, 40, 0.5)]
    [found] = episodes(wait)
    assert (found.cause, found.root) == ("uplink_collision", up(0, 0))
    assert found.evidence["discards_per_s"] == 500.0


def test_where_no_switch_is_sampled_the_root_is_not_in_sight() -> None:
    wait = [waits(nic(0, slot), 10, 40) for slot in range(3)]
    sampled = {nic(leaf, slot) for leaf in range(3) for slot in range(4)}
    [found] = build_episodes(timelines(wait), TOPOLOGY, IDENTITY, RULES, sampled)
    assert (found.cause, found.root, len(found.members)) == ("unknown", None, 3)
    assert "not in sight" in found.evidence["why"]


@pytest.mark.parametrize("known", [True, False])
def test_a_host_port_that_the_topology_lacks(known: bool) -> None:
    """The switch's node is known: the way to its port is, and where it leads is not."""
    rows = [row for row in _rows() if known or down(0, 0).partition("/")[0] not in row["src_guid"]
            or row["src_port"] != 1]  # fmt: skip
    rows = [r for r in rows if known or f"{r['dst_guid']}/{r['dst_port']}" != down(0, 0)]
    identity = identify([], rows, [], [])
    topology = Topology.build(rows, identity)
    wait = [waits(link, 10, 40) for link in (nic(1, 0), nic(2, 0), up(1, 0), up(2, 0), out(0, 0))]
    line = timelines(wait, [busy(down(0, 0), 10, 40)])
    [found] = build_episodes(line, topology, identity, RULES)
    assert (found.root, found.cause) == (down(0, 0), "incast" if known else "unknown")


def _rows() -> list[dict[str, Any]]:
    from tests.pipelines.fabrics import topology_rows

    return list(topology_rows())


def test_adapters_of_one_slow_host_are_one_episode() -> None:
    """Two rails: the adapters of node00 and node01 are of one host here."""
    rows = _rows()
    identity = identify([], rows, [], [])
    identity.host_of_guid = {nic(0, 0)[:18]: "h", nic(1, 0)[:18]: "h"}
    topology = Topology.build(rows, identity)
    wait = [waits(down(0, 0), 10, 40, utilization=0.3), waits(down(1, 0), 10, 41, utilization=0.3)]
    [found] = build_episodes(timelines(wait), topology, identity, RULES)
    assert (found.cause, found.evidence["root_links"]) == (
        "slow_receiver", [down(0, 0), down(1, 0)],
    )  # fmt: skip
    assert {found.role(m) for m in found.members} == {"root"}


def test_a_timeline_has_no_order() -> None:
    line = Timeline([waits(nic(0, 0), 20, 30), waits(nic(0, 0), 0, 10)])
    assert [s.start_ns for s in line] == [at(0), at(20)]

"""Roots, victims and causes on a small leaf-spine fabric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipelines.fabrics import (
    HOSTS,
    busy,
    down,
    errors,
    fabric,
    nic,
    out,
    timelines,
    up,
    waits,
)
from tests.pipelines.lakes import at
from xtune.pipelines import EpisodeRules
from xtune.pipelines._episodes import Episode, build_episodes
from xtune.pipelines._identity import identify
from xtune.pipelines._stretches import Stretch, Timeline, hash_id
from xtune.pipelines._topology import Topology

RULES = EpisodeRules()


def episodes(
    wait: list[Stretch], saturated: list[Stretch] | None = None, sick: list[Stretch] | None = None
) -> list[Episode]:
    topology, identity = fabric()
    return build_episodes(timelines(wait, saturated, sick), topology, identity, RULES)


def links(episode: Episode) -> set[str]:
    return {member.link for member in episode.members}


INCAST_VICTIMS = [nic(1, 0), nic(2, 0), up(1, 0), up(2, 0), out(0, 0), nic(0, 1)]


def test_incast_roots_in_the_saturated_port_that_itself_waits_for_nobody() -> None:
    """Hosts of two other leaves and one of the same leaf send to node00."""
    [found] = episodes(
        [waits(link, 10, 40) for link in INCAST_VICTIMS], [busy(down(0, 0), 12, 40)]
    )
    assert (found.cause, found.root) == ("incast", down(0, 0))
    assert links(found) == {*INCAST_VICTIMS, down(0, 0)}
    assert {m.link: found.role(m) for m in found.members} == {
        down(0, 0): "root",
        **dict.fromkeys(INCAST_VICTIMS, "victim"),
    }
    assert (found.start_ns, found.end_ns) == (at(10), at(40))
    root = found.members[0]
    assert (root.link, root.mean_wait_fraction, root.peak_utilization) == (down(0, 0), 0.0, 1.0)
    assert found.id == hash_id("episode", down(0, 0), at(12))
    assert found.evidence["victims"] == 6
    assert found.evidence["root_wait_fraction"] == 0.0


def test_a_root_counts_from_when_something_waits_behind_it() -> None:
    """The port was busy long before a second sender came."""
    [found] = episodes([waits(nic(0, 1), 100, 130), waits(nic(0, 2), 101, 130)],
                       [busy(down(0, 0), 0, 150)])  # fmt: skip
    assert (found.cause, found.root) == ("incast", down(0, 0))
    root = found.members[0]
    assert (root.start_ns, root.end_ns) == (at(100), at(130))
    assert root.bytes == pytest.approx(50e9 * 30)


def test_uplink_collision_leaves_the_other_uplink_cold() -> None:
    [found] = episodes([waits(nic(0, 0), 5, 25), waits(nic(0, 1), 5, 25)],
                       [busy(up(0, 1), 5, 25)])  # fmt: skip
    assert (found.cause, found.root) == ("uplink_collision", up(0, 1))
    assert (found.evidence["siblings"], found.evidence["siblings_saturated"]) == (1, 0)


def test_collision_on_the_way_down_from_a_spine() -> None:
    [found] = episodes([waits(link, 5, 25) for link in (up(0, 1), up(1, 1), nic(0, 0), nic(1, 0))],
                       [busy(out(1, 2), 5, 25)])  # fmt: skip
    assert (found.cause, found.root) == ("uplink_collision", out(1, 2))


def test_all_uplinks_full_is_overload() -> None:
    """One cause, so one episode; both uplinks have the role of a root."""
    [found] = episodes(
        [waits(nic(0, slot), 5, 25) for slot in range(HOSTS)],
        [busy(up(0, 0), 5, 25), busy(up(0, 1), 5, 25)],
    )
    assert (found.cause, found.root) == ("overload", up(0, 0))
    assert found.evidence["root_links"] == [up(0, 0), up(0, 1)]
    roles = {m.link: found.role(m) for m in found.members}
    assert (roles[up(0, 1)], roles[nic(0, 0)]) == ("root", "victim")


def test_a_sick_link_roots_in_the_sender_and_names_the_receiver() -> None:
    [found] = episodes(
        [waits(nic(0, 0), 5, 25), waits(up(0, 0), 5, 25, wait=0.7)],
        sick=[errors(out(0, 0), 5, 25, per_s=40)],  # the spine's port at the other end
    )
    assert (found.cause, found.root) == ("sick_link", up(0, 0))
    assert found.evidence["receiver"] == found.evidence["errors_counted_by"] == out(0, 0)
    assert found.evidence["errors_per_s"] == pytest.approx(40)


def test_a_sick_link_that_does_not_wait_itself() -> None:
    [found] = episodes([waits(nic(0, 0), 5, 25)], sick=[errors(out(1, 0), 4, 26, per_s=3)])
    assert (found.cause, found.root) == ("sick_link", up(0, 1))
    assert found.role(found.members[0]) == "root"


@pytest.mark.parametrize(
    ("link", "until", "cause"),
    [(out(0, 0), 25, "sick_link"), (out(0, 0), 12, "unknown"), (up(0, 0), 25, "unknown")],
)
def test_a_bad_signal_of_the_receiver_decides_where_nothing_else_does(
    link: str, until: float, cause: str
) -> None:
    """Not for a short part of the wait, nor that of the other direction."""
    topology, identity = fabric()
    line = timelines([waits(up(0, 0), 5, 25)])
    line["signal"] = Timeline([errors(link, 0, until, per_s=3)])
    [found] = build_episodes(line, topology, identity, RULES)
    assert (found.cause, found.root) == (cause, up(0, 0))
    assert found.evidence.get("signal_errors_per_s") == (3 if link == out(0, 0) else None)


def test_a_bad_signal_is_but_evidence_where_something_else_decides() -> None:
    topology, identity = fabric()
    line = timelines([waits(down(0, 2), 5, 25, utilization=0.4)])
    line["signal"] = Timeline([errors(nic(0, 2), 0, 30, per_s=3)])
    [found] = build_episodes(line, topology, identity, RULES)
    assert (found.cause, found.root) == ("slow_receiver", down(0, 2))
    assert found.evidence["signal_errors_per_s"] == 3


def test_few_errors_are_no_sick_link() -> None:
    [found] = episodes([waits(up(0, 0), 0, 100)], sick=[errors(out(0, 0), 50, 51, per_s=5)])
    assert (found.cause, found.root) == ("unknown", up(0, 0))


def test_a_slow_receiver_is_the_host_that_its_switch_waits_for() -> None:
    chain = [nic(1, 0), up(1, 0), out(0, 0), down(0, 2)]
    [found] = episodes([waits(link, 5, 25, wait=0.6, utilization=0.4) for link in chain])
    assert (found.cause, found.root) == ("slow_receiver", down(0, 2))
    assert found.evidence["receiver"] == nic(0, 2)
    assert found.evidence["receiver_utilization"] == pytest.approx(0.4)


def test_two_causes_at_once_share_a_victim() -> None:
    """node10 sends to a slow receiver below leaf 0 and through an incast below leaf 2."""
    shared = waits(nic(1, 0), 0, 100)
    slow = [waits(link, 0, 60, utilization=0.3) for link in (up(1, 0), out(0, 0), down(0, 1))]
    incast = [waits(link, 30, 100) for link in (up(1, 1), out(1, 2), nic(2, 1))]
    found = episodes([shared, *slow, *incast], [busy(down(2, 0), 30, 100)])
    by_cause = {e.cause: e for e in found}
    assert set(by_cause) == {"slow_receiver", "incast"}
    assert links(by_cause["slow_receiver"]) == {nic(1, 0), up(1, 0), out(0, 0), down(0, 1)}
    assert links(by_cause["incast"]) == {nic(1, 0), up(1, 1), out(1, 2), nic(2, 1), down(2, 0)}
    rows = [(m.id, e.id) for e in found for m in e.members if m.link == nic(1, 0)]
    assert len(set(rows)) == 2
    assert len({row[0] for row in rows}) == 1
    assert by_cause["incast"].evidence["shares_victims_with"] == [by_cause["slow_receiver"].id]


def test_two_incasts_below_one_leaf_are_two_episodes() -> None:
    found = episodes(
        [waits(nic(0, 2), 0, 50), waits(nic(0, 3), 0, 50), waits(out(0, 0), 0, 50)],
        [busy(down(0, 0), 0, 50), busy(down(0, 1), 0, 50)],
    )
    assert [(e.cause, e.root) for e in found] == [("incast", down(0, 0)), ("incast", down(0, 1))]


def test_a_port_just_as_busy_while_nobody_waits_is_innocent() -> None:
    [found] = episodes(
        [waits(nic(0, 2), 100, 130), waits(nic(0, 3), 100, 130)],
        [busy(down(0, 0), 100, 130), busy(down(0, 1), 0, 400), busy(down(2, 2), 0, 400)],
    )
    assert (found.cause, found.root) == ("incast", down(0, 0))


def lone(link: str, start: float, end: float) -> Stretch:
    """A stretch of a port with one large flow, which does not quite fill it."""
    return replace(busy(link, start, end), peak_utilization=0.94, mean_utilization=0.93)


def test_a_port_with_room_gives_way_to_what_waits() -> None:
    """Over 60 s of 1 s samples the other uplink never comes nearer to its line than 94 %."""
    chain = [nic(0, 0), up(0, 0), out(0, 1), down(1, 1)]
    waiting = [waits(link, 0, 60, utilization=0.3) for link in chain]
    [found] = episodes(waiting, [lone(up(0, 1), 0, 60)])
    assert (found.cause, found.root, links(found)) == ("slow_receiver", down(1, 1), set(chain))


def test_a_port_with_room_is_named_where_nothing_else_is() -> None:
    [found] = episodes([waits(nic(0, 0), 0, 60)], [lone(down(0, 2), 0, 60)])
    assert (found.cause, found.root) == ("overload", down(0, 2))
    assert found.evidence["root_utilization"] == 0.93


def test_a_port_with_room_that_carries_one_unhindered_flow_is_innocent() -> None:
    """node11 sends as much, from and to the same time, and waits for nothing: it is its flow."""
    waiting = waits(nic(0, 0), 0, 60)
    passed = lone(down(0, 2), 0, 60)
    [found] = episodes([waiting], [lone(nic(1, 1), 0, 60), passed])
    assert (found.cause, found.root) == ("unknown", nic(0, 0))
    # What sends at another time is not that flow, nor what waits itself.
    late = episodes([waiting], [lone(nic(1, 1), 25, 160), passed])
    hindered = waits(nic(1, 1), 0, 60, utilization=0.93)
    both = episodes([waiting, hindered], [lone(nic(1, 1), 0, 60), passed])
    assert all(down(0, 2) in {e.root for e in found} for found in (late, both))


def test_a_port_full_for_less_time_than_others_wait_is_no_reason() -> None:
    """5 of 10 s are waited, in two samples; one port was full for 6 s, one for 2 to 4 s."""
    coarse = replace(waits(up(2, 0), 0, 10, wait=0.5), samples=2)
    [found] = episodes([coarse], [busy(out(0, 0), 0, 6), busy(out(0, 1), 2, 4)])
    assert found.root == out(0, 0)
    # 4 s of waiting could be for either.
    coarse = replace(coarse, mean_wait_fraction=0.4)
    both = episodes([coarse], [busy(out(0, 0), 0, 6), busy(out(0, 1), 2, 4)])
    assert {e.root for e in both} == {out(0, 0), out(0, 1)}


def test_busy_without_waiting_is_nothing() -> None:
    assert episodes([], [busy(down(0, 0), 0, 50), busy(up(1, 0), 0, 50)]) == []


def test_neighbours_in_time_that_barely_touch_stay_apart() -> None:
    found = episodes([waits(nic(0, 0), 0, 50), waits(up(0, 0), 49, 100)])
    assert [(e.root, links(e)) for e in found] == [
        (nic(0, 0), {nic(0, 0)}),
        (up(0, 0), {up(0, 0)}),
    ]


def test_what_came_down_does_not_go_up_again() -> None:
    """Two flows meet in a leaf in opposite directions: neither waits for the other."""
    found = episodes([waits(out(0, 0), 0, 50), waits(up(0, 1), 0, 50)])
    assert {e.root for e in found} == {out(0, 0), up(0, 1)}
    assert all(len(e.members) == 1 for e in found)


def test_a_port_that_nobody_watches_does_not_cut_an_episode() -> None:
    """The uplink between is not sampled; the port beyond waits over the same span."""
    chain = [nic(1, 0), out(0, 0), down(0, 1)]
    [found] = episodes([waits(link, 0, 60, utilization=0.3) for link in chain])
    assert (found.cause, found.root, links(found)) == ("slow_receiver", down(0, 1), set(chain))


def test_breaks_of_a_root_make_one_episode() -> None:
    victims = [waits(nic(0, 1), 0, 100), waits(nic(0, 2), 0, 100)]
    [found] = episodes(victims, [busy(down(0, 0), 0, 60), busy(down(0, 0), 62, 100)])
    assert [m.link for m in found.members].count(down(0, 0)) == 2
    assert found.cause == "incast"


def test_waiting_in_a_circle_has_no_certain_root() -> None:
    """Three switches in a ring, without tiers: each waits for the next."""
    names = ["0x" + digit * 16 for digit in "123"]
    rows = [
        {
            "src_guid": a, "src_name": None, "src_port": 1,
            "dst_guid": b, "dst_name": None, "dst_port": 2, "rate_gbps": None, "tier": None,
        }
        for a, b in zip(names, names[1:] + names[:1], strict=True)
    ]  # fmt: skip
    identity = identify([], rows, [], [])
    topology = Topology.build(rows, identity)
    topology.height = {}
    ring = [waits(f"{name}/1", 0, 30, wait=0.3 + i / 10) for i, name in enumerate(names)]
    [found] = build_episodes(timelines(ring), topology, identity, RULES)
    assert (found.cause, found.root) == ("unknown", f"{names[2]}/1")
    assert found.evidence["circle"] is True
    assert len(found.members) == 3


def test_without_topology_episodes_are_by_host() -> None:
    identity = identify([], [], ["h1", "h2"], ["h1/mlx5_0/1", "h1/mlx5_1/1", "h2/mlx5_0/1"])
    wait = [
        waits("h1/mlx5_0/1", 0, 20),
        waits("h1/mlx5_1/1", 10, 30),
        waits("h1/mlx5_0/1", 50, 60),
        waits("h2/mlx5_0/1", 0, 20),
    ]
    sick = [errors("h2/mlx5_0/1", 0, 20, per_s=1)]
    found = build_episodes(timelines(wait, sick=sick), Topology(), identity, RULES)
    assert {(e.cause, e.root, len(e.members), e.evidence["host"]) for e in found} == {
        ("unknown", None, 2, "h1"),
        ("sick_link", None, 1, "h2"),
        ("unknown", None, 1, "h1"),
    }
    assert all(e.evidence["topology"] is False for e in found)
    assert {e.role(m) for e in found for m in e.members} == {"unknown"}


def test_the_tree_of_the_fabric() -> None:
    topology, identity = fabric(("node00",))
    heights = {"host": topology.height[nic(0, 0)[:18]], "leaf": topology.height[up(0, 0)[:18]],
               "spine": topology.height[out(0, 0)[:18]]}  # fmt: skip
    assert heights == {"host": 0, "leaf": 1, "spine": 2}
    assert identity.host_of_guid == {nic(0, 0)[:18]: "node00"}
    assert (topology.rises(nic(0, 0)), topology.rises(up(0, 0)), topology.rises(out(0, 0))) == (
        1,
        1,
        -1,
    )
    # From a host port: every other port of its leaf; from a spine's: the hosts below alone.
    assert set(topology.onward(nic(0, 0))) == {
        *(down(0, slot) for slot in range(1, HOSTS)), up(0, 0), up(0, 1),
    }  # fmt: skip
    assert set(topology.onward(out(0, 0))) == {down(0, slot) for slot in range(HOSTS)}
    assert topology.onward(down(0, 0)) == []
    assert set(topology.behind(out(0, 0))) == {up(1, 0), up(2, 0)}

"""Which hosts are taken: by hand on a small lake, and what holds on any fabric."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.lakes import SPAN, down, small_lake, up
from xtune.errors import XtuneError
from xtune.pipelines.history import open_history
from xtune.placement import PATTERNS, Advice, Cable, Fabric, Host, Leaf, Request, advise, survey
from xtune.placement.advice import free
from xtune.placement.patterns import leaving
from xtune.placement.reservations import Reservation


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Fabric:
    lake = small_lake(tmp_path_factory.mktemp("small") / "lake")
    with open_history(lake) as history:
        return survey(history, *SPAN)


def wanted(ranks: int, pattern: str = "ring", share: float = 0.25) -> Request:
    return Request(ranks=ranks, ranks_per_host=8, pattern=pattern, share=share)


def plan(fabric: Fabric, request: Request, *reservations: Reservation) -> Advice:
    return advise(fabric, request, free(fabric, request.ranks_per_host, reservations))


def hosts_of(advice: Advice) -> dict[str, int]:
    return {take.host.name: take.ranks for take in advice.takes}


def test_one_host_is_the_idlest_that_is_known_and_sound(fabric: Fabric) -> None:
    """c1 is idle but sick, and half of what is to know of b2 is not: b1, with 0.875."""
    advice = plan(fabric, wanted(8))
    assert (hosts_of(advice), advice.headroom, dict(advice.links)) == ({"b1": 8}, 0.875, {})


def test_a_ring_over_two_leaves_or_the_one_leaf_that_holds_it(fabric: Fabric) -> None:
    """16 ranks, 0.25 each. On leaf a alone 0.5 - 0.25 is left on a1. b1 with c2: on b's uplink
    0.5 - 0.25, on c's 0.875 - 0.25, on c2 0.75 - 0.25. a2 with c2: on a's uplink and on both
    hosts 0.75 - 0.25: the best."""
    advice = plan(fabric, wanted(16))
    assert hosts_of(advice) == {"a2": 8, "c2": 8}
    assert advice.headroom == 0.5
    every = [link for name in ("a2", "c2", "leafa", "leafc") for link in (up(name), down(name))]
    assert dict(advice.links) == dict.fromkeys(every, 0.25)


#: Spare shares of hosts that may be taken, and of uplinks: 1 less the loads of the lake.
SPARE = {"a1": 0.5, "a2": 0.75, "b1": 0.875, "c2": 0.75}
UP_SPARE = {"a": 0.75, "b": 0.5, "c": 0.875}


def left_after(hosts: tuple[str, ...], pattern: str, share: float) -> float:
    """Headroom of whole hosts; their leaf is the first letter."""
    if len(hosts) == 1:
        return SPARE[hosts[0]]
    rest = [SPARE[host] - share for host in hosts]
    for leaf in {host[0] for host in hosts}:
        here = sum(host[0] == leaf for host in hosts)
        rest.append(UP_SPARE[leaf] - share * leaving(pattern, here, len(hosts)))
    return min(rest)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.125, 0.5])
def test_no_choice_of_hosts_leaves_more(
    fabric: Fabric, pattern: str, hosts: int, share: float
) -> None:
    advice = plan(fabric, wanted(8 * hosts, pattern, share))
    chosen = tuple(hosts_of(advice))
    every = [left_after(c, pattern, share) for c in itertools.combinations(SPARE, hosts)]
    assert advice.headroom == pytest.approx(left_after(chosen, pattern, share))
    assert advice.headroom == pytest.approx(max(every))


def test_part_of_a_host_uses_part_of_its_links(fabric: Fabric) -> None:
    advice = plan(fabric, wanted(10))
    parts = sorted(take.ranks for take in advice.takes)
    assert parts == [2, 8]
    small = next(take.host.name for take in advice.takes if take.ranks == 2)
    assert advice.links[up(small)] == 0.25 * 2 / 8


def test_a_reservation_is_subtracted_from_hosts_and_links(fabric: Fabric) -> None:
    first = plan(fabric, wanted(16))
    taken = first.reservation("first", 0, 1)
    left = free(fabric, 8, [taken])
    assert left.ranks == {"a1": 8, "a2": 0, "b1": 8, "b2": 8, "c1": 8, "c2": 0}
    # Leaf a's uplink had 0.75 to spare, and the reservation has 0.25 of it.
    [uplink] = fabric.leaves[0].uplinks
    assert uplink.spare(left.reserved) == 0.5
    assert hosts_of(plan(fabric, wanted(16), taken)) == {"a1": 8, "b1": 8}


def test_no_room_says_how_many_are_what(fabric: Fabric) -> None:
    """a1, a2, b1 and c2 have 32; b2 is unknown, c1 sick; 8 more are reserved on a1."""
    assert sum(hosts_of(plan(fabric, wanted(32))).values()) == 32
    gone = Reservation(job="j", hosts={"a1": 8}, links={}, made_ns=0, expires_ns=1)
    words = (
        "no room for 32 ranks: 24 on known and sound hosts; of 6 hosts 1 are unknown,"
        " 1 are on sick links, 1 are reserved"
    )
    with pytest.raises(XtuneError, match=words):
        plan(fabric, wanted(32), gone)


def cable(name: str, high: float | None, sick: bool = False) -> Cable:
    return Cable(
        up=f"{name}>", down=f"<{name}", name=name, to="", rate_gbps=400.0, mean=high, high=high,
        known_s=1.0, episode_s=0.0, sick=sick,
    )  # fmt: skip


def test_a_leaf_without_a_sound_way_up_is_not_joined_with_others() -> None:
    lonely = Leaf(
        name="x", hosts=(Host(name="x1", cables=(cable("x1", 0.0),)),),
        uplinks=(cable("x:9", 0.0, sick=True), cable("x:10", None)),
    )  # fmt: skip
    other = Leaf(
        name="y", hosts=(Host(name="y1", cables=(cable("y1", 0.0),)),),
        uplinks=(cable("y:9", 0.0),),
    )  # fmt: skip
    fabric = Fabric(leaves=(lonely, other))
    assert sum(hosts_of(plan(fabric, wanted(8))).values()) == 8
    with pytest.raises(XtuneError, match="16 on known and sound hosts, on leaves without"):
        plan(fabric, wanted(16))


def test_a_host_with_one_unknown_rail_is_unknown() -> None:
    known, unknown = cable("r1", 0.25), cable("r2", None)
    assert Host(name="r", cables=(known,)).spare({}) == 0.75
    assert Host(name="r", cables=(known, unknown)).spare({}) is None


loads = st.none() | st.integers(0, 8).map(lambda eighths: eighths / 8)


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    leaves = []
    for i in range(draw(st.integers(1, 4))):
        sizes = draw(st.lists(st.tuples(loads, st.integers(0, 5)), min_size=1, max_size=4))
        hosts = tuple(
            Host(name=f"h{i}.{j}", cables=(cable(f"h{i}.{j}", load, sick=luck == 0),))
            for j, (load, luck) in enumerate(sizes)
        )
        ups = tuple(cable(f"u{i}.{j}", draw(loads)) for j in range(draw(st.integers(0, 3))))
        leaves.append(Leaf(name=f"l{i}", hosts=hosts, uplinks=ups))
    return Fabric(leaves=tuple(leaves))


@given(
    fabrics(),
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(PATTERNS), st.integers(1, 8)), max_size=5
    ),
    st.integers(1, 9),
)
def test_whatever_is_asked_no_host_gives_more_than_it_has(
    fabric: Fabric, jobs: list[tuple[int, str, int]], per_host: int
) -> None:
    hosts = {host.name: host for leaf in fabric.leaves for host in leaf.hosts}
    held: list[Reservation] = []
    for number, (ranks, pattern, eighths) in enumerate(jobs):
        before = free(fabric, per_host, held)
        request = Request(ranks=ranks, ranks_per_host=per_host, pattern=pattern, share=eighths / 8)
        try:
            advice = advise(fabric, request, before)
        except XtuneError:
            continue
        assert sum(take.ranks for take in advice.takes) == ranks
        assert all(hosts[take.host.name].spare({}) is not None for take in advice.takes)
        assert not any(hosts[take.host.name].sick for take in advice.takes)
        assert all(0 < share <= 1 for share in advice.links.values())
        row = advice.reservation(str(number), 0, 1)
        after = free(fabric, per_host, [*held, row])
        assert min(after.ranks.values()) >= 0
        assert all(spare is None or 0 <= spare <= 1 for spare in after.spares.values())
        unused = hosts.keys() - row.hosts.keys()
        assert {h: after.ranks[h] for h in unused} == {h: before.ranks[h] for h in unused}
        # Released, it is as before.
        assert free(fabric, per_host, [r for r in [*held, row] if r is not row]) == before
        held.append(row)
    for name in hosts:
        assert sum(row.hosts.get(name, 0) for row in held) <= per_host

"""What history says of links and leaves, on a lake written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.lakes import at, new_lake, put
from tests.placement.lakes import SPAN, down, rates, small_lake, stretch, topology, up
from xtune.errors import LakeError, NoDataError
from xtune.lake import Lake
from xtune.pipelines.history import LinkHistory, open_history
from xtune.placement import Fabric
from xtune.placement import survey as survey_of


def read_history(lake: Lake, since_ns: int, until_ns: int) -> dict[str, LinkHistory]:
    with open_history(lake) as history:
        return history.links(since_ns, until_ns)


def survey(lake: Lake) -> Fabric:
    with open_history(lake) as history:
        return survey_of(history, *SPAN)


def test_load_over_time_and_at_the_twentieth_reading(tmp_path: Path) -> None:
    """Of 20 readings one may exceed the high load: 0.5 once leaves 0.1, twice is 0.5.

    The interval of unknown load counts nowhere; waiting is busy too, up to the whole.
    """
    lake = new_lake(tmp_path / "lake")
    once, twice = [0.5] + [0.1] * 19, [0.5, 0.5] + [0.1] * 18
    rows = rates("x/1", [*once, None]) + rates("x/2", twice) + rates("x/3", [0.75], wait=0.5)
    put(lake, "derived/link_rates", rows)
    found = read_history(lake, at(0), at(3600))
    assert found["x/1"].high == 0.1 and found["x/2"].high == 0.5
    assert found["x/1"].known_s == 1200.0
    assert found["x/1"].mean == pytest.approx((0.5 + 19 * 0.1) / 20)
    assert (found["x/3"].mean, found["x/3"].high) == (1.0, 1.0)


def test_a_long_interval_counts_by_its_length_in_the_mean_and_once_in_the_high_load(
    tmp_path: Path,
) -> None:
    """Nine minutes at 1.0 and a gap of 91 at 0: 9 % of the time, nine tenths of the readings."""
    lake = new_lake(tmp_path / "lake")
    rows = rates("x/1", [1.0] * 9)
    gap = {"ts": at(6000), "interval_s": 91 * 60.0, "link": "x/1", "utilization": 0.0}
    put(lake, "derived/link_rates", [*rows, gap])
    assert read_history(lake, at(0), at(9999))["x/1"] == LinkHistory(
        known_s=6000.0, mean=0.09, high=1.0
    )


def test_episodes_by_their_union_within_the_span(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    sick = {"role": "root", "cause": "sick_link"}
    put(
        lake,
        "derived/link_episodes",
        [
            stretch("x/1", 0, 100),
            stretch("x/1", 0, 100, episode_id="f"),  # the same stretch in a second episode
            stretch("x/1", 50, 150, **sick),
            stretch("x/1", 190, 500),  # the span ends at 200
            stretch("x/2", 10, 20, role="victim", cause="sick_link"),
            stretch("x/3", 300, 400),
        ],
    )
    found = read_history(lake, at(0), at(200))
    # 0 to 150 and 190 to 200; of it sick from 50 to 150; a victim of a sick link is not sick.
    assert found == {
        "x/1": LinkHistory(episode_s=160.0, sick_s=100.0),
        "x/2": LinkHistory(episode_s=10.0),
    }


def test_leaves_hosts_and_uplinks(tmp_path: Path) -> None:
    fabric = survey(small_lake(tmp_path / "lake"))
    shape = [(leaf.name, [h.name for h in leaf.hosts]) for leaf in fabric.leaves]
    assert shape == [("leafa", ["a1", "a2"]), ("leafb", ["b1", "b2"]), ("leafc", ["c1", "c2"])]
    uplinks = [(c.up, c.down) for leaf in fabric.leaves for c in leaf.uplinks]
    assert uplinks == [(up(leaf), down(leaf)) for leaf in ("leafa", "leafb", "leafc")]
    hosts = {host.name: host for leaf in fabric.leaves for host in leaf.hosts}
    spares = {name: host.spare({}) for name, host in hosts.items()}
    # b2 sends nothing, but nobody counted what it receives.
    assert spares == {"a1": 0.5, "a2": 0.75, "b1": 0.875, "b2": None, "c1": 1.0, "c2": 0.75}
    assert [name for name, host in hosts.items() if host.sick] == ["c1"]
    assert hosts["a1"].cables[0].episode_s == 120.0
    assert fabric.notes == ("hosts of 6 adapters are named by their descriptions alone",)


def test_the_busier_direction_counts_and_reservations_never_below_nothing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology())
    rows = rates(up("a1"), [0.25] * 20) + rates(down("a1"), [0.5] * 20)
    put(lake, "derived/link_rates", rows)
    host = survey(lake).leaves[0].hosts[0]
    assert host.spare({}) == 0.5
    assert host.spare({up("a1"): 0.125}) == host.spare({down("a1"): 0.125}) == 0.375
    assert host.spare({up("a1"): 0.75}) == 0.0


def test_two_adapters_on_two_leaves_are_one_host_of_a_rail(tmp_path: Path) -> None:
    """Rails: a1's and b1's descriptions say one host, so leaves a and b are one place."""
    rows = topology()
    for row in rows:
        for end in ("src", "dst"):
            for name, device in (("a1", "mlx5_0"), ("b1", "mlx5_1")):
                if row[f"{end}_name"] == f"{name} mlx5_0":
                    row[f"{end}_name"] = f"r1 {device}"
            if row[f"{end}_name"] == "b2 mlx5_0":
                row[f"{end}_name"] = "Mellanox Technologies Aggregation Node"
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", rows)
    places = {leaf.name: leaf for leaf in survey(lake).leaves}
    assert sorted(places) == ["leafa", "leafa, leafb", "leafc"]
    [rail] = places["leafa, leafb"].hosts
    assert (rail.name, len(rail.cables)) == ("r1", 2)
    assert len(places["leafa, leafb"].uplinks) == 2
    names = [host.name for leaf in places.values() for host in leaf.hosts]
    assert sorted(names) == ["a2", "c1", "c2", "r1"]  # the switch's reduction engine is no host


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    lake = small_lake(tmp_path / "lake")
    lake.files("derived/link_rates")[0].path.unlink()
    with pytest.raises(LakeError, match=r"link_rates: .* is missing \(run xtune rebuild\)"):
        survey(lake)


def test_without_topology_or_rates(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "derived/link_rates", rates("x/1", [0.5]))
    with open_history(lake) as history:
        assert history.last_reading_ns() == at(60)
    with pytest.raises(NoDataError, match="ibnetdiscover"):
        survey(lake)

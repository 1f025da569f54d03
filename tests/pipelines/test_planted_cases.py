"""Small cases that planted telemetry brought up: what a rebuild must make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.fabrics import down, nic, topology_rows
from tests.pipelines.lakes import LINE_BYTES_S, counters, derived, new_lake, port_rows, put
from tests.planted import generate, score
from tests.planted.feeds import OFFSET_S
from xtune.pipelines import rebuild


def test_an_incast_shorter_than_the_switch_is_sampled_is_seen_at_the_receiver(
    tmp_path: Path,
) -> None:
    """Hosts are read each second and switches every 10 s, as most fabrics are.

    For 8 s two hosts send to a third. The leaf's port to it is read in the middle, so both of its
    intervals are half full; what the receiver's adapter counts each second is at line rate.
    """
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    for sender in (nic(0, 1), nic(0, 2)):
        wait = [*[0.0] * 26, *[0.5] * 8, *[0.0] * 26]
        put(lake, "link_counters", port_rows(sender, wait, [0.05] * 26 + [0.5] * 8 + [0.05] * 26))
    put(lake, "link_counters", port_rows(down(0, 0), [0.0] * 6, [0, 0, 0.4, 0.4, 0, 0], 10.0))
    received, words = [0], LINE_BYTES_S // 4
    for second in range(60):
        received.append(received[-1] + (words if 26 <= second < 34 else 0))
    nothing = [0] * 61
    put(
        lake,
        "link_counters",
        counters(
            range(61),
            nic(0, 0),
            port_rcv_data=received,
            port_xmit_data=nothing,
            port_xmit_wait=nothing,
        ),
    )
    rebuild(lake, threads=1)
    [episode] = derived(lake, "episodes")
    assert (episode["root_link"], episode["cause"]) == (down(0, 0), "incast")


def test_clocks_read_beside_slower_switches_are_not_moved(tmp_path: Path) -> None:
    """One host is 40 s ahead; the others are right, whatever is sampled more coarsely beside."""
    planted = generate(5, mess=True)
    lake = new_lake(tmp_path / "lake")
    planted.write(lake)
    rebuild(lake, threads=1)
    rows = lake.read("derived/clock_offsets").to_pylist()
    moved = {row["host"]: row["offset_ns"] / 1e9 for row in rows if row["applied"]}
    assert list(moved.values()) == [pytest.approx(OFFSET_S, abs=0.5)]


def test_gpu_hours_are_those_of_the_steps_that_an_episode_slowed(tmp_path: Path) -> None:
    """Episodes at one time elsewhere in the fabric do not pay for each other's jobs."""
    planted = generate(4)
    lake = new_lake(tmp_path / "lake")
    planted.write(lake)
    rebuild(lake, threads=1)
    assert score(lake, planted.truth).gpu_hours_error == pytest.approx(0.0, abs=0.1)

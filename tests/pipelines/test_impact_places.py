"""Which ports of an episode tell that a job was held up, on a small fabric."""

from __future__ import annotations

from dataclasses import replace

from tests.pipelines.fabrics import down, fabric, nic, out, up, waits
from xtune.pipelines._episodes import Episode
from xtune.pipelines._impact_places import episode_waits
from xtune.pipelines._stretches import Stretch

TOPOLOGY, IDENTITY = fabric(tuple(f"node{leaf}{slot}" for leaf in range(3) for slot in range(4)))


def marked(link: str) -> Stretch:
    return replace(waits(link, 0, 10), signal="marks", mean_wait_fraction=None)


def told(root: str | None, *members: Stretch) -> dict[str, tuple[str | None, bool | None]]:
    """Host -> the receiver that the root leads to, and whether what it sends can come there."""
    found = Episode(
        id="e",
        root=root,
        cause="unknown",
        members=list(members),
        roots=frozenset([root] if root else ()),
    )
    rows = episode_waits([found], TOPOLOGY, IDENTITY).to_pylist()
    return {row["host"]: (row["receiver"], row["passes"]) for row in rows}


def test_whose_packets_pass_an_uplink() -> None:
    """Only hosts of its leaf send through it; others are marked by what they receive."""
    found = told(up(0, 0), marked(nic(0, 1)), marked(nic(1, 2)))
    assert found == {"node01": (None, True), "node12": (None, False)}


def test_whose_packets_pass_a_port_towards_a_leaf() -> None:
    """Any but hosts of that leaf."""
    found = told(out(0, 1), marked(nic(0, 1)), marked(nic(1, 2)))
    assert found == {"node01": (None, True), "node12": (None, False)}


def test_marks_at_a_host_are_of_what_is_sent_to_it() -> None:
    """From anywhere; while waiting spreads to what passes the same ports towards others."""
    ends = down(1, 2)
    assert told(ends, marked(nic(0, 1))) == {"node01": ("node12", True)}
    assert told(ends, waits(nic(0, 1), 0, 10)) == {"node01": (None, True)}
    assert told(ends, waits(nic(1, 0), 0, 10)) == {"node10": ("node12", True)}
    paused = replace(marked(nic(0, 1)), mean_wait_fraction=0.3)
    assert told(ends, paused) == {"node01": (None, True)}


def test_without_a_root_or_a_way_nothing_is_ruled_out() -> None:
    assert told(None, marked(nic(0, 1))) == {"node01": (None, None)}
    assert told("0x0000000000000999/1", marked(nic(0, 1))) == {"node01": (None, None)}
    assert told(nic(0, 1), waits(nic(0, 1), 0, 10)) == {"node01": (None, True)}

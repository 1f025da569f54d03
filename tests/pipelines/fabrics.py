"""A small leaf-spine fabric, and stretches on it, for the tests of episodes."""

from __future__ import annotations

from typing import Any

from tests.pipelines.lakes import at
from xtune.pipelines._identity import Identity, identify
from xtune.pipelines._stretches import Stretch, Timeline
from xtune.pipelines._topology import Topology

LEAVES, SPINES, HOSTS = 3, 2, 4  # hosts a leaf


def host_guid(leaf: int, slot: int) -> str:
    return f"0x{0x100 + leaf * 16 + slot:016x}"


def leaf_guid(leaf: int) -> str:
    return f"0x{0x200 + leaf:016x}"


def spine_guid(spine: int) -> str:
    return f"0x{0x300 + spine:016x}"


def nic(leaf: int, slot: int) -> str:
    """A host's port towards its leaf."""
    return f"{host_guid(leaf, slot)}/1"


def down(leaf: int, slot: int) -> str:
    """A leaf's port towards a host."""
    return f"{leaf_guid(leaf)}/{slot + 1}"


def up(leaf: int, spine: int) -> str:
    """A leaf's port towards a spine."""
    return f"{leaf_guid(leaf)}/{HOSTS + spine + 1}"


def out(spine: int, leaf: int) -> str:
    """A spine's port towards a leaf."""
    return f"{spine_guid(spine)}/{leaf + 1}"


def topology_rows() -> list[dict[str, Any]]:
    """Rows of ``topology_links``, both directions of every cable."""
    rows = []

    def cable(a: str, a_name: str, b: str, b_name: str, tier: int) -> None:
        for (here, here_name), (there, there_name) in (
            ((a, a_name), (b, b_name)),
            ((b, b_name), (a, a_name)),
        ):
            guid, port = here.split("/")
            far, far_port = there.split("/")
            rows.append(
                {
                    "src_guid": guid,
                    "src_name": here_name,
                    "src_port": int(port),
                    "dst_guid": far,
                    "dst_name": there_name,
                    "dst_port": int(far_port),
                    "rate_gbps": 400.0,
                    "tier": tier,
                }
            )

    for leaf in range(LEAVES):
        for slot in range(HOSTS):
            name = f"node{leaf}{slot} mlx5_0"
            cable(nic(leaf, slot), name, down(leaf, slot), f"leaf{leaf}", 0)
        for spine in range(SPINES):
            cable(up(leaf, spine), f"leaf{leaf}", out(spine, leaf), f"spine{spine}", 1)
    return rows


def fabric(hosts: tuple[str, ...] = ()) -> tuple[Topology, Identity]:
    """The topology, and an identity that knows these hosts."""
    rows = topology_rows()
    identity = identify([], rows, hosts, [])
    return Topology.build(rows, identity), identity


def waits(
    link: str, start: float, end: float, wait: float = 0.5, utilization: float = 0.5
) -> Stretch:
    """A waiting stretch, in seconds after T0."""
    return Stretch(
        link=link,
        start_ns=at(start),
        end_ns=at(end),
        samples=round(end - start),
        peak_level=3 if wait >= 0.5 else 2,
        mean_wait_fraction=wait,
        peak_utilization=utilization,
        mean_utilization=utilization,
        bytes=utilization * 50e9 * (end - start),
    )


def busy(link: str, start: float, end: float) -> Stretch:
    """A stretch at line rate."""
    return Stretch(
        link=link,
        start_ns=at(start),
        end_ns=at(end),
        samples=round(end - start),
        peak_level=0,
        mean_wait_fraction=0.0,
        peak_utilization=1.0,
        mean_utilization=1.0,
        bytes=50e9 * (end - start),
    )


def errors(link: str, start: float, end: float, per_s: float) -> Stretch:
    """A stretch in which a port counts errors."""
    return Stretch(
        link=link, start_ns=at(start), end_ns=at(end), errors=per_s * (end - start), samples=1
    )


def timelines(
    wait: list[Stretch], saturated: list[Stretch] | None = None, sick: list[Stretch] | None = None
) -> dict[str, Timeline]:
    return {
        "wait": Timeline(wait),
        "busy": Timeline(saturated or []),
        "received": Timeline([]),
        "errors": Timeline(sick or []),
    }

"""A small fabric in a lake: three leaves of two hosts, one uplink each to one spine, 400 Gb/s.

The loads are worked out beside the tests that use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.pipelines.lakes import at, new_lake, put
from xtune.lake import Lake

READINGS = 20
STEP_S = 60.0
HOSTS = {"a1": "leafa", "a2": "leafa", "b1": "leafb", "b2": "leafb", "c1": "leafc", "c2": "leafc"}
NODES = {
    name: f"0x{i:016x}" for i, name in enumerate([*HOSTS, "leafa", "leafb", "leafc", "spine"])
}
#: Cable -> (near port, far port); leaves' uplinks are port 3, the spine's ports go by leaf.
PORTS = {name: (1, 1 + i % 2) for i, name in enumerate(HOSTS)}
UP = {"leafa": (3, 1), "leafb": (3, 2), "leafc": (3, 3)}


def up(name: str) -> str:
    """The link away from hosts: a host's to its leaf, or a leaf's to the spine."""
    return f"{NODES[name]}/{(PORTS | UP)[name][0]}"


def down(name: str) -> str:
    """The same cable's link back."""
    far = HOSTS.get(name, "spine")
    return f"{NODES[far]}/{(PORTS | UP)[name][1]}"


def topology() -> list[dict[str, Any]]:
    rows = []
    for name, far in {**HOSTS, **dict.fromkeys(UP, "spine")}.items():
        near_port, far_port = (PORTS | UP)[name]
        ends = [(name, near_port), (far, far_port)]
        for (src, src_port), (dst, dst_port) in (ends, ends[::-1]):
            rows.append(
                {
                    "ts": at(0), "src_guid": NODES[src], "src_port": src_port,
                    "src_name": _described(src), "dst_guid": NODES[dst], "dst_port": dst_port,
                    "dst_name": _described(dst), "rate_gbps": 400.0,
                    "tier": 0 if name in HOSTS else 1,
                }
            )  # fmt: skip
    return rows


def _described(node: str) -> str:
    return f"{node} mlx5_0" if node in HOSTS else node


def rates(
    link: str, busy: Sequence[float | None], wait: float | None = None
) -> list[dict[str, Any]]:
    return [
        {
            "ts": at((i + 1) * STEP_S), "interval_s": STEP_S, "link": link,
            "utilization": value, "wait_fraction": wait, "level": None if value is None else 0,
        }
        for i, value in enumerate(busy)
    ]  # fmt: skip


def stretch(link: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    base = {"link": link, "start_ts": at(start), "end_ts": at(end), "role": "victim"}
    name = f"{link}@{start}-{end}"
    return {"link_episode_id": name, "episode_id": "e", "cause": "incast", **base, **more}


#: Busy share of both directions of each cable. b2 has readings of one direction only, c1 is sick.
LOADS = {"a1": 0.5, "a2": 0.25, "b1": 0.125, "c1": 0.0, "c2": 0.25}
UP_LOADS = {"leafa": 0.25, "leafb": 0.5, "leafc": 0.125}


def small_lake(folder: Path) -> Lake:
    lake = new_lake(folder)
    put(lake, "topology_links", topology())
    rows = []
    for name, busy in {**LOADS, **UP_LOADS}.items():
        rows += rates(up(name), [busy] * READINGS) + rates(down(name), [busy] * READINGS)
    rows += rates(up("b2"), [0.0] * READINGS)
    put(lake, "derived/link_rates", rows)
    sick = stretch(up("c1"), 60, 120, role="root", cause="sick_link")
    put(lake, "derived/link_episodes", [sick, stretch(up("a1"), 60, 180)])
    return lake


SPAN = at(0), at(READINGS * STEP_S)

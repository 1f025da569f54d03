"""What an engineer calls a link: the node's name and port."""

from __future__ import annotations

from xtune.lake._lake import Lake


def link_names(lake: Lake) -> dict[str, str]:
    """``<node description>:<port>`` by link id, for every directed port of the topology."""
    topology = lake.read("topology_links", ["src_guid", "src_name", "src_port"])
    return {
        f"{guid}/{port}": f"{name.strip()}:{port}"
        for guid, name, port in zip(*(c.to_pylist() for c in topology.columns), strict=True)
        if guid and name and port is not None
    }

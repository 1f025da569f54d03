"""What an engineer calls a link: the node's name and port."""

from __future__ import annotations

from xtune.lake._lake import Lake


def link_names(lake: Lake) -> dict[str, str]:
    """``<node description>:<port>`` by link id, for every directed port of the topology.

    A description that several nodes have, such as a switch model's own, names none of them:
    the node's GUID then stands beside it.
    """
    topology = lake.read("topology_links", ["src_guid", "src_name", "src_port"])
    ends = [
        (guid, name.strip(), port)
        for guid, name, port in zip(*(c.to_pylist() for c in topology.columns), strict=True)
        if guid and name and port is not None
    ]
    nodes: dict[str, set[str]] = {}
    for guid, name, _ in ends:
        nodes.setdefault(name, set()).add(guid)
    shared = {name for name, guids in nodes.items() if len(guids) > 1}
    return {
        f"{guid}/{port}": f"{name} {guid}:{port}" if name in shared else f"{name}:{port}"
        for guid, name, port in ends
    }

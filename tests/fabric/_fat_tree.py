"""A two-tier fat tree as a topology file that ibsim reads."""

from __future__ import annotations

from dataclasses import dataclass

_SWITCH_GUID = 0xB8CEF60300A00000
_HOST_GUID = 0xB8CEF60300C00000
_SPINE_PORTS = 20  # a leaf's first port towards a spine
_QUANTUM2, _CONNECTX7 = 0xD2F2, 0x1021


@dataclass(frozen=True, kw_only=True, slots=True)
class FatTree:
    """Every leaf has a cable to every spine.

    Attributes:
        spines, leaves, hosts: Numbers of them; hosts are those of one leaf.
    """

    spines: int = 4
    leaves: int = 8
    hosts: int = 8

    def leaf(self, number: int) -> str:
        """Node GUID of a leaf."""
        return f"0x{_SWITCH_GUID + 0x1000 + number * 16:016x}"

    def spine(self, number: int) -> str:
        """Node GUID of a spine."""
        return f"0x{_SWITCH_GUID + number * 16:016x}"

    def host(self, number: int) -> str:
        """Node GUID of a host's adapter; its port's GUID is the next one."""
        return f"0x{_HOST_GUID + number * 16:016x}"

    def uplink(self, spine: int) -> int:
        """Port of a leaf towards a spine."""
        return _SPINE_PORTS + spine

    def host_name(self, number: int) -> str:
        """Node description; two hosts share one, and it holds commas."""
        return f"node{max(number, 1):03d}, rack {number // self.hosts} mlx5_0"

    def cables(self) -> list[tuple[str, int, str, int]]:
        """Each cable once: node GUID, port, node GUID, port."""
        found = []
        for leaf in range(self.leaves):
            for place in range(self.hosts):
                host = self.host(leaf * self.hosts + place)
                found.append((self.leaf(leaf), place + 1, host, 1))
            for spine in range(self.spines):
                found.append((self.leaf(leaf), self.uplink(spine), self.spine(spine), leaf + 1))
        return found

    def directions(self) -> set[tuple[str, int, str, int]]:
        """Each cable in both directions."""
        cables = self.cables()
        return {*cables, *((c, d, a, b) for a, b, c, d in cables)}

    def netfile(self) -> str:
        """The topology file. Its first node is where tools are attached by default."""
        names = {self.leaf(n): f"leaf{n}" for n in range(self.leaves)}
        names |= {self.spine(n): f"spine{n}" for n in range(self.spines)}
        hosts = {self.host(n): self.host_name(n) for n in range(self.leaves * self.hosts)}
        ends: dict[str, list[tuple[int, str, int]]] = {}
        for node, port, far, far_port in self.cables():
            ends.setdefault(node, []).append((port, far, far_port))
            ends.setdefault(far, []).append((far_port, node, port))
        blocks = []
        for node, name in {**names, **hosts}.items():
            is_host = node in hosts
            lines = [
                "vendid=0x2c9",
                f"devid={_CONNECTX7 if is_host else _QUANTUM2:#x}",
                f"sysimgguid={node}",
                f"{'ca' if is_host else 'switch'}guid={node}",
                f'{"Ca 1" if is_host else "Switch 36"} "{node_id(node, is_host)}"\t# "{name}"',
            ]
            for port, far, far_port in sorted(ends[node]):
                far_name = {**names, **hosts}[far]
                lines.append(
                    f'[{port}]\t"{node_id(far, far in hosts)}"[{far_port}]\t'
                    f'# "{far_name}" lid 0 4xHDR'
                )
            blocks.append("\n".join(lines) + "\n")
        return "\n".join(blocks)


def node_id(guid: str, is_host: bool) -> str:
    """How the topology file and the simulator's console call a node."""
    return f"{'H' if is_host else 'S'}-{guid[2:]}"

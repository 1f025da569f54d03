"""UDP source ports of RoCE queue pairs, by which ECMP tells their paths apart.

The arithmetic is the kernel's (``include/rdma/ib_verbs.h``: ``rdma_calc_flow_label``,
``rdma_flow_label_to_udp_sport``, ``rdma_get_udp_sport``). Drivers that follow it give a queue pair
without a flow label the port of its two numbers; a flow label set when it connects chooses the
port instead. Which path a port takes is the fabric's own hash: it is measured, or asked of the
kernel, never assumed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence

from .base import Refused, apportion, checked

PORTS = range(0xC000, 0x10000)  # IB_ROCE_UDP_ENCAP_VALID_PORT_MIN and _MAX
FLOW_LABEL_MASK = 0xFFFFF
QP_NUMBERS = 1 << 24

# Limits of the vendor's manual for HCCL_RDMA_QP_PORT_CONFIG_PATH.
HCCL_FILE = "MultiQpSrcPort.cfg"
HCCL_MOST_LINES = 131_072
HCCL_MOST_PORTS = 32


def flow_label(local_qp: int, remote_qp: int) -> int:
    """The flow label of two queue pair numbers.

    Args:
        local_qp: 24 bits.
        remote_qp: 24 bits.

    Returns:
        20 bits; 0 where a number is 0.

    Raises:
        ValueError: A number of more than 24 bits.
    """
    if not (0 <= local_qp < QP_NUMBERS and 0 <= remote_qp < QP_NUMBERS):
        raise ValueError(f"queue pair numbers have 24 bits: {local_qp}, {remote_qp}")
    value = local_qp * remote_qp
    value ^= value >> 20
    value ^= value >> 40
    return value & FLOW_LABEL_MASK


def port_of_label(label: int) -> int:
    """The UDP source port of a flow label: its high 6 bits folded onto its low 14.

    Args:
        label: 20 bits.

    Returns:
        One of `PORTS`; each is that of 64 labels.

    Raises:
        ValueError: More than 20 bits.
    """
    if not 0 <= label <= FLOW_LABEL_MASK:
        raise ValueError(f"a flow label has 20 bits: {label}")
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | PORTS.start


def label_of_port(port: int) -> int:
    """A flow label whose port this is, never 0: that would mean "none is set".

    Args:
        port: One of `PORTS`.

    Returns:
        The smallest such label.

    Raises:
        ValueError: Not one of `PORTS`.
    """
    if port not in PORTS:
        raise ValueError(f"RoCE source ports are {PORTS.start} to {PORTS.stop - 1}: {port}")
    low = port & 0x3FFF
    return low or 0x4001  # 1 folded onto 1 leaves 0


def port_of_queue_pair(label: int, local_qp: int, remote_qp: int) -> int:
    """The source port that the kernel gives a queue pair.

    Args:
        label: The flow label it was connected with, 0 for none.
        local_qp: 24 bits.
        remote_qp: 24 bits.

    Returns:
        One of `PORTS`.
    """
    return port_of_label(label or flow_label(local_qp, remote_qp))


def spread(
    shares: Sequence[float],
    count: int,
    path_of: Callable[[int], int | None],
    ports: Iterable[int] = PORTS,
) -> list[int]:
    """Source ports for queue pairs, so that the paths get their shares of them.

    Args:
        shares: One for each path.
        count: Queue pairs, at least as many as there are paths with a share.
        path_of: The path that a source port takes, as measured; None where it is not known.
        ports: Those to choose from, first come first served.

    Returns:
        ``count`` different ports, by turns over the paths so that neighbours differ.

    Raises:
        ValueError: Shares that cannot be, or fewer queue pairs than paths with a share.
        Refused: Too few ports take a path.
    """
    wanted = apportion(checked(shares, len(shares)), count)
    if any(share > 0 and not want for share, want in zip(shares, wanted, strict=True)):
        raise ValueError(f"{count} queue pairs cannot give each path with a share one: {wanted}")
    found: list[list[int]] = [[] for _ in shares]
    short = sum(1 for want in wanted if want)
    for port in ports:
        if not short:
            break
        path = path_of(port)
        if path is not None and len(found[path]) < wanted[path]:
            found[path].append(port)
            short -= len(found[path]) == wanted[path]
    if short:
        missing = [i for i, want in enumerate(wanted) if len(found[i]) < want]
        raise Refused(f"source ports: too few of them take path {missing[0]}")
    # Evenly interleaved: each path's ports at equal distances, as striping takes them in turn.
    placed = [((k + 0.5) / len(own), i, port) for i, own in enumerate(found)
              for k, port in enumerate(own)]  # fmt: skip
    return [port for _, _, port in sorted(placed)]


def hccl_file(table: Mapping[tuple[str, str], Sequence[int]]) -> str:
    """The text of HCCL's port file (``MultiQpSrcPort.cfg`` in HCCL_RDMA_QP_PORT_CONFIG_PATH).

    Args:
        table: Source ports of the queue pairs between two IPv4 addresses (own, other); 0.0.0.0
            stands for all.

    Returns:
        One line for each pair of addresses.

    Raises:
        ValueError: What the manual does not allow.
    """
    if len(table) > HCCL_MOST_LINES:
        raise ValueError(f"{len(table)} pairs of addresses; HCCL takes {HCCL_MOST_LINES}")
    lines = []
    for (own, other), ports in table.items():
        if not 1 <= len(ports) <= HCCL_MOST_PORTS:
            raise ValueError(f"{own},{other}: {len(ports)} ports; HCCL takes 1 to 32")
        if not all(1 <= port <= 65535 for port in ports):
            raise ValueError(f"{own},{other}: a port is not in 1 to 65535")
        ends = [str(ipaddress.IPv4Address(end)) for end in (own, other)]
        lines.append(f"{','.join(ends)}={','.join(map(str, ports))}\n")
    return "".join(lines)

"""Source ports of queue pairs, against the kernel's C and by counting."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xtune.policies.actuators.base import Refused
from xtune.policies.actuators.source_ports import (
    PORTS,
    flow_label,
    hccl_file,
    label_of_port,
    port_of_label,
    port_of_queue_pair,
    spread,
)

# The same arithmetic in the types that the kernel uses: 64 bits hold the product, 16 the port.
C = """
#include <stdint.h>
uint32_t label(uint32_t l, uint32_t r) {
    uint64_t v = (uint64_t)l * r; v ^= v >> 20; v ^= v >> 40; return v & 0x000FFFFF; }
uint16_t port(uint32_t fl) {
    uint32_t low = fl & 0x03FFF, high = fl & 0xFC000;
    low ^= high >> 14; return (uint16_t)(low | 0xC000); }
"""
QP = st.integers(0, 2**24 - 1)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc: not here")
    folder: Path = tmp_path_factory.mktemp("c")
    (folder / "a.c").write_text(C)
    command = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "a.so"),
        str(folder / "a.c"),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "a.so"))


def test_labels_and_ports_are_those_of_the_kernels_c(kernel: ctypes.CDLL) -> None:
    kernel.label.restype = ctypes.c_uint32
    kernel.port.restype = ctypes.c_uint16

    @settings(deadline=None)
    @given(QP, QP)
    def same(local: int, remote: int) -> None:
        label = flow_label(local, remote)
        assert label == kernel.label(local, remote)
        assert port_of_label(label) == kernel.port(label)
        assert port_of_queue_pair(0, local, remote) == kernel.port(label)
        assert port_of_queue_pair(77, local, remote) == kernel.port(77)

    same()


def test_by_hand() -> None:
    assert flow_label(1, 1) == 1 and port_of_label(1) == 0xC001
    assert flow_label(1 << 20, 1) == 1  # bit 20 folded down, then cut off
    assert flow_label(1 << 20, 1 << 20) == 1 << 0  # bit 40 by way of 20 and 0, and 20 by 0 of 40
    assert port_of_label(0x4000) == 0xC001 and port_of_label(0xFFFFF) == 0xFFC0


def test_every_port_has_a_label_and_labels_are_even_over_ports() -> None:
    counts = dict.fromkeys(PORTS, 0)
    for label in range(1 << 20):
        counts[port_of_label(label)] += 1
    assert set(counts.values()) == {64}
    assert all(port_of_label(label_of_port(port)) == port for port in PORTS)
    assert all(label_of_port(port) != 0 for port in PORTS)


@pytest.mark.parametrize("call", [
    lambda: flow_label(1 << 24, 1), lambda: flow_label(1, -1), lambda: port_of_label(1 << 20),
    lambda: label_of_port(49151), lambda: label_of_port(65536),
])  # fmt: skip
def test_out_of_range(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"bits|ports are"):
        call()


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any), st.integers(20, 40))
def test_queue_pairs_are_spread_by_the_shares(parts: list[int], count: int) -> None:
    ports = spread(parts, count, lambda port: port * 7919 % len(parts))
    assert len(set(ports)) == count and set(ports) <= set(PORTS)
    for path, part in enumerate(parts):
        got = sum(1 for port in ports if port * 7919 % len(parts) == path)
        assert abs(got - count * part / sum(parts)) < 1


def test_neighbours_take_different_paths() -> None:
    ports = spread([1, 1], 8, lambda port: port % 2)
    assert [port % 2 for port in ports] == [0, 1] * 4


def test_a_path_that_no_port_takes_is_named() -> None:
    with pytest.raises(Refused, match="too few of them take path 1"):
        spread([1, 1], 4, lambda port: 0)
    with pytest.raises(Refused, match="path 0"):
        spread([1], 1, lambda port: None)
    with pytest.raises(ValueError, match="cannot give each path"):
        spread([1, 9], 2, lambda port: port % 2)


def test_port_file_of_hccl() -> None:
    text = hccl_file({("192.0.2.1", "192.0.2.2"): [61100, 61101], ("0.0.0.0", "192.0.2.3"): [1]})
    assert text == "192.0.2.1,192.0.2.2=61100,61101\n0.0.0.0,192.0.2.3=1\n"
    for ends, ports in [
        (("2001:db8::1", "192.0.2.1"), [1]), (("192.0.2.1", "192.0.2.2"), []),
        (("192.0.2.1", "192.0.2.2"), [0]), (("192.0.2.1", "192.0.2.2"), [1] * 33),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"192\.0\.2|2001"):
            hccl_file({ends: ports})

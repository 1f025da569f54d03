"""Widths, names, rates and ticks, each worked out by hand."""

from __future__ import annotations

import pytest

from xtune.collectors import _ib
from xtune.tables import COUNTERS


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
        ("link_downed", 255),
        ("link_error_recovery", 255),
        ("port_xmit_constraint_errors", 255),
        ("port_rcv_constraint_errors", 255),
        ("symbol_error", 65535),
        ("VL15_dropped", 65535),
        ("port_xmit_discards", 65535),
        ("port_rcv_errors", 65535),
        ("port_rcv_switch_relay_errors", 65535),
        ("port_rcv_remote_physical_errors", 65535),
        ("port_xmit_wait", 4294967295),
        ("port_xmit_data", 4294967295),
        ("port_rcv_packets", 4294967295),
    ],
)
def test_a_counter_at_its_top_is_unknown_and_one_below_is_known(name: str, top: int) -> None:
    at = _ib.settle({name: top}, wide=False)
    below = _ib.settle({name: top - 1}, wide=False)
    assert at["saturated"] == [name] and name not in at
    assert below["saturated"] is None and below[name] == top - 1
    # A driver with wider counters passes the narrow maximum: then the value is a value.
    assert _ib.settle({name: top + 1}, wide=False)[name] == top + 1


def test_the_wide_set_widens_data_and_packets_but_never_the_wait() -> None:
    values = {"port_xmit_data": 2**32 - 1, "port_xmit_wait": 2**32 - 1, "symbol_error": 65535}
    row = _ib.settle(values, wide=True)
    assert row["port_xmit_data"] == 2**32 - 1
    assert row["saturated"] == ["port_xmit_wait", "symbol_error"]
    assert _ib.settle(values, wide=True, wide_errors=True)["saturated"] is None


def test_multiplied_data_saturate_at_four_times_the_words() -> None:
    # 17.18 GB: reached in 0.34 s at 400 Gb/s, so an idle-looking port is an unknown one.
    top = 4 * (2**32 - 1)
    assert top / (400e9 / 8) == pytest.approx(0.3436, abs=1e-4)
    assert _ib.settle({"port_xmit_data": top}, wide=False, unit=1)["saturated"] == [
        "port_xmit_data"
    ]
    assert _ib.settle({"port_xmit_data": 2**32 - 1}, wide=False, unit=1)["saturated"] is None


@pytest.mark.parametrize(
    ("values", "unit", "wide"),
    [
        ({"port_xmit_data": 2**32 - 1}, 4, False),
        ({"port_xmit_data": 2**32}, 4, True),
        ({"port_xmit_data": 0, "unicast_xmit_packets": 0}, 4, True),
        ({"port_xmit_data": 4 * (2**32 - 1)}, 1, False),
        ({"port_xmit_data": 4 * (2**32 - 1) + 4}, 1, True),
        ({"port_rcv_packets": 2**32}, 1, True),
        ({"symbol_error": 2**40}, 4, False),
    ],
)
def test_content_tells_the_64_bit_set(values: dict[str, int], unit: int, wide: bool) -> None:
    assert _ib.is_wide(values, unit) is wide


def test_counters_without_a_column_go_to_extra() -> None:
    row = _ib.settle({"rx_write_requests": 7, "port_xmit_data": 1}, wide=True)
    assert row["extra"] == {"rx_write_requests": 7} and row["port_xmit_data"] == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0a7f:bc12:45ef:d23b", "0x0a7fbc1245efd23b"),
        ("0x10e0000192ab51", "0x0010e0000192ab51"),
        ("B0CF0E0300D33FC0", "0xb0cf0e0300d33fc0"),
        ("0000:0000:0000:0000", None),
        ("0x", None),
        ("mlx5_0", None),
        ("0x1234567890abcdef0", None),
        (None, None),
    ],
)
def test_guid(text: str | None, wanted: str | None) -> None:
    assert _ib.guid(text) == wanted


@pytest.mark.parametrize(
    ("text", "rate", "width"),
    [
        ("400 Gb/sec (4X NDR)", 400.0, "4X"),
        ("200 Gb/sec (2X NDR)", 200.0, "2X"),  # a bond: the number counts, not the name
        ("2.5 Gb/sec (1X SDR)", 2.5, "1X"),
        ("10 Gb/sec (4X)", 10.0, "4X"),
        ("", None, None),
        ("unknown", None, None),
    ],
)
def test_sysfs_rate(text: str, rate: float | None, width: str | None) -> None:
    assert _ib.parse_rate(text) == (rate, width)


@pytest.mark.parametrize(
    ("width", "speed", "rate"),
    [
        ("4x", "NDR", 400.0),
        ("4x", "EDR", 100.0),
        ("2x", "HDR", 100.0),
        ("4x", "QDR", 40.0),
        ("4x", "???", None),
        ("??", "NDR", None),
    ],
)
def test_named_rate(width: str, speed: str, rate: float | None) -> None:
    assert _ib.rate_of(width, speed) == rate


@pytest.mark.parametrize(
    ("family", "tick", "lanes", "wanted"),
    [
        ("Quantum-2", 7, 4, 8.0),
        ("Quantum", 7, 2, 8.0),  # whatever the width
        ("ConnectX-7", 7, 4, 8.0),
        ("Switch-IB 2", 31, 4, 128.0),  # 32 byte times on each of four lanes
        ("SwitchX", 31, 1, 32.0),
        ("Switch-IB", 31, None, None),
        ("InfiniScale IV", 3, 4, None),  # no rule is known
        (None, 7, 4, None),
        ("Quantum-2", None, 4, None),
    ],
)
def test_wait_tick(
    family: str | None, tick: int | None, lanes: int | None, wanted: float | None
) -> None:
    assert _ib.xmit_wait_tick(family, tick, lanes) == wanted


@pytest.mark.parametrize(
    ("pma", "kernel"),
    [
        ("PortXmitData", "port_xmit_data"),
        ("PortXmitDataExtended", "port_xmit_data"),
        ("PortRcvPkts", "port_rcv_packets"),
        ("PortUniCastXmitPkts", "unicast_xmit_packets"),
        ("PortUnicastRcvPkts", "unicast_rcv_packets"),
        ("PortMultiCastRcvPkts", "multicast_rcv_packets"),
        ("SymbolErrorCounter", "symbol_error"),
        ("SymbolErrorCounterExt", "symbol_error"),
        ("LinkErrorRecoveryCounter", "link_error_recovery"),
        ("LinkDownedCounterExt", "link_downed"),
        ("VL15Dropped", "VL15_dropped"),
        ("VL15DroppedExt", "VL15_dropped"),
        ("PortXmitWaitExt", "port_xmit_wait"),
        ("PortRcvSwitchRelayErrorsExt", "port_rcv_switch_relay_errors"),
        ("LocalLinkIntegrityErrors", "local_link_integrity_errors"),
        ("ExcessiveBufferOverrunErrorsExt", "excessive_buffer_overrun_errors"),
        ("PortRcvRemotePhysicalErrors", "port_rcv_remote_physical_errors"),
    ],
)
def test_kernel_names(pma: str, kernel: str) -> None:
    assert _ib.kernel_name(pma) == kernel
    assert kernel in COUNTERS


def test_every_width_is_of_a_counter_with_a_column() -> None:
    assert set(_ib.WIDTHS) <= set(COUNTERS)

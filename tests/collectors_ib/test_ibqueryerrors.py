"""ibqueryerrors in its variants: what is printed is kept, what is not is unknown.

The texts are written by hand from the tool's source (infiniband-diags, ibqueryerrors.c).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import NOW, Result, claims, run_text

SUMMARY = """
## Summary: 12 nodes checked, 2 bad nodes found
##          96 ports checked, 2 ports have errors beyond threshold
## Thresholds: [SymbolErrorCounter = 10][PortXmitWait = 1000]
## Suppressed: PortRcvSwitchRelayErrors
"""
SWITCH = 'Errors for 0x2c9020040f160 "leaf "A", rack 3"\n'
LEAF = "0x0002c9020040f160"


def read(folder: Path, text: str | bytes, **context: object) -> Result:
    return run_text("ibqueryerrors", folder, text, **context)


def test_a_switch_is_known_by_its_node_and_the_sum_of_its_ports_is_no_port(
    tmp_path: Path,
) -> None:
    text = (
        SWITCH
        + "   GUID 0x2c9020040f160 port ALL: [SymbolErrorCounter == 12] [PortXmitWait == 90]\n"
        + "   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == 12]\n"
        + "   GUID 0x2c9020040f160 port 36: [PortXmitWait == 90]\n"
        + SUMMARY
    )
    result = read(tmp_path, text)
    assert {
        (r["link"], r["node_guid"], r["symbol_error"], r["port_xmit_wait"])
        for r in result.counters
    } == {
        (f"{LEAF}/3", LEAF, 12, None),
        (f"{LEAF}/36", LEAF, None, 90),
    }
    assert {r["node_description"] for r in result.rows("ports")} == {'leaf "A", rack 3'}
    assert result.notes["sum over all ports of a switch (port ALL): left out"] == 1
    assert any("12 nodes and 96 ports were checked" in text for text in result.notes)
    assert not result.rejects


def test_an_adapter_is_known_by_its_ports_guid_and_that_is_said(tmp_path: Path) -> None:
    text = (
        'Errors for "exa01 S 192.168.11.110,192.168.11.111 HCA-1"\n'
        "   GUID 0x10e0000192ab51 port 1: [VL15Dropped == 232] [PortXmitWait == 4294967295]\n"
    )
    (row,) = read(tmp_path, text).counters
    assert row["link"] == "0x0010e0000192ab51/1" and row["node_guid"] is None
    assert row["labels"] == {"port_guid": "0x0010e0000192ab51"}
    assert row["VL15_dropped"] == 232
    assert row["port_xmit_wait"] is None and row["saturated"] == ["port_xmit_wait"]
    (port,) = read(tmp_path, text).rows("ports")
    assert port["port_guid"] == "0x0010e0000192ab51" and port["node_guid"] is None
    assert port["node_description"] == "exa01 S 192.168.11.110,192.168.11.111 HCA-1"


@pytest.mark.parametrize(
    ("printed", "kernel", "value", "kept"),
    [
        ("SymbolErrorCounter == 65535", "symbol_error", 65535, None),
        ("SymbolErrorCounter == 65535 (63.999K)", "symbol_error", 65535, 65535),
        ("LinkDownedCounter == 255", "link_downed", 255, None),
        ("LinkDownedCounter == 255 (255.000)", "link_downed", 255, 255),
        ("PortXmitWait == 14681376621 (13.673G)", "port_xmit_wait", 14681376621, 14681376621),
        ("PortXmitDiscards == 2846 (2.779K)", "port_xmit_discards", 2846, 2846),
        ("LinkRecovers == 7", "link_error_recovery", 7, 7),  # before 2011
        ("PortXmitData == 6250000000 (23.283GB)", "port_xmit_data", 0, 6250000000),
        ("PortXmitData == 4294967295 (16.000GB)", "port_xmit_data", 0, None),
    ],
)
def test_words_behind_a_value_tell_its_width(
    printed: str, kernel: str, value: int, kept: int | None, tmp_path: Path
) -> None:
    (row,) = read(tmp_path, f"{SWITCH}   GUID 0x2c9020040f160 port 4: [{printed}]\n").counters
    assert row[kernel] == kept  # the number is raw: words of 4 octets, whatever is in brackets
    assert row["saturated"] == ([] if kept is not None else [kernel])
    assert row["data_unit_bytes"] == 4


def test_data_counters_of_every_port_are_by_node(tmp_path: Path) -> None:
    line = (
        "   GUID 0x{0:x} port {1}: [PortXmitData == {2} (24.412MB)] [PortRcvData == 0 (0.000B)]"
        " [PortXmitPkts == 9 (9.000)] [PortRcvPkts == 0 (0.000)]"
        " [PortUnicastXmitPkts == 4 (4.000)] [PortUnicastRcvPkts == 0 (0.000)]"
        " [PortMulticastXmitPkts == 5 (5.000)]"
        " [PortMulticastRcvPkts == 0 (0.000)]\n"
    )
    text = 'Data Counters for 0xc0 "node mlx5_0"\n' + line.format(0xC0, 1, 2**32 - 1)
    text += 'Data Counters for 0xa1 "leaf"\n' + line.format(0xA1, 7, 6_400_000) + SUMMARY
    result = read(tmp_path, text, time_from="now")
    rows = {r["link"]: r for r in result.counters}
    adapter = rows["0x00000000000000c0/1"]
    assert adapter["node_guid"] == "0x00000000000000c0"
    # The unicast counters are of the 64-bit set only, so this is a value, not a full counter.
    assert adapter["port_xmit_data"] == 2**32 - 1 and adapter["port_rcv_data"] == 0
    leaf = rows["0x00000000000000a1/7"]
    assert leaf["port_xmit_data"] == 6_400_000 and leaf["multicast_xmit_packets"] == 5
    assert leaf["ts"] == NOW and leaf["symbol_error"] is None


LINK = (
    "       Link info:      4   7[  ] ==( 4X       106.25 Gbps Active/  LinkUp)==>"
    '  0x00000000000000c1      9    1[  ] "node, 1 mlx5_0" ( )\n'
)


def test_a_link_line_gives_the_ports_link_rate_and_neighbour(tmp_path: Path) -> None:
    text = 'Errors for 0xa1 "leaf"\n   GUID 0xa1 port 7: [PortXmitWait == 90]\n' + LINK
    text += "   GUID 0xa1 port 8: [LinkDownedCounter == 1]\n"
    text += "       Link info:      4   8[  ] ==(              Down/ Polling)==>"
    text += '             [  ] "" ( )\n'
    result = read(tmp_path, text)
    assert not result.rejects
    rows = {r["port"]: r for r in result.counters}
    assert rows[7]["rate_gbps"] == 400.0 and rows[8]["rate_gbps"] is None
    ports = {r["port"]: r for r in result.rows("ports")}
    assert (ports[7]["state"], ports[7]["width"], ports[7]["extra"]) == (
        "ACTIVE",
        "4X",
        {"lid": "4"},
    )
    assert (ports[8]["state"], ports[8]["width"]) == ("DOWN", None)
    leaf, far = ("0x00000000000000a1", 7), ("0x00000000000000c1", 1)
    assert {end: (r["dst_guid"], r["dst_port"]) for end, r in result.links.items()} == {
        leaf: far,
        far: leaf,
    }
    assert result.links[leaf]["extra"] == {"dst_guid_is": "port"}
    assert result.links[leaf]["dst_name"] == "node, 1 mlx5_0"
    assert {r["rate_gbps"] for r in result.links.values()} == {400.0}


def test_a_link_line_of_another_port_is_refused(tmp_path: Path) -> None:
    text = f"{SWITCH}   GUID 0x2c9020040f160 port 6: [PortXmitWait == 90]\n{LINK}"
    result = read(tmp_path, text)
    assert len(result.rejects) == 1 and not result.rows("topology_links")
    assert result.counters[0]["rate_gbps"] is None


def test_no_errors_is_a_fabric_that_was_checked_not_an_empty_file(tmp_path: Path) -> None:
    result = read(tmp_path, SUMMARY)
    assert not result.tables and not result.rejects
    assert list(result.notes) == [
        "12 nodes and 96 ports were checked: those without errors are not printed"
    ]


NOISE = (
    "src/query_smp.c:195; umad (DR path slid 0; dlid 0; 0,1,13,9,15 Attr 0x11:0) bad status 110;"
    " Connection timed out\n"
    "ibwarn: [24] print_errors: IB_GSI_PORT_COUNTERS query failed on leaf, Lid 4 port 3\n"
)


def test_the_error_stream_between_the_lines_changes_nothing(tmp_path: Path) -> None:
    lines = (
        SWITCH + "   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == 12]\n" + SUMMARY
    ).splitlines(keepends=True)
    result = read(tmp_path, NOISE + NOISE.join(lines))
    assert [r["symbol_error"] for r in result.counters] == [12]
    assert result.counters[0]["node_guid"] == LEAF and not result.rejects
    alone = read(tmp_path, NOISE)
    assert not alone.tables and not alone.rejects
    path = tmp_path / "input"
    assert max(claims(path).items(), key=lambda c: c[1])[0] == "ibqueryerrors"


def test_details_are_named_by_the_counter_before_them(tmp_path: Path) -> None:
    """The tool prints the right numbers under the other attribute's names."""
    text = (
        f"{SWITCH}   GUID 0x2c9020040f160 port 1: [PortRcvErrors == 3] [PortInactiveDiscards == 3]"
        " [PortXmitDiscards == 17] [PortLocalPhysicalErrors == 5] [PortDLIDMappingErrors == 65535]"
        " [PortXmitWait == 9]\n"
    )
    (row,) = read(tmp_path, text).counters
    assert row["extra"] == {"port_local_physical_errors": 3, "port_inactive_discards": 5}
    assert row["saturated"] == ["port_sw_hoqlifetime_limit_discards"]
    assert (row["port_rcv_errors"], row["port_xmit_discards"], row["port_xmit_wait"]) == (3, 17, 9)


def test_a_loop_gives_a_row_a_run_with_the_time_it_prints(tmp_path: Path) -> None:
    run = SWITCH + "   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == {}]\n" + SUMMARY
    text = "".join(f"2025-08-06T16:1{n}:00Z\n" + run.format(20 + n) for n in range(3))
    rows = read(tmp_path, text).counters
    assert [r["symbol_error"] for r in rows] == [20, 21, 22]
    assert [rows[n]["ts"] - rows[0]["ts"] for n in range(3)] == [0, 60 * 10**9, 120 * 10**9]
    rows = read(tmp_path, run.format(1) + run.format(2), time_from="now").counters
    assert [r["ts"] for r in rows] == [None, NOW]


def test_a_port_without_its_header_keeps_its_guid(tmp_path: Path) -> None:
    (row,) = read(
        tmp_path, " GUID 0x1070fd0300370ea2 port 4: [PortRcvErrors == 26 (26.000)]\n"
    ).counters
    assert row["link"] == "0x1070fd0300370ea2/4" and row["node_guid"] is None
    # Something foreign between header and port: whose port it is, is no longer known.
    text = f"{SWITCH}--- 8< ---\n   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == 12]\n"
    (row,) = read(tmp_path, text).counters
    assert row["node_guid"] is None


def test_a_damaged_line_costs_what_follows_in_it(tmp_path: Path) -> None:
    text = f"{SWITCH}   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == 12] [PortXmitWait == 9"
    result = read(tmp_path, text)
    (row,) = result.counters
    assert row["symbol_error"] == 12 and row["port_xmit_wait"] is None
    assert len(result.rejects) == 1 and result.rejects[0].offset.startswith("line 2 ")
    assert read(tmp_path, "nothing of it\n").rejects
    unknown = read(tmp_path, f"{SWITCH}   GUID 0x2c9020040f160 port 3: [PortNovelErrors == 1]\n")
    assert unknown.unknown == {"PortNovelErrors": 1}
    assert unknown.counters[0]["extra"] == {"port_novel_errors": 1}


WHOLE = (
    SWITCH
    + "   GUID 0x2c9020040f160 port 3: [SymbolErrorCounter == 12] [PortXmitWait == 90]\n"
    + 'Errors for 0xa1 "leaf"\n   GUID 0xa1 port 7: [PortXmitWait == 96]\n'
    + LINK
    + SUMMARY
)


def test_a_file_cut_anywhere_gives_no_other_value(tmp_path: Path) -> None:
    def values(result: Result) -> set[tuple[str, str, object]]:
        return {
            (r["link"], name, r[name])
            for r in result.counters
            for name in ("symbol_error", "port_xmit_wait")
            if r[name] is not None
        }

    whole = values(read(tmp_path, WHOLE))
    assert len(whole) == 3
    for cut in range(len(WHOLE)):
        assert values(read(tmp_path, WHOLE[:cut])) <= whole


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_bytes_never_raise(data: st.DataObject) -> None:
    raw = bytearray(WHOLE.encode())
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        result = read(Path(folder), bytes(raw))
    assert all(0 <= row["port"] < 255 for row in result.counters)

"""A small db_csv, and the dumps beside it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import NOW, claims, run_text
from tests.hostile.seeds import SEEDS

STARTED = 1_743_464_598_000_000_000  # 2025-03-31 23:43:18 UTC
SWITCH, OLD, HOST = "0x00000000000000a1", "0x00000000000000b1", "0x00000000000000c1"
TOP = 2**32 - 1
HEADER = (
    "NodeGUID,PortGUID,PortNumber,LinkDownedCounter,SymbolErrorCounter,PortXmitData,PortXmitWait,"
    "PortXmitDataExtended,PortXmitWaitExt,SymbolErrorCounterExt,retransmission_per_sec,"
    " max_retransmission_rate,PortLoopingErrors"
)


def section(name: str, header: str, *rows: str) -> str:
    return "\n".join([f"START_{name}", header, *rows, f"END_{name}", "", ""])


RUN = section(
    "RUN_INFO",
    "IBDIAGNET_Version,Date,Args",
    '"IBDIAGNET 2.10.0","2025-03-31 23:43:18 UTC +0000",""',
)
NODES = section(
    "NODES",
    "NodeDesc,NumPorts,NodeType,NodeGUID,PortGUID,DeviceID",
    f'"leaf, with a comma",65,2,{SWITCH},{SWITCH},54002',
    f'"old leaf ",36,2,{OLD},{OLD},53000',
    f'"h1 mlx5_0",1,1,{HOST},{HOST},4129',
)
PORTS = section(
    "PORTS",
    "NodeGuid,PortGuid,PortNum,LinkWidthActv,LinkSpeedActv,PortState",
    f"{SWITCH},{SWITCH},0,2,1,4",
    f"{SWITCH},{SWITCH},1,2,2052,4",
    f"{SWITCH},{SWITCH},2,16,2048,4",
    f"{OLD},{OLD},1,2,513,4",
    f"{HOST},{HOST},1,2,2048,4",
    f"{HOST},{HOST},2,N/A,N/A,N/A",
)
TICKS = section(
    "PM_PORT_SAMPLES_CONTROL",
    "NodeGUID,PortGUID,PortNumber,Tick,CounterWidth",
    f"{SWITCH},{SWITCH},1,0x07,0x04",
    f"{SWITCH},{SWITCH},2,0x07,0x04",
    f"{OLD},{OLD},1,0x1f,0x04",
    f"{HOST},{HOST},1,0x07,0x04",
)
INFO = section(
    "PM_INFO",
    HEADER,
    f"{SWITCH},{SWITCH},1,3,65535,{TOP},{TOP},5000000000,6000000000,70000,0x0,0x0,-1",
    f"{SWITCH},{SWITCH},2,255,12,{TOP},{TOP},N/A,NA,-1,0xfffffffffffffffe,0x0,4",
    f"{OLD},{OLD},1,0,0,10,20,10,20,0,0x0,0x0,0",
    f"{HOST},{HOST},1,0,0,7,8,7,9,0,0x0,0x0,0",
)
DELTA = section(
    "PM_DELTA",
    HEADER,
    f"{SWITCH},{SWITCH},1,0,0,0,0,281341883,500,0,0xfffffffffffffffe,0x0,-1",
    f"{SWITCH},{SWITCH},2,0,0,0,0,N/A,NA,-1,0xfffffffffffffffe,0x0,0",
    f"{OLD},{OLD},1,0,0,11,5,11,5,0,0x0,0x0,0",
)
LINKS = section(
    "LINKS",
    "NodeGuid1,PortNum1,NodeGuid2,PortNum2",
    f"{SWITCH},1,{HOST},1",
    f"{SWITCH},2,{OLD},1",
)
WHOLE = (
    "# INDEX_TABLE offset: 1, line: 2\n\n\n" + RUN + NODES + PORTS + TICKS + INFO + DELTA + LINKS
)


def test_absolute_counters(tmp_path: Path) -> None:
    result = run_text("ibdiagnet", tmp_path, WHOLE)
    rows = {r["link"]: r for r in result.counters if r["interval_s"] is None}
    assert set(rows) == {f"{SWITCH}/1", f"{SWITCH}/2", f"{OLD}/1", f"{HOST}/1"}
    row = rows[f"{SWITCH}/1"]
    # The 64-bit fields are known where the 32-bit ones stick: they alone count.
    assert (row["port_xmit_data"], row["port_xmit_wait"]) == (5_000_000_000, 6_000_000_000)
    assert (row["symbol_error"], row["link_downed"], row["saturated"]) == (70000, 3, [])
    assert (row["ts"], row["node_guid"], row["port"]) == (STARTED, SWITCH, 1)
    assert (row["rate_gbps"], row["data_unit_bytes"]) == (400.0, 4)
    assert "port_looping_errors" not in row["extra"]  # -1 is no value
    assert not [n for n in row["extra"] if "retransmission" in n]  # a rate is no counter
    assert result.rejects == []


def test_sentinels_leave_the_narrow_field_which_can_stick(tmp_path: Path) -> None:
    rows = run_text("ibdiagnet", tmp_path, WHOLE).counters
    row = next(r for r in rows if r["link"] == f"{SWITCH}/2" and r["interval_s"] is None)
    assert set(row["saturated"]) == {"link_downed", "port_xmit_data", "port_xmit_wait"}
    assert (row["port_xmit_data"], row["port_xmit_wait"], row["link_downed"]) == (None,) * 3
    assert (row["symbol_error"], row["extra"]) == (12, {"port_looping_errors": 4})


def test_deltas_have_their_interval_and_come_after(tmp_path: Path) -> None:
    result = run_text("ibdiagnet", tmp_path, WHOLE)
    rows = {r["link"]: r for r in result.counters if r["interval_s"] is not None}
    row = rows[f"{SWITCH}/1"]
    assert (row["interval_s"], row["ts"]) == (1.0, STARTED + 10**9)
    # 281,341,883 words in 1 s are 9.0 Gb/s, where the 32-bit field shows an idle port.
    assert row["port_xmit_data"] * 4 * 8 / 1e9 == pytest.approx(9.003, abs=1e-3)
    assert (row["port_xmit_wait"], row["xmit_wait_tick"]) == (500, 8.0)
    # Without a 64-bit field, a delta of 0 at the maximum says nothing.
    stuck = rows[f"{SWITCH}/2"]
    assert set(stuck["saturated"]) == {"link_downed", "port_xmit_data", "port_xmit_wait"}
    assert stuck["port_xmit_data"] is None and stuck["symbol_error"] == 0
    assert result.notes["PM_DELTA spans ibdiagnet's default pause of 1 s"] == 3


def test_a_delta_that_ends_at_the_maximum_is_unknown(tmp_path: Path) -> None:
    header = "NodeGUID,PortGUID,PortNumber,PortXmitData,PortRcvData"
    info = section("PM_INFO", header, f"{HOST},{HOST},1,{TOP - 5},{TOP - 5}")
    delta = section("PM_DELTA", header, f"{HOST},{HOST},1,5,4")
    row = run_text("ibdiagnet", tmp_path, RUN + info + delta).counters[1]
    assert (row["port_xmit_data"], row["port_rcv_data"]) == (None, 4)
    assert row["saturated"] == ["port_xmit_data"]


@pytest.mark.parametrize(
    ("arguments", "interval"), [("--pm_pause_time 10", 10.0), ("--pm_pause_time=5 -P all=1", 5.0)]
)
def test_the_pause_of_the_run_is_the_interval(
    tmp_path: Path, arguments: str, interval: float
) -> None:
    text = WHOLE.replace('+0000",""', f'+0000","{arguments}"')
    result = run_text("ibdiagnet", tmp_path, text)
    deltas = [r for r in result.counters if r["interval_s"] is not None]
    assert {r["interval_s"] for r in deltas} == {interval} and not result.notes
    assert {r["ts"] for r in deltas} == {STARTED + round(interval * 1e9)}


def test_ticks_by_family(tmp_path: Path) -> None:
    rows = {
        r["link"]: r["xmit_wait_tick"] for r in run_text("ibdiagnet", tmp_path, WHOLE).counters
    }
    assert rows[f"{SWITCH}/1"] == rows[f"{SWITCH}/2"] == 8.0  # Quantum-2, four lanes or two
    assert rows[f"{OLD}/1"] == (31 + 1) * 4  # Switch-IB 2
    assert rows[f"{HOST}/1"] == 8.0


def test_ports_and_links(tmp_path: Path) -> None:
    result = run_text("ibdiagnet", tmp_path, WHOLE)
    ports = {p["link"]: p for p in result.rows("ports")}
    assert f"{SWITCH}/0" not in ports  # the management port
    assert ports[f"{SWITCH}/1"]["node_description"] == "leaf, with a comma"
    assert (ports[f"{SWITCH}/2"]["width"], ports[f"{SWITCH}/2"]["rate_gbps"]) == ("2X", 200.0)
    assert (ports[f"{OLD}/1"]["rate_gbps"], ports[f"{OLD}/1"]["state"]) == (100.0, "ACTIVE")
    nothing = ports[f"{HOST}/2"]
    assert [nothing[name] for name in ("state", "width", "rate_gbps")] == [None, None, None]
    assert {k[0]: (r["dst_guid"], r["tier"]) for k, r in result.links.items() if k[1] == 1} == {
        SWITCH: (HOST, 0),
        HOST: (SWITCH, 0),
        OLD: (SWITCH, 1),
    }


def test_sections_in_another_order_and_gzip_say_the_same(tmp_path: Path) -> None:
    wanted = run_text("ibdiagnet", tmp_path, WHOLE)
    shuffled = LINKS + DELTA + INFO + TICKS + PORTS + NODES + RUN
    found = run_text("ibdiagnet", tmp_path, gzip.compress(shuffled.encode()))

    def keyed(rows: list[dict[str, object]]) -> list[str]:
        return sorted(repr(sorted(r.items(), key=str)) for r in rows)

    for table in ("ports", "link_counters", "topology_links"):
        if table == "link_counters":  # what sticks is known from PM_INFO, wherever it stands
            continue
        assert keyed(found.rows(table)) == keyed(wanted.rows(table))
    absolute = [r for r in wanted.counters if r["interval_s"] is None]
    assert keyed([r for r in found.counters if r["interval_s"] is None]) == keyed(absolute)


def test_missing_sections_leave_what_is_there(tmp_path: Path) -> None:
    no_counters = run_text("ibdiagnet", tmp_path, RUN + NODES + PORTS + LINKS)
    assert no_counters.counters == [] and len(no_counters.rows("ports")) == 5
    assert any("left port counters out" in text for text in no_counters.notes)
    only_counters = run_text("ibdiagnet", tmp_path, INFO)
    row = only_counters.counters[0]
    assert (row["rate_gbps"], row["xmit_wait_tick"], row["ts"]) == (None, None, None)
    assert row["port_xmit_data"] == 5_000_000_000
    assert run_text("ibdiagnet", tmp_path, INFO, time_from="now").counters[0]["ts"] == NOW


def test_bad_rows_cost_themselves_only(tmp_path: Path) -> None:
    good = f"{HOST},{HOST},1,0,0,7,8,7,9,0,0x0,0x0,0"
    rows = [
        good,
        f"{HOST},{HOST},2,0,0",
        f"nonsense,{HOST},1,0,0,7,8,7,9,0,0x0,0x0,0",
        f"{HOST},{HOST},3,oops,0,7,8,7,9,0,0x0,0x0,0",
        good.replace(",1,", ",4,", 1),
    ]
    result = run_text("ibdiagnet", tmp_path, RUN + section("PM_INFO", HEADER, *rows))
    assert [r["port"] for r in result.counters] == [1, 3, 4]
    assert result.counters[1]["link_downed"] is None
    reasons = " | ".join(r.reason for r in result.rejects)
    assert len(result.rejects) == 3
    assert "LinkDownedCounter=oops" in reasons and "5 cells where PM_INFO has 13" in reasons


def test_cut_files_keep_what_came_before(tmp_path: Path) -> None:
    cut = WHOLE[: WHOLE.index(f"{OLD},{OLD},1,0,0,10")]
    result = run_text("ibdiagnet", tmp_path, cut)
    assert len(result.counters) == 2
    assert "ends inside section PM_INFO" in result.rejects[-1].reason
    packed = gzip.compress(WHOLE.encode())
    damaged = run_text("ibdiagnet", tmp_path, packed[: len(packed) - 40])
    assert any("the bytes end here" in r.reason for r in damaged.rejects)


def test_claims(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (WHOLE.encode(), gzip.compress(WHOLE.encode()), RUN.encode()):
        path.write_bytes(data)
        assert max(claims(path).items(), key=lambda c: c[1])[0] == "ibdiagnet"


BANNER = (
    "# This database file was automatically generated by IBDIAG\n"
    "# Running timestamp : 2025-03-31 23:43:18 UTC +0000\n\n"
    "# Switch label port numbering explanation:\n#   Quantum2 switch: ASIC/Cage/Port\n\n"
)


def test_lst_numbers_are_hexadecimal(tmp_path: Path) -> None:
    ends = (
        "{ CA Ports:01 SystemGUID:c1 NodeGUID:00000000000000c1 PortGUID:00000000000000c2 "
        "VenID:000002c9 DevID:1021 Rev:00000000 {h1 {mlx5_0} LID:00b5 PN:01 } "
        "{ SW Ports:41 SystemGUID:a1 NodeGUID:00000000000000a1 PortGUID:00000000000000a1 "
        "VenID:000002c9 DevID:d2f2 Rev:000000a0 {leaf} LID:00b6 PN:3f } "
        "PHY=4x LOG=ACT SPD=100\n"
    )
    result = run_text("ibdiagnet_dump", tmp_path, BANNER + ends + ends[:80])
    assert set(result.links) == {(HOST, 1), (SWITCH, 63)}
    row = result.links[SWITCH, 63]
    assert (row["dst_name"], row["rate_gbps"], row["tier"]) == ("h1 {mlx5_0", 400.0, 0)
    ports = {p["link"]: p for p in result.rows("ports")}
    assert ports[f"{HOST}/1"]["port_guid"] == "0x00000000000000c2"
    assert ports[f"{SWITCH}/63"]["device_family"] == "Quantum-2"
    assert len(result.rejects) == 1


def test_net_dump(tmp_path: Path) -> None:
    head = (
        "  #          : IB# : Sta  : PhysSta    : MTU : LWA     : LSA     : FEC mode : Retran "
        ": Neighbor Guid      : N#         : NLID : Neighbor Description\n"
    )
    tail = "RS_FEC   : NO-RTR : "
    text = (
        BANNER
        + f'"leaf", Mellanox, {SWITCH}, LID 24\n{head}'
        + f"  1/1/1      : 1   : ACT  : LINK UP    : 5   : 4x      : 100     : {tail}{HOST} "
        + ': B184D0F0/0/0/1 : 156  : "h1: mlx5_0"\n'
        + f"  1/16/1     : 31  : ACT  : LINK UP    : 5   : 4x      : 100     : {tail}{OLD} "
        + ': 1/2/1      : 9  : "spine"\n'
        + "  1/17/1     : 33  : DOWN : POLL       : N/A : N/A     : N/A     : N/A      : N/A    "
        + ":                    :            :      : \n\n"
        + f'"spine", Mellanox, {OLD}, LID 9\n{head}'
        + f"  1/2/1      : 3   : ACT  : LINK UP    : 5   : 4x      : 100     : {tail}{SWITCH} "
        + ': 1/16/1     : 24  : "leaf"\n'
    )
    result = run_text("ibdiagnet_dump", tmp_path, text)
    assert result.rejects == []
    links = {(r["src_guid"], r["src_port"]): r for r in result.rows("topology_links")}
    # A label is a port number only where the neighbour's block says so.
    assert (links[SWITCH, 31]["dst_port"], links[SWITCH, 31]["tier"]) == (3, 1)
    assert (links[SWITCH, 1]["dst_port"], links[SWITCH, 1]["tier"]) == (None, 0)
    assert links[OLD, 3]["dst_port"] == 31 and len(links) == 3
    ports = {p["link"]: p for p in result.rows("ports")}
    assert (ports[f"{SWITCH}/33"]["state"], ports[f"{SWITCH}/33"]["rate_gbps"]) == ("DOWN", None)
    assert ports[f"{SWITCH}/1"]["ts"] == STARTED


def test_net_dump_ext_links_by_lid_and_error_rates(tmp_path: Path) -> None:
    columns = [
        "Ty : #              : #IB : GUID : LID          : Sta  : PhysSta : LWA     : LSA     ",
        "Conn LID (#)        : FEC mode : RTR    : Raw BER : Effective BER : Symbol BER ",
        "Symbol Err : Effective Err : Node Desc",
    ]
    host = [
        f"CA : B184D0F0/0/0/1 : 1   : {HOST} : 156  (0x9c ) : ACT  : LINK UP : 4x : 100     ",
        "24    (1/1/1)       : RS_FEC   : NO-RTR : 3.5e-07 : 15e-255       :            ",
        '0          :               : "h1 mlx5_0"',
    ]
    switch = [
        f"SW : 1/1/1          : 1   : {SWITCH} : 24   (0x18 ) : ACT  : LINK UP : 4x : 100     ",
        "156   (B184D0F0/0/0/1) : RS_FEC : NO-RTR :      :               :            ",
        '           :               : "leaf"',
    ]
    text = BANNER + "\n".join(": ".join(line) for line in (columns, host, switch)) + "\n"
    result = run_text("ibdiagnet_dump", tmp_path, text)
    assert result.rejects == []
    assert {k: r["dst_port"] for k, r in result.links.items()} == {(HOST, 1): 1, (SWITCH, 1): 1}
    (signal,) = result.rows("link_signal")
    # 15e-255 is the tool's way to say that no error was seen: a bound, not a rate of 0.
    assert (signal["link"], signal["raw_ber"]) == (f"{HOST}/1", 3.5e-7)
    assert signal["effective_ber"] is None
    assert signal["extra"] == {"effective_ber_is": "no error observed"}


def test_other_dumps_say_why_they_hold_nothing(tmp_path: Path) -> None:
    result = run_text("ibdiagnet_dump", tmp_path, BANNER + "Max Values:\nMax Rcv RN Pkt: 0\n")
    assert result.tables == {} and "ibdiagnet2.db_csv" in result.rejects[0].hint
    path = tmp_path / "input"
    assert claims(path) == {"ibdiagnet_dump": 0.5}


def test_a_neighbour_without_a_description_has_no_name(tmp_path: Path) -> None:
    text = SEEDS["ibdiagnet_dump"].inputs[1].decode()
    at = text.index("0x00000000000000c1")
    text = text[: text.index(' : "', at)] + " : \n"
    rows = run_text("ibdiagnet_dump", tmp_path, text).rows("topology_links")
    assert rows
    assert "" not in {row[end] for row in rows for end in ("src_name", "dst_name")}

"""UFM telemetry: three generations of names, CSV appended to CSV, JSON of any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import claims, damaged, run, run_text
from tests.samples import samples
from xtune.collectors import ufm

GUID = "0x0c42a103007ab890"
AT = 1_709_652_347_161_873_000
CSV = f"""\
timestamp,source_id,tag,node_guid,port_guid,port_num,PortXmitDataExtended,PortXmitData,\
PortXmitWaitExtended,SymbolErrorCounter,phy_effective_errors,CableInfo.Temperature,Raw_BER,\
Effective_BER,hist0,hist1,phy_raw_errors_lane0,snr_media_lane_0,fec_mode_active
1709652347161873,{GUID},,{GUID},{GUID},4,100,4294967295,5,65535,3,61C,1.5E-10,15E-255,44,2,9,20.5,2
timestamp,source_id,tag,node_guid,port_guid,port_num,PortRcvDataExtended
1709652348161873,{GUID},,{GUID},{GUID},4,77
1709652349161873,{GUID},,{GUID},{GUID},4
1709652349161873,{GUID},,,{GUID},4,78
1709652349161873,{GUID},,{GUID},{GUID},4,bad
"""


def test_csv_endpoint(tmp_path: Path) -> None:
    result = run_text("ufm", tmp_path, CSV)
    first, second = result.counters
    assert (first["ts"], first["link"], first["port"]) == (AT, f"{GUID}/4", 4)
    # The 64-bit field counts, and the 16-bit one beside it has stuck.
    assert (first["port_xmit_data"], first["port_xmit_wait"]) == (100, 5)
    assert (first["saturated"], first["data_unit_bytes"]) == (["symbol_error"], 4)
    assert first["extra"] == {"phy_effective_errors": 3}
    assert (second["ts"], second["port_rcv_data"]) == (AT + 10**9, 77)
    whole, lane = result.rows("link_signal")
    assert (whole["raw_ber"], whole["effective_ber"]) == (1.5e-10, None)
    assert (whole["fec_bins"], whole["temperature"]) == ([44, 2], 61.0)
    assert whole["extra"]["effective_ber_is"] == "no error observed"
    assert (lane["lane"], lane["snr"]) == (0, 20.5)
    assert lane["extra"]["phy_raw_errors"] == "9"
    assert len(result.rows("ports")) == 1
    reasons = [reject.reason for reject in result.rejects]
    assert [r.split()[0] for r in reasons] == ["6", "a", "not"], reasons


def test_labels_of_the_low_frequency_set(tmp_path: Path) -> None:
    text = (
        "timestamp,source_id,tag,Node_GUID,Port_Number,Total_Raw_BER,Link_Down,hist0,hist1,"
        "Module_Temperature,Chip_Temp,Raw_Errors_Lane_1,node_description\n"
        f"1709652347161873,x,,{GUID},36,2e-9,7,1,N/A,55,40,12,leaf 3\n"
    )
    result = run_text("ufm", tmp_path, text)
    assert result.counters[0]["link_downed"] == 7
    whole, lane = result.rows("link_signal")
    assert (whole["raw_ber"], whole["fec_bins"], whole["temperature"]) == (2e-9, [1], 55.0)
    assert whole["extra"] == {"Chip_Temp": "40"}  # the switch's, not the module's
    assert (lane["lane"], lane["extra"]) == (1, {"raw_errors": "12"})
    assert result.rows("ports")[0]["node_description"] == "leaf 3"


def record(**more: object) -> dict[str, object]:
    return {
        "timestamp": 1709652347161873,
        "node_guid": GUID,
        "port_guid": GUID,
        "port_num": 1,
        **more,
    }


@pytest.mark.shared_samples
def test_data_under_infiniband_names_is_in_bytes() -> None:
    path = samples("ib_ufm_telemetry", "small_telemetry.json")
    assert claims(path) == {"ufm": 0.95}
    result = run("ufm", path)
    told = json.loads(path.read_text())["values"]
    for row, value in zip(result.counters, told, strict=True):
        assert row["port_xmit_data"] == value["Infiniband_MBOut_u_Gb"]
        assert row["port_rcv_packets"] == value["Infiniband_PckIn_u_Packets"]
        assert (row["ts"], row["data_unit_bytes"]) == (1_709_652_347_161_873_000, 1)
        # Nothing runs on that fabric but management: packets of 256 octets in
        # LRH 8 + BTH 12 + DETH 8 + ICRC 4; both counters are read a moment apart.
        mean = row["port_xmit_data"] / row["port_xmit_packets"]
        assert mean == pytest.approx(256 + 8 + 12 + 8 + 4, rel=1e-4)
    assert result.counters[2]["port_rcv_switch_relay_errors"] == 18
    assert result.counters[0]["extra"]["hist0_u_count"] == 0


def test_the_user_may_say_otherwise(tmp_path: Path) -> None:
    text = json.dumps({"values": [record(Infiniband_MBOut_u_Gb=72)]})
    result = run_text("ufm", tmp_path, text, column_map={"data_unit_bytes": "4"})
    assert result.counters[0]["data_unit_bytes"] == 4


def test_json_larger_than_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ufm, "_CHUNK", 64)
    odd = 'braces { } and "quotes" \\ é'
    values = [record(Infiniband_PckOut_u_Packets=n, node_description=odd) for n in range(50)]
    whole = json.dumps({"timestamp": "2024-03-05 16:26:11", "values": values}, ensure_ascii=False)
    result = run_text("ufm", tmp_path, whole)
    assert [row["port_xmit_packets"] for row in result.counters] == list(range(50))
    assert result.rows("ports")[0]["node_description"] == odd
    cut = run_text("ufm", tmp_path, whole[: len(whole) // 2])
    assert [r["port_xmit_packets"] for r in cut.counters] == list(range(len(cut.counters)))
    assert "inside a record" in cut.rejects[-1].reason


def test_bad_records_cost_themselves_only(tmp_path: Path) -> None:
    text = json.dumps({"values": [
        record(port_num=None),
        record(Infiniband_PckIn_u_Packets=-5, Infiniband_PckOut_u_Packets=6),
        {"timestamp": "not", "node_guid": GUID, "port_num": 1, "LinkDownedCounter": 1},
    ]}).replace("-5", "NaN")  # fmt: skip
    result = run_text("ufm", tmp_path, text)
    assert [row["port_xmit_packets"] for row in result.counters] == [6, None]
    assert result.counters[1]["ts"] is None
    assert len(result.rejects) == 1


PROM = f"""\
# TYPE PortXmitDataExtended counter
PortXmitDataExtended{{node_guid="{GUID}",port_num="1"}} 2e3 1709652347161
PortXmitDataExtended{{node_guid="{GUID}",port_num="2"}} 7 1709652347161
PortXmitWaitExtended{{node_guid="{GUID}",port_num="1"}} 9 1709652347161
CableInfo_Temperature{{node_guid="{GUID}",port_num="1"}} 55 1709652347161
other{{a="b"}} 1
"""


def test_prometheus_text(tmp_path: Path) -> None:
    result = run_text("ufm", tmp_path, PROM)
    first, second = result.counters
    assert (first["port_xmit_data"], first["port_xmit_wait"], first["port"]) == (2000, 9, 1)
    assert (second["port_xmit_data"], second["link"]) == (7, f"{GUID}/2")
    assert first["ts"] == 1_709_652_347_161_000_000
    assert result.rows("link_signal")[0]["temperature"] == 55.0
    assert len(result.rejects) == 1
    found = claims(tmp_path / "input")
    assert max(found, key=lambda kind: found[kind]) == "ufm"


def test_ports_that_a_file_makes_up_are_not_all_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xtune.collectors.ufm.MOST_PORTS", 3)
    rows = [f"170965234716187{n},0x{port:x},1,{port}\n" for n in (3, 4) for port in range(1, 8)]
    text = "timestamp,node_guid,port_num,PortXmitDataExtended\n" + "".join(rows)
    result = run_text("ufm", tmp_path, text)
    assert len(result.counters) == 14
    # Said again once they were forgotten: ports may be told twice, none is lost.
    assert {row["link"] for row in result.rows("ports")} == {r["link"] for r in result.counters}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(), base=st.sampled_from([CSV, PROM, json.dumps({"values": [record(a=1)] * 3})])
)
def test_damaged_input_never_raises(data: st.DataObject, base: str) -> None:
    for row in damaged("ufm", data, base).counters:
        assert row["link"] == f"{row['node_guid']}/{row['port']}"

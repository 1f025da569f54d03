"""ibswinfo: a switch's vitals, whole or with pieces missing (written by hand from ibswinfo.sh)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import NOW, Result, claims, run_text

RULE, DOUBLE = "-" * 49 + "\n", "=" * 49 + "\n"


def pair(key: str, value: object, sign: str = "|") -> str:
    return f"{key:<18} {sign} {value}\n"


def switch(
    guid: str = "0x1c34da0300010540",
    part: str = "MSB7890-ES2F",
    modules: dict[int, int] | None = None,
) -> str:
    text = DOUBLE + " leaf 7, rack 3\n" + DOUBLE
    text += pair("part number", part) + pair("serial number", "MT1943X00498") + pair("ports", 36)
    text += pair("PSID", "MT_1880110032") + pair("GUID", guid)
    text += pair("firmware version", "11.2008.2102") + RULE
    text += pair("uptime (d-h:m:s)", "2d-01:02:03") + RULE
    for n in range(2):
        text += pair(f"PSU{n} status", "OK") + pair("     P/N", "MTEF-PSF-AC-A")
        text += pair("     DC power", "OK") + pair("     power (W)", 70 + n)
    text += RULE + pair("temperature (C)", 45) + pair("max temp (C)", 57)
    text += pair("warn threshold (C)", "105/110 (low/high)")
    for number, degrees in (modules or {}).items():
        text += pair(f"QSFP#{number:02d} (C) ", degrees)
    return text + RULE + pair("fan status", "OK") + pair("fan#1 (rpm)", 8493) + RULE


def read(folder: Path, text: str | bytes, **context: object) -> Result:
    return run_text("ibswinfo", folder, text, **context)


def test_a_switch_is_a_row_of_ports_and_one_of_signals(tmp_path: Path) -> None:
    result = read(tmp_path, switch(), time_from="now")
    (port,), (signal,) = result.rows("ports"), result.rows("link_signal")
    assert port["link"] == signal["link"] == "0x1c34da0300010540/0"
    assert port["node_guid"] == "0x1c34da0300010540" and port["port"] == 0
    assert port["node_description"] == "leaf 7, rack 3"
    assert port["device_family"] == "Switch-IB 2"
    assert port["extra"]["serial_number"] == "MT1943X00498"
    assert signal["temperature"] == 45.0 and signal["ts"] == NOW
    assert signal["extra"] == {
        "sensor": "switch",
        "uptime_s": str(((2 * 24 + 1) * 60 + 2) * 60 + 3),
        "psu0_status": "OK",
        "psu0_part_number": "MTEF-PSF-AC-A",
        "psu0_dc_power": "OK",
        "psu0_power_w": "70",
        "psu1_status": "OK",
        "psu1_part_number": "MTEF-PSF-AC-A",
        "psu1_dc_power": "OK",
        "psu1_power_w": "71",
        "max_temperature_c": "57",
        "warn_threshold_c": "105/110 (low/high)",
        "fan_status": "OK",
        "fan1_rpm": "8493",
    }
    assert not result.rejects and not result.unknown


def test_module_temperatures_are_by_port_where_a_cage_is_a_port(tmp_path: Path) -> None:
    modules = {1: 38, 2: 0, 36: 41}  # 0: nothing in it that could be measured
    rows = read(tmp_path, switch(modules=modules)).rows("link_signal")
    found = {r["link"]: r["temperature"] for r in rows if r["extra"]["sensor"] == "module"}
    assert found == {"0x1c34da0300010540/1": 38.0, "0x1c34da0300010540/36": 41.0}
    rows = read(tmp_path, switch(part="MQM9790-NS2F", modules={5: 60})).rows("link_signal")
    (twin,) = [r for r in rows if r["extra"]["sensor"] == "module"]
    assert twin["link"] is None and twin["temperature"] == 60.0
    assert twin["extra"] == {
        "sensor": "module",
        "module": "5",
        "node_guid": "0x1c34da0300010540",
    }


def test_several_switches_in_one_file(tmp_path: Path) -> None:
    text = "".join(switch(guid=f"0xa{n}") for n in range(3))
    result = read(tmp_path, text)
    assert [r["link"] for r in result.rows("ports")] == [f"0x{0xA0 + n:016x}/0" for n in range(3)]
    assert len(result.rows("link_signal")) == 3


def test_values_that_are_missing_or_none_cost_themselves_only(tmp_path: Path) -> None:
    text = switch().replace("fan#1 (rpm)        | 8493", "fan#1 (rpm)        | foo")
    text = text.replace("temperature (C)    | 45", "temperature (C)    | -E- cannot read")
    text = text.replace("max temp (C)       | 57", "max temp (C)       |")
    result = read(tmp_path, "error: failed to read MFCR\n" + text)
    (signal,) = result.rows("link_signal")
    assert signal["temperature"] is None
    assert not {"fan1_rpm", "max_temperature_c"} & set(signal["extra"])
    assert signal["extra"]["psu1_power_w"] == "71"
    assert [r.reason for r in result.rejects] == [
        "temperature (C): '-E- cannot read' is no temperature",
        "fan#1 (rpm): 'foo' is no number",
    ]
    assert "0x" not in read(tmp_path, switch(guid="0x0")).rows("ports")[0]["link"]


@pytest.mark.parametrize("form", ["vitals", "status", "inventory"])
def test_targeted_output_names_no_switch(form: str, tmp_path: Path) -> None:
    text = {
        "vitals": pair("uptime (sec)", 90, ":")
        + pair("psu0.power (W)", 72, ":")
        + pair("cur.temp (C)", 44, ":")
        + pair("max.temp (C)", 50, ":")
        + pair("QSFP#03.temp (C)", 39, ":")
        + pair("fan#2.speed (rpm)", 7349, ":"),
        "status": pair("psu0.status", "OK", ":")
        + pair("psu0.dc", "OK", ":")
        + pair("fans", "OK", ":"),
        "inventory": pair("node_desription", "leaf: 7", ":")
        + pair("part_number", "MQM8790-HS2F", ":")
        + pair("serial", "MT1", ":")
        + pair("fw_version", "27.2010.4102", ":")
        + pair("psu1.serial", "MT2", ":"),
    }[form]
    result = read(tmp_path, text, host="Admin")
    assert not result.rejects and not result.unknown
    (port,), signals = result.rows("ports"), result.rows("link_signal")
    assert port["link"] == "admin/switch/0" and port["node_guid"] is None
    if form == "vitals":
        assert [(s["temperature"], s["link"]) for s in signals] == [
            (44.0, "admin/switch/0"),
            (39.0, None),
        ]
        assert signals[0]["extra"]["fan2_rpm"] == "7349"
        assert signals[0]["extra"]["psu0_power_w"] == "72"
    if form == "inventory":
        assert port["node_description"] == "leaf: 7" and port["device_family"] == "Quantum"
    assert read(tmp_path, text).rows("ports")[0]["link"].startswith("unknown-")
    assert max(claims(tmp_path / "input").items(), key=lambda c: c[1])[0] == "ibswinfo"


def test_it_is_recognised_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text(switch())
    assert max(claims(path).items(), key=lambda c: c[1])[0] == "ibswinfo"
    path.write_text("part | price\nbolt | 3\n")
    assert "ibswinfo" not in claims(path)


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    result = read(tmp_path, switch() + pair("moon phase", "full"))
    assert result.unknown == {"moon phase": 1}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_bytes_never_raise(data: st.DataObject) -> None:
    raw = bytearray((switch(modules={1: 3}) + switch("0xa1")).encode())
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        read(Path(folder), bytes(raw))

"""mlxlink: shapes of values, bit error rates from counted errors, lanes at their own index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import Result, damaged, run, run_text
from tests.samples import samples
from xtune.collectors import _mlxlink

STATE = {"State": "Active", "Speed": "400G", "Width": "4x", "FEC": "Standard_RS-FEC - (544,514)"}
ERRORS = [4000, 0, None, 12000]
MINUTES = 50.0
#: 400G: four lanes of 100 Gb/s, 256b/257b and RS(544,514) around them.
LANE_BITS_S = 100e9 * 257 / 256 * 544 / 514


def document(sections: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"output": sections}, "status": {"code": 0, "message": "success"}}


def counted(**about: Any) -> dict[str, Any]:
    errors = ["N/A" if e is None else str(e) for e in ERRORS]
    counters = {
        "Time Since Last Clear [Min]": f"{MINUTES:.1f}",
        "Raw Physical Errors Per Lane": {"values": errors},
        "Raw Physical BER Per Lane": {"values": ["1E-11", "15E-255", "N/A", "3E-11"]},
        "Raw Physical BER": "1E-11",
        "Effective Physical BER": "15E-255",
        "Effective Physical Errors": "0",
        "Link Down Counter": "2",
        "Link Error Recovery Counter": "18446744073709551615",
    }
    return document(
        {
            "Operational Info": {**STATE, **about},
            "Physical Counters and BER Info": counters,
        }
    )


def lanes(result: Result) -> dict[int, dict[str, Any]]:
    return {r["lane"]: r for r in result.rows("link_signal") if r["lane"] is not None}


def whole(result: Result) -> dict[str, Any]:
    (row,) = (r for r in result.rows("link_signal") if r["lane"] is None)
    return row


@pytest.mark.parametrize("minutes", ["-1", "0", "0.0", "1e-14", "-0.0", "N/A", "1e400"])
def test_a_time_that_cannot_be_gives_no_rate(tmp_path: Path, minutes: str) -> None:
    given = counted()
    section = given["result"]["output"]["Physical Counters and BER Info"]
    section["Time Since Last Clear [Min]"] = minutes
    found = lanes(run_text("mlxlink", tmp_path, json.dumps(given)))
    assert [found[lane]["raw_ber"] for lane in (0, 1, 3)] == [1e-11, None, 3e-11]  # as printed
    assert "raw_ber_below" not in found[1]["extra"]


def test_line_rates_are_those_of_the_standards() -> None:
    assert _mlxlink.line_gbps("400G", "4x", None) == pytest.approx(LANE_BITS_S / 1e9)
    fec_25g = 25 * 257 / 256 * 528 / 514
    assert _mlxlink.line_gbps("100G", "4x", "RS(528,514)") == pytest.approx(fec_25g)
    other_fec = _mlxlink.line_gbps("100G", "4x", "RS(544,514)")
    assert other_fec == pytest.approx(25 * 257 / 256 * 544 / 514)
    assert _mlxlink.line_gbps("IB-NDR", "4x", None) == pytest.approx(LANE_BITS_S / 1e9)
    assert _mlxlink.line_gbps("200G", "4x", None) == pytest.approx(LANE_BITS_S / 2e9)
    assert _mlxlink.line_gbps("N/A", "N/A", None) is None


def test_a_lane_has_its_own_rate_from_its_own_errors(tmp_path: Path) -> None:
    result = run_text("mlxlink", tmp_path, json.dumps(counted()))
    found = lanes(result)
    bits = LANE_BITS_S * MINUTES * 60
    assert found[0]["raw_ber"] == pytest.approx(4000 / bits, rel=1e-12)
    assert found[3]["raw_ber"] == pytest.approx(12000 / bits, rel=1e-12)
    # No error observed bounds the rate, it does not make it zero.
    assert found[1]["raw_ber"] is None
    assert float(found[1]["extra"]["raw_ber_below"]) == pytest.approx(1 / bits, rel=1e-2)
    assert 2 not in found  # nothing but N/A was said of it
    port = whole(result)
    assert port["raw_ber"] == 1e-11  # as printed: the errors of one lane are unknown
    assert port["effective_ber"] is None  # 15E-255 is not 1.5e-254
    assert port["extra"]["Time Since Last Clear [Min]"] == "50.0"
    assert found[0]["extra"]["Raw Physical Errors Per Lane"] == "4000"


def test_a_link_that_is_down_has_only_what_is_printed(tmp_path: Path) -> None:
    result = run_text("mlxlink", tmp_path, json.dumps(counted(State="Down")))
    assert lanes(result)[0]["raw_ber"] == 1e-11
    assert result.rows("ports")[0]["state"] == "DOWN"


def test_counters_and_port(tmp_path: Path) -> None:
    result = run_text(
        "mlxlink", tmp_path, json.dumps(counted()), host="N1", labels={"device": "x"}
    )
    (row,) = result.counters
    assert (row["link_downed"], row["link_error_recovery"]) == (2, None)
    assert (row["link"], row["extra"]) == ("n1/x/1", {"Effective Physical Errors": 0})
    (port,) = result.rows("ports")
    assert (port["rate_gbps"], port["width"], port["link_layer"]) == (400.0, "4X", "Ethernet")


def test_a_code_other_than_0_comes_before_the_payload(tmp_path: Path) -> None:
    stale = counted()
    stale["status"] = {"code": 1, "message": "-E- timeout"}
    result = run_text("mlxlink", tmp_path, json.dumps(stale) + "\n" + json.dumps(counted()))
    (reject,) = result.rejects
    assert "status 1" in reject.reason and "timeout" in reject.reason
    assert len(result.rows("ports")) == 1


def test_four_shapes_of_values(tmp_path: Path) -> None:
    module = {
        "Temperature [C]": "61 [-10..80]",
        "Bias Current [mA]": "265.504,N/A,248.416,248.5 [40..480]",
        "SNR Media Lanes [dB]": {"values": ["20.5", "N/A", "21", "22"]},
        "Vendor Name": "A, B and C",
        "Voltage [mV]": "N/A",
    }
    result = run_text("mlxlink", tmp_path, json.dumps(document({"Module Info": module})))
    port, found = whole(result), lanes(result)
    assert port["temperature"] == 61.0
    assert port["extra"] == {"Temperature [C]": "61", "Vendor Name": "A, B and C"}
    assert set(found) == {0, 2, 3}  # the hole keeps the others at their own index
    assert found[2]["extra"]["Bias Current [mA]"] == "248.416"
    assert [found[n]["snr"] for n in (0, 2, 3)] == [20.5, 21.0, 22.0]


def test_zeros_of_a_module_that_measures_nothing_are_unknown(tmp_path: Path) -> None:
    """As MFT 4.35 prints a passive copper cable: each value 0, each range of 0."""
    module = {
        "Temperature [C]": "0 [0..0]",
        "Voltage [mV]": "0 [0..0]",
        "Bias Current [mA]": "0,0 [0..0]",
        "Rx Power Current [dBm]": "0,0.000 [0..0]",
        "Tx Power Current [dBm]": "0,-2.5 [-9.9..7]",
        "Cable Type": "Passive copper cable",
    }
    text = "\nModule Info\n-----------\n" + "".join(f"{k:<35}: {v}\n" for k, v in module.items())
    as_json = json.dumps(document({"Module Info": module}))
    for content in (text, as_json):
        result = run_text("mlxlink", tmp_path, content)
        assert whole(result)["temperature"] is None
        assert whole(result)["extra"] == {"Cable Type": "Passive copper cable"}
        assert {n: row["extra"] for n, row in lanes(result).items()} == {
            0: {"Tx Power Current [dBm]": "0"},
            1: {"Tx Power Current [dBm]": "-2.5"},
        }
    warm = run_text("mlxlink", tmp_path, text.replace("0 [0..0]", "31 [0..0]", 1))
    assert whole(warm)["temperature"] == 31.0


def test_a_line_between_outputs_names_the_device(tmp_path: Path) -> None:
    block = "\nOperational Info\n----------------\nState : Active\nSpeed : IB-HDR\nWidth : 2x\n"
    heads = (
        "===== mlx5_0 =====",
        "## mt4123_pciconf1 FEC ##",
        "mlx5_2:",
        "0000:12:00.0",
        "mlx5_3",
    )
    result = run_text("mlxlink", tmp_path, "".join(f"{head}\n{block}\n" for head in heads))
    devices = [row["device"] for row in result.rows("ports")]
    assert devices == ["mlx5_0", "mt4123_pciconf1", "mlx5_2", "0000:12:00.0", "mlx5_3"]
    assert not result.rejects


def test_histogram_bins_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    bins = {f"Bin {n}": {"values": [f"[{n}]", str(100 - n)]} for n in (0, 1, 10, 2)}
    bins["Bin 11"] = {"values": ["[11:15]", "18446744073709551615"]}
    bins["Header"] = {"values": ["Range", "Occurrences"]}
    section = {"Histogram of FEC Errors": bins}
    row = whole(run_text("mlxlink", tmp_path, json.dumps(document(section))))
    assert row["fec_bins"] == [100, 99, 98, *[None] * 7, 90, None]
    assert row["extra"]["fec_bin_ranges"] == "0,1,2,,,,,,,,10,11:15"


def test_an_eye_says_which_lane_it_is_of(tmp_path: Path) -> None:
    eye = {
        "Lane": {"values": ["3", "1"]},
        "Last FOM": {"values": ["31", "N/A"]},
        "Initial FOM": {"values": ["30", "10"]},
    }
    found = lanes(run_text("mlxlink", tmp_path, json.dumps(document({"EYE Opening Info": eye}))))
    assert found[3]["eye"] == 31.0
    assert (found[1]["eye"], found[1]["extra"]) == (None, {"Initial FOM": "10"})


TEXT = """\
root@n1:~# mlxlink -d /dev/mst/mt4129_pciconf0 -p 1/2 -c --rx_fec_histogram
\x1b[32mOperational Info\x1b[0m
\x1b[32m----------------\x1b[0m
State                              : \x1b[32mActive\x1b[0m
Speed                              : IB-NDR
Width                              : 4x

Physical Counters and BER Info
------------------------------
Time Since Last Clear [Min]        : 10.0
Raw Physical Errors Per Lane       : 5,N/A,7,8

Histogram of FEC Errors
-----------------------
Header       : Range        Occurrences
Bin 0        : [0]          123
Bin 1        : [1]          4

EYE Opening Info
----------------
Physical Grade                  :  33626, 35074, 32382, 35680
Height Eye Opening [mV]         :    158,   167,   151,   163

-E- the show_fec command is not supported
"""


def test_text_says_the_same_and_names_host_device_and_port(tmp_path: Path) -> None:
    result = run_text("mlxlink", tmp_path, "1709652347.5\n" + TEXT)
    (port,) = result.rows("ports")
    assert (port["host"], port["device"], port["port"]) == ("n1", "mt4129_pciconf0", None)
    assert (port["link"], port["link_layer"]) == ("n1/mt4129_pciconf0/1/2", "InfiniBand")
    assert port["ts"] == 1_709_652_347_500_000_000
    found = lanes(result)
    assert found[3]["raw_ber"] == pytest.approx(8 / (LANE_BITS_S * 600), rel=1e-12)
    assert [found[n]["eye"] for n in range(4)] == [158.0, 167.0, 151.0, 163.0]
    assert whole(result)["fec_bins"] == [123, 4]
    (reject,) = result.rejects  # one command failed, the others count
    assert "not supported" in reject.reason


def test_several_documents_in_one_stream(tmp_path: Path) -> None:
    two = json.dumps(counted(), indent=2) + json.dumps({"mlx5_7": counted()})
    result = run_text("mlxlink", tmp_path, f'+ mlxlink -d mlx5_3 --json\n{two}\n{{"cut": [')
    assert [p["device"] for p in result.rows("ports")] == ["mlx5_3", "mlx5_7"]
    (reject,) = result.rejects
    assert "without its end" in reject.reason


@pytest.mark.shared_samples
def test_the_public_captures_give_the_figures_that_were_computed_from_them() -> None:
    dr4 = run("mlxlink", samples("mlxlink", "mft-4.34.1-400g-dr4.json"))
    rates = [lanes(dr4)[n]["raw_ber"] for n in range(4)]
    assert rates == pytest.approx([1.74e-10, 8.73e-10, 4.25e-10, 5.33e-10], rel=3e-3)
    eye = run("mlxlink", samples("mlxlink", "mft-4.34.1-400g-eye.json"))
    bins = whole(eye)["fec_bins"]
    errors = [int(lanes(eye)[n]["extra"]["Raw Physical Errors Per Lane"]) for n in range(4)]
    assert sum(k * count for k, count in enumerate(bins)) == 76_459_380
    assert sum(errors) == 76_459_362
    # All codewords over the time since the counters were cleared: the line's 425 Gb/s.
    seconds = 60 * float(whole(eye)["extra"]["Time Since Last Clear [Min]"])
    assert sum(bins) * 5440 / seconds / 1e9 == pytest.approx(424.97, abs=0.05)
    assert [lanes(eye)[n]["eye"] for n in range(4)] == [107.0, 112.0, 88.0, 101.0]


def test_codewords_of_two_captures_give_the_line_rate(tmp_path: Path) -> None:
    seconds, bits = 4, 5440  # RS(544,514) with symbols of 10 bits
    codewords = round(425e9 * seconds / bits)
    found = []
    for count in (1000, 1000 + codewords):
        section = {"Histogram of FEC Errors": {"Bin 0": {"values": ["[0]", str(count)]}}}
        row = whole(run_text("mlxlink", tmp_path, json.dumps(document(section))))
        found.append(row["fec_bins"][0])
    assert (found[1] - found[0]) * bits / seconds / 1e9 == pytest.approx(4 * LANE_BITS_S / 1e9)


@pytest.mark.shared_samples
def test_unavailable_fields_are_unknown() -> None:
    result = run("mlxlink", samples("mlxlink", "na-fields.json"))
    port = whole(result)
    assert (port["raw_ber"], port["effective_ber"], port["temperature"]) == (None, None, None)
    assert "Bias Current [mA]" not in lanes(result)[1]["extra"]
    assert all(row["raw_ber"] is None for row in lanes(result).values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), base=st.sampled_from([TEXT, json.dumps(counted(), indent=1)]))
def test_damaged_input_never_raises(data: st.DataObject, base: str) -> None:
    for row in damaged("mlxlink", data, base).rows("link_signal"):
        assert row["raw_ber"] is None or row["raw_ber"] > 0

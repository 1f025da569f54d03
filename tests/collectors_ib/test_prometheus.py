"""Responses and expositions: units by exporter, joins by port and time, damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.collectors_ib.helpers import NOW, claims, run_text
from xtune.collectors._prometheus_names import host_of, recognise
from xtune.tables import COUNTERS

T0 = 1435781430.781
T0_NS = 1_435_781_430_781_000_000
NODE = {"instance": "Node17:9100", "job": "node", "device": "mlx5_0", "port": "1"}
SWITCH = {"instance": "exporter:9315", "job": "ib", "guid": "0x7cfe9003009ce5b0", "port": "10"}
CABLE = {
    "component": "switch",
    "local_name": "leaf1",
    "local_guid": "0x7cfe9003009ce5b0",
    "local_port": "10",
    "remote_guid": "0x7cfe9003003b4bde",
    "remote_port": "1",
    "remote_name": "o0001 HCA-1",
    "instance": "exporter:9683",
}


def series(
    name: str, labels: dict[str, str], *values: object, start: float = T0
) -> dict[str, Any]:
    pairs = [[start + 15 * i, str(v)] for i, v in enumerate(values) if v is not None]
    return {"metric": {"__name__": name, **labels}, "values": pairs}


def matrix(*found: dict[str, Any], indent: int | None = None) -> str:
    data = {"resultType": "matrix", "result": list(found)}
    return json.dumps({"status": "success", "data": data}, indent=indent)


def test_metrics_of_one_port_and_time_are_one_row(tmp_path: Path) -> None:
    text = matrix(
        series("node_infiniband_port_data_transmitted_bytes_total", NODE, 400, 800, 1200),
        series("node_infiniband_port_transmit_wait_total", NODE, 7, None, 9),
        series("node_infiniband_unicast_packets_transmitted_total", NODE, 1),
        series("node_infiniband_np_cnp_packets_sent_total", NODE, 1, 2, 3),
        series("node_infiniband_rate_bytes_per_second", NODE, 5e10, 5e10, 5e10),
        series("node_infiniband_state_id", NODE, 4, 4, 1),
        series("node_infiniband_info", {**NODE, "hca_type": "MT4129", "board_id": "x"}, 1),
        series("up", {"job": "node"}, 1),
    )
    result = run_text("prometheus", tmp_path, text)
    assert result.rejects == []
    assert [r["ts"] for r in result.counters] == [T0_NS, T0_NS + 15 * 10**9, T0_NS + 30 * 10**9]
    first, second, third = result.counters
    assert (first["link"], first["host"], first["port"]) == ("node17/mlx5_0/1", "node17", 1)
    assert (first["port_xmit_data"], first["data_unit_bytes"]) == (400, 1)  # multiplied already
    assert (first["port_xmit_wait"], second["port_xmit_wait"], third["port_xmit_wait"]) == (
        7,
        None,
        9,
    )
    assert (first["unicast_xmit_packets"], second["unicast_xmit_packets"]) == (1, None)  # stopped
    assert (third["np_cnp_sent"], third["rate_gbps"]) == (3, 400.0)
    assert first["labels"] == {"instance": "Node17:9100", "job": "node"}
    # A row of ports where it is first seen and where its state changes.
    ports = result.rows("ports")
    assert [(p["ts"], p["state"]) for p in ports] == [
        (T0_NS, "ACTIVE"),
        (T0_NS + 30 * 10**9, "DOWN"),
    ]
    assert result.unknown == {"up": 1}


def test_info_of_a_device_has_no_port(tmp_path: Path) -> None:
    info = {k: v for k, v in NODE.items() if k != "port"}
    text = matrix(
        series("node_infiniband_info", {**info, "hca_type": "MT4129"}, 1),
        series("node_infiniband_link_downed_total", NODE, 3),
    )
    (port,) = run_text("prometheus", tmp_path, text).rows("ports")
    assert (port["device_family"], port["link"]) == ("ConnectX-7", "node17/mlx5_0/1")


def test_saturation_after_the_exporter_multiplied(tmp_path: Path) -> None:
    text = matrix(
        series("node_infiniband_port_data_transmitted_bytes_total", NODE, 4 * (2**32 - 1)),
        series("node_infiniband_port_transmit_wait_total", NODE, 2**32 - 1),
    )
    (row,) = run_text("prometheus", tmp_path, text).counters
    assert set(row["saturated"]) == {"port_xmit_data", "port_xmit_wait"}
    assert row["port_xmit_data"] is None


def test_the_legacy_set_stands_in_for_a_32_bit_one(tmp_path: Path) -> None:
    old = [
        series("node_infiniband_port_data_transmitted_bytes_total", NODE, 4 * (2**32 - 1)),
        series("node_infiniband_legacy_data_transmitted_bytes_total", NODE, 4 * 2**40),
    ]
    (row,) = run_text("prometheus", tmp_path, matrix(*old)).counters
    assert row["port_xmit_data"] == 4 * 2**40 and row["saturated"] == []
    new = series("node_infiniband_unicast_packets_transmitted_total", NODE, 0)
    (row,) = run_text("prometheus", tmp_path, matrix(*old, new)).counters
    assert row["port_xmit_data"] == 4 * (2**32 - 1)
    assert row["extra"] == {"legacy_data_transmitted_bytes_total": 4 * 2**40}


def treydock(data: int, packets: int) -> str:
    return matrix(
        series("infiniband_switch_port_transmit_data_bytes_total", SWITCH, data),
        series("infiniband_switch_port_transmit_packets_total", SWITCH, packets),
        series("infiniband_switch_port_vl15_dropped_total", SWITCH, 65535),
        series("infiniband_switch_port_symbol_error_total", SWITCH, 2),
        series("infiniband_switch_info", {"guid": SWITCH["guid"], "switch": "leaf1 "}, 1),
    )


def test_treydock_bytes_or_words_by_the_mean_packet(tmp_path: Path) -> None:
    # treydock/infiniband_exporter #33. As words, 4,000,000 for 1,000 packets were 16,000 bytes
    # each, beyond any MTU: they are bytes. As bytes, 20,000 were 20 each: they are words.
    assert (
        run_text("prometheus", tmp_path, treydock(4_000_000, 1000)).counters[0]["data_unit_bytes"]
        == 1
    )
    assert (
        run_text("prometheus", tmp_path, treydock(20_000, 1000)).counters[0]["data_unit_bytes"]
        == 4
    )
    between = treydock(1_000_000, 1000)  # 1,000 bytes a packet, or 4,000: both are possible
    result = run_text("prometheus", tmp_path, between)
    assert result.counters[0]["data_unit_bytes"] == 1
    assert any("--map data_unit_bytes=4" in text for text in result.notes)
    told = run_text("prometheus", tmp_path, between, column_map={"data_unit_bytes": "4"})
    assert told.counters[0]["data_unit_bytes"] == 4 and not told.notes


def test_treydock_is_by_guid_and_of_64_bits(tmp_path: Path) -> None:
    result = run_text("prometheus", tmp_path, treydock(4_000_000, 1000))
    (row,) = result.counters
    assert row["link"] == "0x7cfe9003009ce5b0/10"
    assert row["host"] is None  # the instance is the exporter's host, not the port's
    assert (row["VL15_dropped"], row["symbol_error"], row["saturated"]) == (65535, 2, [])
    assert row["labels"] == {"instance": "exporter:9315", "job": "ib"}
    assert result.rows("ports")[0]["node_description"] == "leaf1"


def test_guilbaults_exports_words(tmp_path: Path) -> None:
    text = matrix(
        series("infiniband_portxmitdata_total", CABLE, 2**32 - 1),
        series("infiniband_portxmitwait_total", CABLE, 2**32 - 1),
        series("infiniband_linkdownedcounter_total", CABLE, 255),
        series("infiniband_speed", CABLE, 25.78125),
        series("infiniband_width", CABLE, 4),
    )
    result = run_text("prometheus", tmp_path, text)
    (row,) = result.counters
    assert (row["link"], row["data_unit_bytes"]) == ("0x7cfe9003009ce5b0/10", 4)
    assert row["port_xmit_data"] == 2**32 - 1  # read from 64 bits
    assert set(row["saturated"]) == {"port_xmit_wait", "link_downed"}
    assert row["rate_gbps"] == 100.0  # as the kernel names four lanes of EDR
    assert row["labels"]["remote_name"] == "o0001 HCA-1"
    assert result.rows("ports")[0]["node_description"] == "leaf1"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_values_that_are_none(tmp_path: Path, value: str) -> None:
    text = matrix(series("node_infiniband_link_downed_total", NODE, 1, value, 3))
    result = run_text("prometheus", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [1, 3]
    assert result.notes["NaN or infinite: null"] == 1


def test_a_rate_is_no_counter(tmp_path: Path) -> None:
    text = matrix(
        series("node_infiniband_link_downed_total", NODE, 1, 0.5, -2, 1e30, "x"),
        {"metric": NODE, "values": [[T0, "12.5"]]},
    )
    result = run_text("prometheus", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [1]
    assert {r.reason for r in result.rejects} == {
        "link_downed: not a count (3 times)",
        "link_downed: not a number: 'x' (1 times)",
    }
    assert result.notes["series without a name, such as rate() gives: left"] == 1
    alone = run_text("prometheus", tmp_path, matrix({"metric": NODE, "values": [[T0, "1"]]}))
    assert any("rate()" in name for name in alone.unknown) and not alone.tables


def test_big_values_written_with_an_exponent(tmp_path: Path) -> None:
    name = "node_infiniband_port_data_transmitted_bytes_total"
    text = matrix(
        series(name, NODE, "9.21770677727356e+14", "1.8446744073709552e+19"),
    )
    first, second = run_text("prometheus", tmp_path, text).counters
    assert first["port_xmit_data"] == 921770677727356
    assert second["saturated"] == ["port_xmit_data"]  # all ones, rounded up to 2^64


def test_replicas_stay_apart(tmp_path: Path) -> None:
    name = "node_infiniband_link_downed_total"
    text = matrix(*(series(name, {**NODE, "replica": r}, 1) for r in "ab"))
    rows = run_text("prometheus", tmp_path, text).counters
    assert [r["labels"]["replica"] for r in rows] == ["a", "b"]
    assert rows[0]["link"] == rows[1]["link"]


def test_a_vector_and_several_responses_in_one_file(tmp_path: Path) -> None:
    name = "node_infiniband_link_downed_total"
    result = [{"metric": {"__name__": name, **NODE}, "value": [T0, "3"]}]
    vector = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    assert run_text("prometheus", tmp_path, vector).counters[0]["link_downed"] == 3
    two = matrix(series(name, NODE, 1, 2)) + "\n" + matrix(series(name, NODE, 2, 5, start=T0 + 15))
    found = run_text("prometheus", tmp_path, two)
    assert [r["link_downed"] for r in found.counters] == [1, 2, 5]
    assert found.rejects == []


def test_indented_gzip_and_odd_labels(tmp_path: Path) -> None:
    odd = {**NODE, "note": 'a "quoted" {brace}] \\ "values": [1', "zone": "süd"}
    text = matrix(series("node_infiniband_link_downed_total", odd, 1, 2), indent=3)
    result = run_text("prometheus", tmp_path, gzip.compress(text.encode()))
    assert [r["link_downed"] for r in result.counters] == [1, 2]
    assert result.counters[0]["labels"]["note"] == odd["note"]
    assert result.counters[0]["labels"]["zone"] == "süd"
    assert result.rejects == []


def test_a_cut_response_keeps_what_came_before(tmp_path: Path) -> None:
    name = "node_infiniband_{}_total"
    text = matrix(
        series(name.format("link_downed"), NODE, 1, 2, 3),
        series(name.format("symbol_error"), NODE, 4, 5, 6),
    )
    result = run_text("prometheus", tmp_path, text[: text.index('"6"') - 5])
    assert [r["link_downed"] for r in result.counters] == [1, 2, 3]
    assert [r["symbol_error"] for r in result.counters] == [4, 5, None]
    assert "cut or damaged" in result.rejects[0].reason
    between = run_text("prometheus", tmp_path, text[: text.index(', {"metric"')])
    assert [r["link_downed"] for r in between.counters] == [1, 2, 3]
    assert "its end is missing" in between.rejects[0].reason
    packed = gzip.compress(text.encode(), mtime=0)
    assert run_text("prometheus", tmp_path, packed[:-20]).rejects


def test_damage_in_the_middle_keeps_both_sides(tmp_path: Path) -> None:
    name = "node_infiniband_{}_total"
    parts = [json.dumps(series(name.format(n), NODE, 1)) for n in ("link_downed", "symbol_error")]
    head, tail = '{"data":{"resultType":"matrix","result":[', "]}}"
    result = run_text("prometheus", tmp_path, head + ",\x00garbage,".join(parts) + tail)
    (row,) = result.counters
    assert (row["link_downed"], row["symbol_error"]) == (1, 1)
    assert "garbage" in result.rejects[0].reason


def test_errors_and_empty_results_are_said(tmp_path: Path) -> None:
    error = '{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}'
    assert "parse error" in run_text("prometheus", tmp_path, error).rejects[0].reason
    assert "no series in it" in str(run_text("prometheus", tmp_path, matrix()).notes)
    assert run_text("prometheus", tmp_path, "").rejects


def test_claims(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(matrix(series("up", {}, 1)))
    assert max(claims(path).items(), key=lambda c: c[1]) == ("prometheus", 0.95)
    path.write_text('{"hello": "world"}')
    assert "prometheus" not in claims(path)
    path.write_text('node_infiniband_link_downed_total{device="a",port="1"} 0\n')
    assert max(claims(path).items(), key=lambda c: c[1]) == ("prometheus_text", 0.95)


EXPOSITION = """\
# HELP node_infiniband_port_data_transmitted_bytes_total Number of data octets
# TYPE node_infiniband_port_data_transmitted_bytes_total counter
node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"} 1.493376e+07
node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="2"} 0
node_infiniband_link_downed_total{device="mlx5_0",port="1"} NaN
node_infiniband_symbol_error_total{ device = "mlx5_0" , port = "1", note="a\\"}\\\\b" } 4
node_infiniband_info{board_id="I40IW Board ID",device="mlx5_0",hca_type="MT4123"} 1
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_load1 0.5
this is not a sample
"""


def test_an_exposition(tmp_path: Path) -> None:
    result = run_text("prometheus_text", tmp_path, EXPOSITION, host="H1")
    rows = {(r["link"], r["labels"].get("note")): r for r in result.counters}
    assert rows["h1/mlx5_0/1", None]["port_xmit_data"] == 14_933_760
    assert rows["h1/mlx5_0/2", None]["port_xmit_data"] == 0
    assert rows["h1/mlx5_0/1", 'a"}\\b']["symbol_error"] == 4
    assert rows["h1/mlx5_0/1", None]["link_downed"] is None
    assert {r["ts"] for r in result.counters} == {None}
    assert {p["device_family"] for p in result.rows("ports")} == {"ConnectX-6"}
    assert [r.offset for r in result.rejects] == ["line 10"]
    assert result.unknown == {"node_load1": 1}
    now = run_text("prometheus_text", tmp_path, EXPOSITION, time_from="now")
    assert {r["ts"] for r in now.counters} == {NOW}


def test_an_exposition_with_times(tmp_path: Path) -> None:
    name = 'node_infiniband_link_downed_total{device="d",port="1"}'
    text = f"{name} 1 1435781430781\n{name} 2 1435781445.781\n{name} 3 1435781445781\n"
    result = run_text("prometheus_text", tmp_path, text)
    assert [(r["ts"], r["link_downed"]) for r in result.counters] == [
        (T0_NS, 1),
        (T0_NS + 15 * 10**9, 2),
    ]
    assert len(result.rejects) == 1  # one moment said twice


def test_foreign_metrics_are_read_and_named(tmp_path: Path) -> None:
    result = run_text("prometheus_text", tmp_path, "# TYPE node_load1 gauge\nnode_load1 1\n")
    assert result.unknown == {"node_load1": 1} and not result.rejects and not result.tables
    assert any("nothing here that xtune knows" in text for text in result.notes)
    answer = run_text("prometheus", tmp_path, matrix(series("up", {}, 1), series("up", {}, 0)))
    assert answer.unknown == {"up": 2} and not answer.rejects and not answer.tables


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("node17:9100", "node17"),
        ("Node17.Cluster:9100", "node17.cluster"),
        ("10.0.0.3:9100", "10.0.0.3"),
        ("[fd00::1]:9100", "fd00::1"),
        ("node17", "node17"),
        ("", None),
    ],
)
def test_host_of_an_instance(instance: str, host: str | None) -> None:
    assert host_of(instance) == host


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("node_infiniband_port_discards_transmitted_total", "port_xmit_discards"),
        ("node_infiniband_vl15_dropped_total", "VL15_dropped"),
        ("node_infiniband_rp_cnp_packets_handled_total", "rp_cnp_handled"),
        ("infiniband_hca_port_receive_data_bytes_total", "port_rcv_data"),
        ("infiniband_switch_port_unicast_transmit_packets_total", "unicast_xmit_packets"),
        (
            "infiniband_switch_port_receive_switch_relay_errors_total",
            "port_rcv_switch_relay_errors",
        ),
        ("infiniband_switch_port_transmit_wait_total", "port_xmit_wait"),
        (
            "infiniband_switch_port_local_link_integrity_errors_total",
            "local_link_integrity_errors",
        ),
        ("infiniband_switch_port_link_error_recovery_total", "link_error_recovery"),
        ("infiniband_portrcvremotephysicalerrors_total", "port_rcv_remote_physical_errors"),
        ("infiniband_vl15dropped_total", "VL15_dropped"),
    ],
)
def test_names(metric: str, name: str) -> None:
    known = recognise(metric)
    assert known is not None and known[1] == name and name in COUNTERS
    assert recognise(metric + "_x") is None

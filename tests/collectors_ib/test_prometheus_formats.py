"""The exposition formats' odd corners, and what the fabric exporters say beside counters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import NOW, run_text
from tests.collectors_ib.test_prometheus import CABLE, T0, T0_NS, matrix, series
from xtune.collectors import _prometheus_pairs
from xtune.collectors._prometheus_names import recognise
from xtune.collectors._prometheus_pairs import parse_pairs
from xtune.collectors.prometheus_text import parse_labels

NAME = "node_infiniband_link_downed_total"
PORT = 'device="mlx5_0",port="1"'


def test_openmetrics(tmp_path: Path) -> None:
    text = (
        "# HELP node_infiniband_link_downed Failed retrains.\n"
        "# TYPE node_infiniband_link_downed counter\n"
        "# UNIT node_infiniband_link_downed events\n"
        f'{NAME}{{{PORT}}} 3.0 1435781430.781 # {{trace_id="a b}} c"}} 0.67 1435781430.1\n'
        f"node_infiniband_link_downed_created{{{PORT}}} 1435781000.5\n"
        "# TYPE request_seconds histogram\n"
        'request_seconds_bucket{le="0.1"} 1 # {trace_id="x"} 0.05\n'
        'request_seconds_bucket{le="+Inf"} 2\n'
        "request_seconds_sum 0.3\nrequest_seconds_count 2\nrequest_seconds_created 1.5\n"
        '# TYPE build info\nbuild_info{v="1"} 1\n'
        "# EOF\n"
    )
    result = run_text("prometheus_text", tmp_path, text)
    (row,) = result.counters
    assert (row["ts"], row["link_downed"]) == (T0_NS, 3)
    assert result.rejects == []
    assert result.unknown == {"request_seconds": 5, "build_info": 1}


def test_lines_of_windows_and_odd_white_space(tmp_path: Path) -> None:
    text = f"\ufeff# TYPE {NAME} counter\r\n  {NAME} {{ {PORT} , }}  7  \r\n\r\n\t\r\n"
    result = run_text("prometheus_text", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [7] and result.rejects == []


def test_escapes_in_labels(tmp_path: Path) -> None:
    text = f'{NAME}{{{PORT},note="a\\\\b\\"c}} 9\\nd",empty=""}} 1\n{NAME}{{{PORT}}} 2\n'
    result = run_text("prometheus_text", tmp_path, text)
    notes = [r["labels"].get("note") for r in result.counters]
    assert notes == ['a\\b"c} 9\nd', None] and result.rejects == []
    assert [r["link_downed"] for r in result.counters] == [1, 2]


def test_a_sample_without_a_line_end_may_be_cut(tmp_path: Path) -> None:
    """``1`` is what is left of ``1.8e9`` where a scrape was cut."""
    text = f'{NAME}{{{PORT}}} 7\n{NAME}{{{PORT},x="y"}} 1.'
    result = run_text("prometheus_text", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [7]
    (reject,) = result.rejects
    assert reject.offset == "line 2" and "without an end" in reject.reason
    assert (
        run_text("prometheus_text", tmp_path, text[: text.index("\n") + 1] + "# EOF").rejects == []
    )


def test_names_in_quotes_are_others(tmp_path: Path) -> None:
    text = f'{{"my.metric",zone="a"}} 1\n{NAME}{{{PORT}}} 2\n'
    result = run_text("prometheus_text", tmp_path, text)
    assert result.unknown == {"my.metric": 1} and len(result.counters) == 1


@pytest.mark.parametrize(
    "line",
    [
        f"{NAME}{{{PORT}}}",
        f"{NAME}{{{PORT}}} x",
        f"{NAME}{{{PORT}}} 0.5",
        f"{NAME}{{{PORT}}} -1",
        f"{NAME}{{{PORT}}} 1 2 3",
        f'{NAME}{{device="a" port 1}} 1',
        f'{NAME}{{device="a',
        "%%%",
    ],
)
def test_a_bad_line_costs_itself(tmp_path: Path, line: str) -> None:
    text = f"{NAME}{{{PORT}}} 5\n{line}\nnode_load1 2\n"
    result = run_text("prometheus_text", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [5]
    assert [r.offset for r in result.rejects] == ["line 2"]


def test_two_scrapes_in_one_file_contradict(tmp_path: Path) -> None:
    text = f"{NAME}{{{PORT}}} 5\n" * 2 + f"{NAME}{{{PORT}}} 6\n"
    result = run_text("prometheus_text", tmp_path, text, time_from="now")
    assert [(r["ts"], r["link_downed"]) for r in result.counters] == [(NOW, 5)]
    (reject,) = result.rejects
    assert (reject.offset, "one scrape" in reject.hint) == ("line 3", True)


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    text = f"{NAME}{{{PORT}}} 5\n" + "x" * (6 << 20) + f"\n{NAME}{{{PORT.replace('1', '2')}}} 6\n"
    result = run_text("prometheus_text", tmp_path, text)
    assert [r["link_downed"] for r in result.counters] == [5, 6]
    assert len(result.rejects) == 1 and "longer" in result.rejects[0].reason


SWITCH = {"guid": "0x506b4b03005c2740", "port": "35"}


def test_treydock_tells_rates_and_cables(tmp_path: Path) -> None:
    uplink = {
        **SWITCH,
        "switch": "ib-i4l1s01",
        "uplink": "p0001 HCA-1",
        "uplink_guid": "0x506b4b0300cc02a6",
        "uplink_lid": "1432",
        "uplink_port": "1",
        "uplink_type": "CA",
    }
    hca = {"guid": "0x506b4b0300cc02a6"}
    text = matrix(
        series("infiniband_switch_port_link_downed_total", SWITCH, 1, 2),
        series("infiniband_switch_port_rate_bytes_per_second", SWITCH, 1.25e10, 1.25e10),
        series("infiniband_switch_uplink_info", uplink, 1, 1),
        series("infiniband_hca_port_link_downed_total", {**hca, "port": "1"}, 4, 4),
        series("infiniband_hca_rate_bytes_per_second", hca, 2.5e10, 2.5e10),
        series("infiniband_switch_port_raw_rate_bytes_per_second", SWITCH, 1.2890625e10),
        series("infiniband_exporter_collect_errors", {"collector": "switch"}, 0),
    )
    result = run_text("prometheus", tmp_path, text)
    assert result.rejects == []
    rates = {r["link"]: r["rate_gbps"] for r in result.counters}
    assert rates == {"0x506b4b03005c2740/35": 100.0, "0x506b4b0300cc02a6/1": 200.0}
    there = result.links[("0x506b4b03005c2740", 35)]
    assert (there["dst_guid"], there["dst_port"]) == ("0x506b4b0300cc02a6", 1)
    assert (there["src_name"], there["dst_name"]) == ("ib-i4l1s01", "p0001 HCA-1")
    assert there["tier"] == 0 and ("0x506b4b0300cc02a6", 1) in result.links
    assert result.unknown == {
        "infiniband_switch_port_raw_rate_bytes_per_second": 1,
        "infiniband_exporter_collect_errors": 1,
    }


def test_guilbaults_tells_cables(tmp_path: Path) -> None:
    text = matrix(series("infiniband_portxmitwait_total", CABLE, 1))
    links = run_text("prometheus", tmp_path, text).links
    assert links[("0x7cfe9003009ce5b0", 10)]["dst_name"] == "o0001 HCA-1"


def switch_ports(*data: tuple[int, int]) -> str:
    found = []
    for number, (sent, packets) in enumerate(data, 1):
        labels = {"guid": "0x506b4b03005c2740", "port": str(number), "instance": "e:9315"}
        found.append(series("infiniband_switch_port_transmit_data_bytes_total", labels, sent))
        found.append(series("infiniband_switch_port_transmit_packets_total", labels, packets))
    return matrix(*found)


def test_one_port_tells_the_unit_of_its_exporter(tmp_path: Path) -> None:
    # treydock/infiniband_exporter #33. The second port alone is 1,000 bytes a packet or 4,000.
    both = run_text("prometheus", tmp_path, switch_ports((4_000_000, 1000), (1_000_000, 1000)))
    assert [r["data_unit_bytes"] for r in both.counters] == [1, 1] and not both.notes
    # No multiplication by four gives an odd number: words, where no packet size says else.
    odd = run_text("prometheus", tmp_path, switch_ports((1_000_001, 1000), (1_000_000, 1000)))
    assert [r["data_unit_bytes"] for r in odd.counters] == [4, 4] and not odd.notes


def test_physical_state_is_kept(tmp_path: Path) -> None:
    labels = {"device": "mlx5_0", "port": "1", "instance": "n:9100"}
    text = matrix(
        series("node_infiniband_state_id", labels, 4, 4),
        series("node_infiniband_physical_state_id", labels, 5, 6),
    )
    ports = run_text("prometheus", tmp_path, text).rows("ports")
    assert [(p["state"], p["extra"]) for p in ports] == [
        ("ACTIVE", {"physical_state_id": "5"}),
        ("ACTIVE", {"physical_state_id": "6"}),
    ]


def test_histograms_in_a_response_are_named(tmp_path: Path) -> None:
    histogram = {
        "metric": {"__name__": "request_seconds", "job": "x"},
        "histograms": [[T0, {"count": "5", "sum": "1", "buckets": [[0, "0", "1", "5"]]}]],
    }
    counter = series(NAME, {"device": "mlx5_0", "port": "1", "instance": "n:9100"}, 1, 2)
    for order in ((histogram, counter), (counter, histogram)):
        result = run_text("prometheus", tmp_path, matrix(*order))
        assert [r["link_downed"] for r in result.counters] == [1, 2]
        assert result.rejects == [] and result.unknown == {"request_seconds": 1}


@pytest.mark.parametrize("size", [100, 777, 5000])
def test_long_series_are_read_in_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    labels = {"device": "mlx5_0", "port": "1", "instance": "n:9100"}
    late = [None] * 150 + list(range(250))
    text = matrix(
        series(NAME, labels, *range(400)),
        series("node_infiniband_symbol_error_total", labels, *late),
        series("node_infiniband_rate_bytes_per_second", labels, *[5e10] * 400),
    )
    whole = run_text("prometheus", tmp_path, text)
    monkeypatch.setattr(_prometheus_pairs, "_SLICE_BYTES", size)
    for form in (text, text.replace(", ", ",")):
        parts = run_text("prometheus", tmp_path, form)
        assert parts.counters == whole.counters and len(parts.counters) == 400
        assert parts.rejects == []


_NUMBERS = st.one_of(
    st.integers(0, 2**53), st.floats(0, 1e15), st.sampled_from(["NaN", "+Inf", "1e3", "-0"])
)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 4 * 10**12), _NUMBERS), min_size=1, max_size=8))
def test_pairs_are_read_as_json_reads_them(pairs: list[tuple[int, Any]]) -> None:
    values = [[ms / 1000, str(value)] for ms, value in pairs]
    text = json.dumps(values, separators=(",", ":")).encode()
    found = parse_pairs(text)
    assert found is not None
    assert found[0].tolist() == [ms * 1_000_000 for ms, _ in pairs]
    assert [str(float(v)) for v in found[1]] == [str(float(value)) for _, value in pairs]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.binary(max_size=40))
def test_what_is_no_list_of_pairs_is_not_taken_for_one(cut: bytes) -> None:
    found = parse_pairs(cut)
    assert found is None or len(found[0]) == cut.count(b"[") - cut.startswith(b"[[")


@given(
    labels=st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=4
    )
)
def test_labels_round_trip(labels: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    told = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
    assert parse_labels(told) == labels


@pytest.mark.parametrize(
    "metric",
    ["node_infiniband_", "infiniband_scrape_ok", "nccl_", "nccl_other_total", "up", "", "DCGM_"],
)
def test_what_is_not_ours(metric: str) -> None:
    assert recognise(metric) is None


HEAD = b'{"status":"success","data":{"resultType":"matrix","result":['
CUT = f'{{"metric":{{"__name__":"{NAME}","device":"a","port":"1"}},"values":[[1,"1"],'.encode()


@pytest.mark.parametrize(
    "piece",
    [CUT, b'{"metric":{', b'{"metric":{"a', b'{"metric":{"metric":"b"},"values":[[1,"1"]]},'],
)
def test_damage_that_comes_again_and_again_stays_linear(tmp_path: Path, piece: bytes) -> None:
    began = time.process_time()
    run_text("prometheus", tmp_path, HEAD + piece * 20_000)
    assert time.process_time() - began < 20  # it takes one or two


def test_made_up_names_stay_linear(tmp_path: Path) -> None:
    name = 'infiniband_switch_port_a{}_total{{guid="0x1",port="1"}} 1\n'
    text = "".join(name.format(i) for i in range(20_000))
    began = time.process_time()
    result = run_text("prometheus_text", tmp_path, text)
    assert time.process_time() - began < 10
    assert len(result.unknown) == 10_001 and result.unknown["(others)"] == 10_000

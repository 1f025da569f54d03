"""GPU and NCCL metrics in expositions and responses: dcgm-exporter, xpu_timer, Inspector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import claims, run_text
from tests.collectors_ib.test_prometheus import T0, T0_NS, matrix, series
from tests.collectors_ib.test_robust import mutated
from xtune.collectors._prometheus_collectives import size_range

GPU = {
    "gpu": "3",
    "UUID": "GPU-c2f7",
    "modelName": "NVIDIA H100",
    "Hostname": "Node7",
    "instance": "10.0.0.7:9400",
    "pod": "train-0",
}
MIG = {**GPU, "GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "7"}


def lines(labels: dict[str, str], **values: object) -> str:
    told = ",".join(f"{k}={json.dumps(v)}" for k, v in labels.items())
    return "".join(f"{name}{{{told}}} {value}\n" for name, value in values.items())


def gpus(kind: str, folder: Path, text: str, **kwargs: Any) -> list[dict[str, Any]]:
    result = run_text(kind, folder, text, **kwargs)
    assert result.rejects == []
    return result.rows("gpu_samples")


def test_dcgm_units(tmp_path: Path) -> None:
    text = (
        "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
    )
    text += lines(
        GPU,
        DCGM_FI_DEV_GPU_UTIL=87,
        DCGM_FI_PROF_SM_ACTIVE=0.625,
        DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.5,
        DCGM_FI_DEV_FB_USED=2048,
        DCGM_FI_DEV_POWER_USAGE=655.25,
        DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES=9_000_000_000_001,
        DCGM_FI_PROF_NVLINK_TX_BYTES=123456,
        DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL=77,
    )
    text += lines({**GPU, "err_code": "0", "err_msg": "No Error"}, DCGM_FI_DEV_XID_ERRORS=0)
    (row,) = gpus("prometheus_text", tmp_path, text)
    assert (row["host"], row["gpu"], row["ts"]) == ("node7", "3", None)
    assert (row["utilization"], row["sm_active"], row["power_w"]) == (0.87, 0.625, 655.25)
    assert row["memory_used_bytes"] == 2 * 2**30
    # A count of bytes is one; a rate under the same word is not.
    assert (row["nvlink_tx_bytes"], row["nvlink_rx_bytes"]) == (9_000_000_000_001, None)
    assert row["extra"] == {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.5",
        "DCGM_FI_PROF_NVLINK_TX_BYTES": "123456",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "77",
        "DCGM_FI_DEV_XID_ERRORS": "0",
    }
    assert row["labels"]["UUID"] == "GPU-c2f7" and row["labels"]["pod"] == "train-0"


def test_dcgm_in_a_response_is_a_row_a_gpu_and_moment(tmp_path: Path) -> None:
    text = matrix(
        series("DCGM_FI_DEV_GPU_UTIL", GPU, 0, None, 100),
        series("DCGM_FI_DEV_FB_USED", GPU, 1, 2, 3),
        series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", MIG, 0.25),
    )
    rows = gpus("prometheus", tmp_path, text)
    whole = [r for r in rows if r["gpu"] == "3"]
    step = 15 * 10**9
    assert [r["ts"] for r in whole] == [T0_NS, T0_NS + step, T0_NS + 2 * step]
    assert [r["utilization"] for r in whole] == [0.0, None, 1.0]
    assert [r["memory_used_bytes"] for r in whole] == [2**20, 2 * 2**20, 3 * 2**20]
    (part,) = [r for r in rows if r["gpu"] != "3"]
    # MIG has no GPU_UTIL; the engine's share of time is the same thing, finer.
    assert (part["gpu"], part["utilization"], part["host"]) == ("3/7", 0.25, "node7")


@pytest.mark.parametrize("blank", ["9.223372036854775794e+18", "140737488355330", "NaN"])
def test_dcgm_has_words_for_no_value(tmp_path: Path, blank: str) -> None:
    text = lines(GPU, DCGM_FI_DEV_FB_USED=blank, DCGM_FI_DEV_POWER_USAGE=1)
    (row,) = gpus("prometheus_text", tmp_path, text)
    assert row["memory_used_bytes"] is None and row["power_w"] == 1.0
    assert "DCGM_FI_DEV_FB_USED" not in row["extra"]


def test_what_dcgm_exporter_could_not_write_is_unknown(tmp_path: Path) -> None:
    words = "ERROR - FAILED TO CONVERT TO STRING"
    text = lines(GPU, DCGM_FI_DEV_POWER_USAGE=words, DCGM_FI_DEV_GPU_UTIL=50, DCGM_FI_DEV_X=words)
    result = run_text("prometheus_text", tmp_path, text)
    (row,) = result.rows("gpu_samples")
    assert (row["power_w"], row["utilization"], result.rejects) == (None, 0.5, [])
    assert result.notes["value that dcgm-exporter could not write: null"] == 2


def test_dcgm_of_old(tmp_path: Path) -> None:
    labels = {"gpu": "0", "uuid": "GPU-1", "instance": "n5:9400"}
    text = lines(labels, dcgm_gpu_utilization=50, dcgm_fb_used=1, dcgm_power_usage=300)
    (row,) = gpus("prometheus_text", tmp_path, text)
    assert (row["host"], row["utilization"], row["memory_used_bytes"]) == ("n5", 0.5, 2**20)
    path = tmp_path / "input"
    assert max(claims(path), key=claims(path).__getitem__) == "prometheus_text"


def test_ethtool_through_node_exporter(tmp_path: Path) -> None:
    labels = {"device": "eth2", "instance": "N3:9100"}
    text = lines(
        labels,
        node_ethtool_received_bytes_phy="1e+03",
        node_ethtool_transmitted_bytes_phy=2000,
        node_ethtool_received_bytes_total=9,
        node_ethtool_received_prio3_pause_duration=70,
        node_ethtool_received_prio5_pause_duration=1,
        node_ethtool_received_discards_phy=4,
        node_ethtool_info=1,
    )
    result = run_text("prometheus_text", tmp_path, text)
    (row,) = result.counters
    assert (row["link"], row["host"], row["data_unit_bytes"]) == ("n3/eth2/1", "n3", 1)
    # RoCE's bytes are those of the port, not the netdev's; pause is the sum over priorities.
    assert (row["port_xmit_data"], row["port_rcv_data"], row["rx_pause_duration"]) == (
        2000,
        1000,
        71,
    )
    assert row["extra"]["rx_bytes"] == 9 and row["extra"]["rx_prio3_pause_duration"] == 70
    (port,) = result.rows("ports")
    assert (port["netdev"], port["link_layer"]) == ("eth2", "Ethernet")
    answer = matrix(series("node_ethtool_received_prio3_pause_duration", labels, 1, 2))
    assert [r["rx_pause_duration"] for r in run_text("prometheus", tmp_path, answer).counters] == [
        1,
        2,
    ]


XPU = {
    "ip": "10.1.1.1",
    "job_name": "job-9",
    "local_rank": "1",
    "pod_name": "NOT_SET",
    "rank": "9",
    "dtype": "bf16",
    "level": "3",
}
COLL = {
    **XPU,
    "algorithm": "RING_LL",
    "operation": "AllGather",
    "small": "0",
    "transport": "InterNode",
}


def test_xpu_timer(tmp_path: Path) -> None:
    text = "# TYPE exposer_request_latencies summary\n"
    text += 'exposer_request_latencies_count 6\nexposer_request_latencies{quantile="0.5"} 888\n'
    text += lines(
        COLL,
        XPU_TIMER_COLL_KERNEL_AVG_LATENCY=388,
        XPU_TIMER_COLL_KERNEL_MAX_LATENCY=391,
        XPU_TIMER_COLL_KERNEL_BANDWIDTH="43.85",
    )
    matmul = {**XPU, "operation": "Matmul"}
    text += lines(matmul, XPU_TIMER_MM_KERNEL_FLOPS="412.5")
    text += lines({**matmul, "level": "4"}, XPU_TIMER_MM_KERNEL_FLOPS=7)
    common = {k: v for k, v in XPU.items() if k not in ("dtype", "level")}
    text += lines(common, XPU_TIMER_COMMON_HANG=1)
    result = run_text("prometheus_text", tmp_path, text)
    (row,) = result.rows("collectives")
    assert (row["op"], row["duration_ns"], row["dtype"]) == ("all_gather", 388_000, "bf16")
    assert (row["algorithm"], row["protocol"], row["job"]) == ("RING", "LL", "job-9")
    assert (row["rank"], row["host"], row["start_ts"]) == (9, "10.1.1.1", None)
    # Bits over the mean time: neither algorithm nor bus bandwidth.
    assert row["busbw_gigabytes_s"] is None and row["extra"]["bandwidth_gbps"] == "43.85"
    assert row["extra"]["max_latency_us"] == "391"
    (gpu,) = result.rows("gpu_samples")
    assert (gpu["gpu"], gpu["host"], gpu["utilization"]) == ("1", "10.1.1.1", None)
    assert gpu["extra"] == {
        "mm_kernel_flops{bf16,Matmul,level 3}": "412.5",
        "mm_kernel_flops{bf16,Matmul,level 4}": "7",
        "common_hang": "1",
    }
    assert result.unknown == {"exposer_request_latencies": 2}  # a summary is one name


INSPECTOR = {
    "version": "v5.1",
    "slurm_job_id": "77",
    "node": "Node-A",
    "gpu": "GPU0",
    "comm_name": "DP Group 0",
    "n_nodes": "2",
    "nranks": "8",
    "collective": "AllReduce",
    "message_size": "4-5GB",
    "algo_proto": "Ring_ll",
}


def test_inspector_through_node_exporter(tmp_path: Path) -> None:
    text = "# TYPE go_goroutines gauge\ngo_goroutines 8\n# TYPE nccl_bus_bandwidth_gbs untyped\n"
    text += lines(INSPECTOR, nccl_bus_bandwidth_gbs="678.263")
    text += lines(INSPECTOR, nccl_collective_exec_time_microseconds="9498.47")
    text += lines({"gpu": "GPU0"}, nccl_collectives_dropped_total=12, nccl_collectives_total=99)
    text += "".join(f"node_cpu_{i} 1\n" for i in range(20))
    result = run_text("prometheus_text", tmp_path, text)
    (row,) = result.rows("collectives")
    assert (row["op"], row["duration_ns"], row["job"]) == ("all_reduce", 9_498_470, "77")
    assert (row["comm"], row["message_bytes"], row["host"]) == (None, None, "node-a")
    assert row["extra"]["call_bytes_from"] == str(4 * 2**30)
    assert row["extra"]["call_bytes_to"] == str(5 * 2**30 - 1)
    assert result.notes["operations that NCCL Inspector dropped before it wrote them"] == 12
    path = tmp_path / "input"
    found = claims(path)
    assert max(found, key=found.__getitem__) == "prometheus_text"


def test_inspector_from_a_server_is_a_row_a_change(tmp_path: Path) -> None:
    text = matrix(
        series("nccl_collective_exec_time_microseconds", INSPECTOR, 10, 10, 10, 20, 20),
        series("nccl_bus_bandwidth_gbs", INSPECTOR, 5, 5, 5, 2.5, 2.5),
    )
    rows = run_text("prometheus", tmp_path, text).rows("collectives")
    assert [r["duration_ns"] for r in rows] == [10_000, 20_000]
    assert [r["extra"]["exposition_ms"] for r in rows] == [
        str(round(T0 * 1000)),
        str(round((T0 + 45) * 1000)),
    ]


def test_inspector_names_its_slowest_operations(tmp_path: Path) -> None:
    slow = {
        **INSPECTOR,
        "comm_id": "0x0abc",
        "comm_rank": "3",
        "world_rank": "11",
        "collective": "AllGather",
        "message_size_bytes": "1000",
        "top_index": "0",
        "sequence": "41",
        "start_timestamp_us": "1752867229276385",
        "stop_timestamp_us": "1752867229276485",
    }
    text = lines(slow, nccl_collective_slow_event_exec_time_microseconds=100)
    result = run_text("nccl_inspector_prom", tmp_path, text)
    (row,) = result.rows("collectives")
    assert (row["seq"], row["duration_ns"], row["rank"]) == (41, 100_000, 11)
    assert row["comm"] == "0xabc" and row["comm_rank"] == 3
    assert row["message_bytes"] == 8000  # the whole array, as nccl-tests counts
    assert row["start_ts"] == 1752867229276385_000


SCRAPE = (
    lines(GPU, DCGM_FI_DEV_GPU_UTIL=87, DCGM_FI_DEV_FB_USED=2048)
    + lines(COLL, XPU_TIMER_COLL_KERNEL_AVG_LATENCY=388)
    + lines(INSPECTOR, nccl_bus_bandwidth_gbs="678.263")
)
ANSWER = matrix(
    series("DCGM_FI_DEV_GPU_UTIL", GPU, 1, 2),
    series("XPU_TIMER_COLL_KERNEL_AVG_LATENCY", COLL, 3, 4),
    series("nccl_bus_bandwidth_gbs", INSPECTOR, 5, 6),
)


@pytest.mark.parametrize(
    ("kind", "base"),
    [("prometheus_text", SCRAPE), ("prometheus", ANSWER), ("nccl_inspector_prom", SCRAPE)],
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_raises_nothing(kind: str, base: str, tmp_path: Path, data: st.DataObject) -> None:
    result = run_text(kind, tmp_path, data.draw(mutated(base.encode())))
    for row in result.rows("gpu_samples"):
        assert row["utilization"] is None or 0 <= row["utilization"] <= 1


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("4-5GB", 4 << 30, (5 << 30) - 1),
        ("512-513MB", 512 << 20, (513 << 20) - 1),
        ("1023-1024KB", 1023 << 10, (1 << 20) - 1),
        ("7-8B", 7, 7),
        ("0B", 0, 0),
        ("large", None, None),
        (None, None, None),
    ],
)
def test_ranges_of_sizes(text: str | None, low: int | None, high: int | None) -> None:
    assert size_range(text) == (low, high)

"""Bugs that other tools had with counters, and what is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bugs.lakes import collect_paths, collected, port
from tests.hostile.test_user import xtune

AT_S = 1_700_000_000
TOP32 = 2**32 - 1
GUID = "0000:0000:0000:00c1"


def test_data_is_multiplied_by_four_exactly_once(tmp_path: Path) -> None:
    """Case 1. treydock/infiniband_exporter #33, netdata #11991."""
    # The same traffic from sources that print words, and from one that prints bytes.
    times = (AT_S, AT_S + 10)
    words = (10**9, 10**9 + 25 * 10**8)  # 8 Gb/s
    # Of 80 bytes: as 20, which no packet has, the words of an old exporter are told from bytes.
    packets = tuple(w // 20 for w in words)
    telegraf = "".join(
        f"infiniband,device=words,host=h,port=1 port_xmit_data={w}i,port_xmit_packets={p}i "
        f"{t}000000000\n"
        for t, w, p in zip(times, words, packets, strict=True)
    )

    def series(name: str, values: tuple[int, ...], **labels: str) -> dict[str, object]:
        pairs = [[t, str(v)] for t, v in zip(times, values, strict=True)]
        return {"metric": {"__name__": name, **labels}, "values": pairs}

    node = {"instance": "h:9100", "device": "bytes", "port": "1"}
    bytes_ = tuple(4 * w for w in words)
    result = [
        series("node_infiniband_port_data_transmitted_bytes_total", bytes_, **node),
        series("node_infiniband_port_packets_transmitted_total", packets, **node),
    ]
    for number, data in enumerate((words, bytes_)):  # before #33 was mended, and after
        switch = {"instance": f"e{number}:9315", "guid": f"0x{0xA1 + number:016x}", "port": "1"}
        result += [
            series("infiniband_switch_port_transmit_data_bytes_total", data, **switch),
            series("infiniband_switch_port_transmit_packets_total", packets, **switch),
        ]
    response = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    found = collected(tmp_path, {"a.line": telegraf, "b.json": json.dumps(response)})
    assert len({row["link"] for row in found.counters}) == 4
    for row in found.counters:
        mean = row["port_xmit_data"] * row["data_unit_bytes"] / row["port_xmit_packets"]
        assert mean <= 4096 + 100, row
    xtune("rebuild", "--lake", tmp_path / "lake", cwd=tmp_path)
    asked = "SELECT link, tx_gbps FROM link_rates WHERE tx_gbps IS NOT NULL"
    done = xtune("query", asked, "--lake", tmp_path / "lake", "--json", cwd=tmp_path)
    rates = {row["link"]: row["tx_gbps"] for row in json.loads(done.stdout)["rows"]}
    assert len(rates) == 4
    assert list(rates.values()) == [pytest.approx(8.0)] * 4


def test_a_counter_that_is_no_number_costs_itself(tmp_path: Path) -> None:
    """Case 2. node_exporter #966, #1130."""
    values: dict[str, str | int] = {
        "port_xmit_data": 8,
        "link_downed": "N/A (no PMA)",
        "symbol_error": 3,
    }
    found = collected(tmp_path, {**port("i40iw0", values), **port("mlx5_0", {"link_downed": 1})})
    by_device = {row["device"]: row for row in found.counters}
    assert by_device["i40iw0"]["link_downed"] is None
    assert by_device["i40iw0"]["symbol_error"] == 3
    assert by_device["mlx5_0"]["link_downed"] == 1
    assert "N/A (no PMA)" in found.file().reasons[0].reason


def test_a_counter_that_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    """Case 3. node_exporter #3265, procfs #704."""
    files = port("mlx5_0", {"port_xmit_data": 8, "link_downed": 1})
    counters = tmp_path / "in" / "tree/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    # A regular file whose reading fails, as the driver's EINVAL does.
    (counters / "VL15_dropped").symlink_to("/proc/self/mem")
    found = collected(tmp_path, files)
    (row,) = found.counters
    assert (row["VL15_dropped"], row["link_downed"], row["port_xmit_data"]) == (None, 1, 8)
    assert [r.offset for r in found.file().reasons] == ["mlx5_0/ports/1/counters/VL15_dropped"]


def test_a_device_without_counters_hides_no_other(tmp_path: Path) -> None:
    """Case 4. node_exporter #2769, #2846, procfs #589."""
    found = collected(
        tmp_path,
        {**port("irdma0", None, link_layer="Ethernet"), **port("mlx5_0", {"link_downed": 1})},
    )
    assert [row["device"] for row in found.counters] == ["mlx5_0"]
    assert {row["device"] for row in found.rows("ports")} == {"irdma0", "mlx5_0"}
    assert found.file().rejects == 0


def test_omni_path_without_counters_is_a_port_with_its_state(tmp_path: Path) -> None:
    """Case 5. node_exporter #2023."""
    found = collected(tmp_path, port("hfi1_0", None))
    (row,) = found.rows("ports")
    assert (row["device"], row["state"], row["rate_gbps"]) == ("hfi1_0", "ACTIVE", 400.0)
    assert found.counters == [] and found.file().rejects == 0


def test_a_counter_at_its_32_bit_maximum_is_unknown(tmp_path: Path) -> None:
    """Case 6. TACC/remora #17, openucx/ucx #9590."""
    narrow = {"port_xmit_data": TOP32, "port_xmit_packets": 5, "symbol_error": 65535}
    wide = {"port_xmit_data": TOP32, "unicast_xmit_packets": 5, "port_xmit_wait": TOP32}
    found = collected(tmp_path, {**port("old", narrow), **port("new", wide)})
    by_device = {row["device"]: row for row in found.counters}
    old, new = by_device["old"], by_device["new"]
    assert (old["port_xmit_data"], old["symbol_error"], old["port_xmit_packets"]) == (
        None,
        None,
        5,
    )
    assert set(old["saturated"]) == {"port_xmit_data", "symbol_error"}
    # 64 bits wide this is a number as any other; the wait has 32 in sysfs, always.
    assert (new["port_xmit_data"], new["port_xmit_wait"]) == (TOP32, None)


def test_a_node_without_errors_is_no_missing_node(tmp_path: Path) -> None:
    """Case 7. guilbaults/infiniband-exporter #48, #20, #12."""
    quiet = (
        "\n## Summary: 1 nodes checked, 0 bad nodes found\n"
        "##          1 ports checked, 0 ports have errors beyond threshold\n"
    )
    found = collected(tmp_path / "quiet", {"errors.txt": quiet})
    assert found.file().state == "read" and found.file().rejects == 0
    assert found.counters == []
    # A symbol error is not dropped, and what the tool says on stderr is not a counter.
    mixed = (
        "ibwarn: [77] mad_rpc: _do_madrpc failed; dport (Lid 4)\n"
        'Errors for "h1 mlx5_0"\n'
        "   GUID 0xc1 port 1: [SymbolErrorCounter == 7] [LinkDownedCounter == 2]\n"
        "src/query_smp.c:195; umad (DR path slid 0; dlid 0; 0,1,13 Attr 0x11:0) bad status 110; "
        "Connection timed out\n"
        "\n## Summary: 9 nodes checked, 1 bad nodes found\n"
    )
    found = collected(tmp_path / "mixed", {"errors.txt": mixed})
    (row,) = found.counters
    assert (row["symbol_error"], row["link_downed"], row["port"]) == (7, 2, 1)


def test_traffic_is_read_where_mlx5_counts_it(tmp_path: Path) -> None:
    """Case 22. uccl rdmatop #12, #13."""
    hw = {"rx_read_requests": 4, "out_of_buffer": 1}
    found = collected(
        tmp_path, {**port("both", {"port_xmit_data": 1000}, hw), **port("only_hw", None, hw)}
    )
    data = {row["device"]: row["port_xmit_data"] for row in found.counters}
    assert data == {"both": 1000, "only_hw": None}  # unknown, not zero


def test_a_renamed_device_is_the_same_link(tmp_path: Path) -> None:
    """Case 23. unionxic link-down trial: mlx5_0 came back as rocep1s0f0."""
    for number, name in enumerate(("mlx5_0", "rocep1s0f0")):
        folder = tmp_path / f"tree{number}"
        for path, text in port(name, {"port_xmit_data": 10 + number}, guid=GUID).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    found = collect_paths(tmp_path, tmp_path / "tree0" / "tree", tmp_path / "tree1" / "tree")
    assert {row["device"] for row in found.counters} == {"mlx5_0", "rocep1s0f0"}
    assert {row["link"] for row in found.counters} == {"0x00000000000000c1/1"}


def test_a_device_that_is_renamed_while_it_is_sampled_does_not_freeze(tmp_path: Path) -> None:
    """Case 23. unionxic link-down trial, live."""
    for path, text in port("mlx5_0", {"port_xmit_data": 10}, guid=GUID).items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    devices = tmp_path / "tree" / "class" / "infiniband"
    lake = tmp_path / "lake"
    command = [sys.executable, "-c", "import sys; from xtune.cli import main; sys.exit(main())"]
    command += ["collect", "--sysfs", str(tmp_path / "tree"), "--lake", str(lake)]
    running = subprocess.Popen(
        [*command, "--interval", "100ms", "--duration", "60s"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        time.sleep(4)
        (devices / "mlx5_0").rename(devices / "rocep1s0f0")
        counters = devices / "rocep1s0f0" / "ports" / "1" / "counters"
        (counters / "port_xmit_data").write_text("99\n")
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=30)[1].decode()
    finally:
        running.kill()
    sql = "SELECT device, link, max(port_xmit_data) AS data FROM link_counters GROUP BY ALL"
    done = xtune("query", sql, "--lake", lake, "--json", cwd=tmp_path)
    rows = {row["device"]: row for row in json.loads(done.stdout)["rows"]}
    assert {name: row["data"] for name, row in rows.items()} == {
        "mlx5_0": 10,
        "rocep1s0f0": 99,
    }, said
    assert len({row["link"] for row in rows.values()}) == 1

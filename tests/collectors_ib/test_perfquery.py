"""perfquery's blocks: merged, told apart, and never taken for what they are not.

The texts are written by hand from infiniband-diags' sources (perfquery.c, libibmad's fields.c).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_ib.helpers import NOW, Result, claims, run_text

#: PortCounters in the tool's order; names of today and of before 2011.
NARROW = (
    ("SymbolErrorCounter", "SymbolErrors", "symbol_error"),
    ("LinkErrorRecoveryCounter", "LinkRecovers", "link_error_recovery"),
    ("LinkDownedCounter", "LinkDowned", "link_downed"),
    ("PortRcvErrors", "RcvErrors", "port_rcv_errors"),
    ("PortRcvRemotePhysicalErrors", "RcvRemotePhysErrors", "port_rcv_remote_physical_errors"),
    ("PortRcvSwitchRelayErrors", "RcvSwRelayErrors", "port_rcv_switch_relay_errors"),
    ("PortXmitDiscards", "XmtDiscards", "port_xmit_discards"),
    ("PortXmitConstraintErrors", "XmtConstraintErrors", "port_xmit_constraint_errors"),
    ("PortRcvConstraintErrors", "RcvConstraintErrors", "port_rcv_constraint_errors"),
    ("LocalLinkIntegrityErrors", "LinkIntegrityErrors", "local_link_integrity_errors"),
    ("ExcessiveBufferOverrunErrors", "ExcBufOverrunErrors", "excessive_buffer_overrun_errors"),
    ("VL15Dropped", "VL15Dropped", "VL15_dropped"),
    ("PortXmitData", "XmtData", "port_xmit_data"),
    ("PortRcvData", "RcvData", "port_rcv_data"),
    ("PortXmitPkts", "XmtPkts", "port_xmit_packets"),
    ("PortRcvPkts", "RcvPkts", "port_rcv_packets"),
    ("PortXmitWait", "XmtWait", "port_xmit_wait"),
)
#: The value at which each of them sticks (IBA volume 1, 16.1.3).
TOPS = dict(
    zip(
        (kernel for _, _, kernel in NARROW),
        (65535, 255, 255, 65535, 65535, 65535, 65535, 255, 255, 15, 15, 65535, *[2**32 - 1] * 5),
        strict=True,
    )
)


def line(name: str, value: object) -> str:
    """One field as libibmad prints it."""
    return f"{name}:{'.' * max(0, 32 - len(name))}{value}\n"


def block(
    values: Mapping[str, object],
    *,
    kind: str = "Port counters",
    lid: int = 5,
    port: int = 1,
    mask: str = " (CapMask: 0x5A00)",
) -> str:
    head = f"# {kind}: Lid {lid} port {port}{mask}\n"
    return (
        head
        + line("PortSelect", port)
        + line("CounterSelect", "0x0000")
        + "".join(line(name, value) for name, value in values.items())
    )


def wide(values: Mapping[str, object], **about: int) -> str:
    mask = " (CapMask: 0x5300 CapMask2: 0x0000002)"
    return block(values, kind="Port extended counters", mask=mask, **about)


def read(folder: Path, text: str | bytes, **context: object) -> Result:
    return run_text("perfquery", folder, text, **context)


@pytest.mark.parametrize("era", [0, 1])
def test_names_of_every_tool_version(era: int, tmp_path: Path) -> None:
    values = {names[era]: n + 1 for n, names in enumerate(NARROW)}
    (row,) = read(tmp_path, block(values)).counters
    assert {kernel: row[kernel] for _, _, kernel in NARROW} == {
        kernel: n + 1 for n, (_, _, kernel) in enumerate(NARROW)
    }
    assert row["data_unit_bytes"] == 4 and row["saturated"] == []


def test_a_counter_at_its_width_is_unknown_and_said() -> None:
    for kernel, top in TOPS.items():
        name = next(new for new, _, k in NARROW if k == kernel)
        for value, known in ((top, False), (top - 1, True)):
            with tempfile.TemporaryDirectory() as folder:
                (row,) = read(Path(folder), block({name: value, "QP1Dropped": 3})).counters
            assert row[kernel] == (value if known else None), kernel
            assert row["saturated"] == ([] if known else [kernel])
            assert row["extra"] == {"qp1_dropped": 3}


def test_the_64_bit_set_counts_where_both_are_read(tmp_path: Path) -> None:
    """Separate reads: the values differ, and neither that nor a full 32-bit counter matters."""
    narrow = {
        "PortXmitData": 2**32 - 1,
        "PortXmitPkts": 0x12526DB7,
        "SymbolErrorCounter": 4,
        "PortXmitWait": 2**32 - 1,
    }
    extended = {"PortXmitData": 5 * 2**40, "PortXmitPkts": 0x12526DD7, "PortUnicastXmitPkts": 7}
    for text in (block(narrow) + wide(extended), wide(extended) + block(narrow)):
        (row,) = read(tmp_path, text).counters
        assert row["port_xmit_data"] == 5 * 2**40 and row["port_xmit_packets"] == 0x12526DD7
        assert row["unicast_xmit_packets"] == 7 and row["symbol_error"] == 4
        assert row["port_xmit_wait"] is None and row["saturated"] == ["port_xmit_wait"]


def test_a_zero_of_a_counter_the_port_lacks_is_unknown(tmp_path: Path) -> None:
    """Bits of ClassPortInfo: 9 extended width, 12 PortXmitWait, 15 QP1Dropped; second mask 1."""
    narrow = {"SymbolErrorCounter": 0, "PortXmitWait": 0, "QP1Dropped": 0}
    for mask, wait, extra in (
        ("0x1400", 0, {}),
        ("0x8200", None, {"qp1_dropped": 0}),
        ("0x9600", 0, {"qp1_dropped": 0}),
    ):
        result = read(tmp_path, block(narrow, mask=f" (CapMask: {mask})"))
        (row,) = result.counters
        assert row["port_xmit_wait"] == wait and row["extra"] == extra, mask
        assert row["symbol_error"] == 0
        assert any("CapMask" in note for note in result.notes) == (mask != "0x9600")
    extended = {
        "PortXmitData": 0,
        "PortUnicastXmitPkts": 0,
        "LinkDownedCounter": 0,
        "PortXmitDiscards": 0,
        "PortXmitWait": 0,
        "QP1Dropped": 0,
    }
    head = "Port extended counters"
    text = block(extended, kind=head, mask=" (CapMask: 0x5A00 CapMask2: 0x0000000)")
    (row,) = read(tmp_path, text).counters
    assert row["port_xmit_data"] == 0 and row["unicast_xmit_packets"] == 0
    assert row["link_downed"] is row["port_xmit_discards"] is row["port_xmit_wait"] is None
    assert row["extra"] == {}
    text = block(extended, kind=head, mask=" (CapMask: 0x1400 CapMask2: 0x0000002)")
    (row,) = read(tmp_path, text).counters
    assert row["port_xmit_data"] == 0 and row["unicast_xmit_packets"] is None
    assert row["link_downed"] == row["port_xmit_wait"] == 0


def test_what_the_extended_set_lacks_does_not_hide_the_32_bit_counter(tmp_path: Path) -> None:
    mask = " (CapMask: 0x5A00 CapMask2: 0x0000000)"
    extended = {"PortXmitData": 2**40, "SymbolErrorCounter": 0, "PortXmitWait": 0}
    text = block({"SymbolErrorCounter": 7, "PortXmitWait": 9, "PortXmitData": 3})
    text += block(extended, kind="Port extended counters", mask=mask)
    (row,) = read(tmp_path, text).counters
    assert (row["symbol_error"], row["port_xmit_wait"]) == (7, 9)
    assert row["port_xmit_data"] == 2**40


def test_extended_errors_have_64_bits(tmp_path: Path) -> None:
    values = {
        "PortXmitData": 1,
        "SymbolErrorCounter": 65535,
        "LinkDownedCounter": 255,
        "PortXmitWait": 2**32 - 1,
        "QP1Dropped": 65535,
        "LocalLinkIntegrityErrors": 15,
    }
    (row,) = read(tmp_path, wide(values)).counters
    assert (row["symbol_error"], row["link_downed"], row["port_xmit_wait"]) == (
        65535,
        255,
        2**32 - 1,
    )
    assert row["local_link_integrity_errors"] == 15 and row["extra"] == {"qp1_dropped": 65535}
    assert not row["saturated"]
    (row,) = read(tmp_path, wide({"PortXmitData": 2**64 - 1})).counters
    assert row["port_xmit_data"] is None and row["saturated"] == ["port_xmit_data"]


def test_a_loop_over_ports_is_a_row_a_port_and_the_sum_is_none(tmp_path: Path) -> None:
    text = "".join(block({"PortXmitPkts": 10 * p}, port=p) for p in range(1, 37))
    text += block({"PortXmitPkts": 10 * 36 * 37 // 2}, port=255)
    result = read(tmp_path, text)
    assert {r["port"]: r["port_xmit_packets"] for r in result.counters} == {
        p: 10 * p for p in range(1, 37)
    }
    assert result.notes["sum over all ports (port 255): left out"] == 1
    assert not result.rejects


def test_a_port_read_again_is_the_next_sample_and_only_the_last_has_the_files_time(
    tmp_path: Path,
) -> None:
    text = "".join(block({"PortXmitPkts": n}) + wide({"PortXmitPkts": n}) for n in range(4))
    result = read(tmp_path, text, time_from="now")
    assert [(r["port_xmit_packets"], r["ts"]) for r in result.counters] == [
        (0, None),
        (1, None),
        (2, None),
        (3, NOW),
    ]
    assert result.notes["earlier samples of a port have no time: ts is null"] == 3
    assert all(r["ts"] is None for r in read(tmp_path, text).counters)


@pytest.mark.parametrize(
    ("stamp", "tz", "ts"),
    [
        ("2025-08-06T16:11:23Z", None, 1_754_496_683_000_000_000),
        ("=== 2025-08-06 18:11:23.5+02:00 ===", None, 1_754_496_683_500_000_000),
        ("1754496683", None, 1_754_496_683_000_000_000),
        ("Wed Aug  6 16:11:23 UTC 2025", None, 1_754_496_683_000_000_000),
        ("Wed Aug  6 18:11:23 CEST 2025", "Europe/Berlin", 1_754_496_683_000_000_000),
        ("Wed Aug  6 18:11:23 CEST 2025", None, None),
    ],
)
def test_a_time_that_a_loop_prints_counts_for_what_follows(
    stamp: str, tz: str | None, ts: int | None, tmp_path: Path
) -> None:
    text = f"{stamp}\n{block({'PortXmitPkts': 1})}"
    (row,) = read(tmp_path, text, tz=tz).counters
    assert row["ts"] == ts


def test_the_link_is_by_guid_where_the_text_says_the_nodes(tmp_path: Path) -> None:
    info = "# Node info: Lid 5\n" + line("NodeType", "Switch") + line("{}", "0x1c34da0300010540")
    for name in ("Guid", "NodeGuid"):
        text = info.format(name).replace("{}", name) + block({"PortXmitPkts": 1})
        text += block({"PortXmitPkts": 2}, lid=6)
        known, other = read(tmp_path, text).counters
        assert known["link"] == "0x1c34da0300010540/1" and known["labels"] == {"lid": "5"}
        assert other["node_guid"] is None and "lid-6" in other["link"]
    (row,) = read(tmp_path, "switchguid=0xa1(a1)\n" + block({"PortXmitPkts": 1})).counters
    assert row["link"] == "0x00000000000000a1/1"


def test_a_lid_is_no_identity_beyond_its_file(tmp_path: Path) -> None:
    one, two = (read(tmp_path, block({"PortXmitPkts": n})).counters[0] for n in (1, 2))
    assert one["link"] != two["link"] and one["link"].startswith("unknown-")
    (row,) = read(tmp_path, block({"PortXmitPkts": 1}), host="Leaf1").counters
    assert row["link"] == "leaf1/lid-5/1" and row["host"] == "leaf1"
    direct = block({"PortXmitPkts": 1}).replace("Lid 5", "DR path slid 0; dlid 0; 0,1,2")
    (row,) = read(tmp_path, direct).counters
    assert row["labels"] == {} and "0,1,2" in row["link"]
    gid = block({"PortXmitPkts": 1}).replace("Lid 5", "Lid 5 Gid fe80::1c34:da03:1:540")
    assert read(tmp_path, gid).counters[0]["labels"]["port_guid"] == "0x1c34da0300010540"


def test_messages_of_the_tool_between_the_lines_change_nothing(tmp_path: Path) -> None:
    clean = block({"PortXmitPkts": 1, "PortRcvPkts": 2}) + block({"PortXmitPkts": 3}, port=2)
    noise = "ibwarn: [4192] mad_rpc: _do_madrpc failed; dport (Lid 2)\n"
    lines = clean.splitlines(keepends=True)
    mixed = "".join(piece + noise for piece in lines)
    result = read(tmp_path, mixed + "perfquery: iberror: failed: perfquery\n")
    keep = ("port", "port_xmit_packets", "port_rcv_packets")
    assert [[r[k] for k in keep] for r in result.counters] == [[1, 1, 2], [2, 3, None]]
    assert result.notes["message of the tool between the counters"] == len(lines) + 1
    # Glued to a value it spoils that value only.
    glued = clean.replace("PortXmitPkts:....................3", "PortXmitPkts:....3" + noise[:-1])
    result = read(tmp_path, glued)
    assert [r["port_xmit_packets"] for r in result.counters] == [1]
    assert len(result.rejects) == 1 and "not a name and a value" in result.rejects[0].reason


DETAILS = {
    "PortRcvErrorDetails": ("PortLocalPhysicalErrors", "port_local_physical_errors", 65535),
    "PortXmitDiscardDetails": ("PortInactiveDiscards", "port_inactive_discards", 65535),
    "PortXmitDataSL": ("XmtDataSL3", "xmt_data_sl3", 2**32 - 1),
    "PortRcvDataSL": ("RcvDataSL3", "rcv_data_sl3", 2**32 - 1),
    "PortVLXmitWaitCounters": ("PortVLXmitWait0", "port_vlxmit_wait0", 65535),
    "PortRcvConCtrl": ("PortPktRcvFECN", "port_pkt_rcv_fecn", 2**32 - 1),
    "SwPortVLCongestion": ("SWPortVLCongestion1", "swport_vlcongestion1", 65535),
    "PortExtendedSpeedsCounters with RS-FEC Active": (
        "PortFECCorrectableBlockCtr",
        "port_feccorrectable_block_ctr",
        2**32 - 1,
    ),
}


@pytest.mark.parametrize("kind", DETAILS)
def test_details_are_kept_in_extra_and_fill_no_column(kind: str, tmp_path: Path) -> None:
    name, key, top = DETAILS[kind]
    text = block({name: 12}, kind=f"{kind} counters", mask="")
    (row,) = read(tmp_path, text).counters
    assert row["extra"] == {key: 12}
    filled = {k for k, v in row.items() if v not in (None, [], {})}
    assert filled == {"link", "device", "port", "data_unit_bytes", "labels", "extra"}
    (row,) = read(tmp_path, block({name: top}, kind=f"{kind} counters", mask="")).counters
    assert row["extra"] == {} and row["saturated"] == [key]
    # Beside the port's own counters it is the same sample.
    (row,) = read(tmp_path, block({"PortXmitPkts": 4}) + text).counters
    assert row["port_xmit_packets"] == 4 and row["extra"] == {key: 12}


def test_the_tick_of_samples_control_is_kept(tmp_path: Path) -> None:
    head = "# PortSamplesControl: Lid 5 port 1\n" + line("OpCode", "0x00")
    control = head + line("PortSelect", 1) + line("Tick", "0x07") + line("CounterWidth", 3)
    (row,) = read(tmp_path, control + block({"PortXmitWait": 9})).counters
    assert row["extra"] == {"tick": 7} and row["port_xmit_wait"] == 9


def test_what_is_no_number_is_null_and_counted(tmp_path: Path) -> None:
    result = read(tmp_path, block({"PortXmitPkts": "N/A", "PortRcvPkts": -1, "PortXmitWait": 8}))
    (row,) = result.counters
    assert row["port_xmit_packets"] is None and row["port_rcv_packets"] is None
    assert row["port_xmit_wait"] == 8 and result.notes["value that is no number: null"] == 2
    result = read(tmp_path, block({"PortNovelCounter": 5}))
    assert result.unknown == {"PortNovelCounter": 1}
    assert result.counters[0]["extra"] == {"port_novel": 5}


def test_counters_without_a_header_are_no_port(tmp_path: Path) -> None:
    result = read(tmp_path, line("PortXmitPkts", 4) + block({"PortXmitPkts": 1}))
    assert [r["port_xmit_packets"] for r in result.counters] == [1]
    assert result.rejects[0].offset.startswith("line 1 ")


WHOLE = "".join(
    block({new: 1000 + 7 * n for n, (new, _, _) in enumerate(NARROW)}, port=p)
    + wide({"PortXmitData": 2**40 + p, "PortRcvData": 2**41 + p}, port=p)
    for p in range(1, 4)
)


def _values(result: Result) -> set[tuple[int, str, object]]:
    skip = {"link", "labels", "extra", "saturated", "device", "data_unit_bytes"}
    return {
        (row["port"], name, value)
        for row in result.counters
        for name, value in row.items()
        if value is not None and name not in skip
    }


def test_a_file_cut_anywhere_gives_no_value_that_the_whole_does_not(tmp_path: Path) -> None:
    """A cut 64-bit block falls back on the 32-bit one, whose values are the whole file's too."""
    allowed = _values(read(tmp_path, WHOLE)) | {
        (p, kernel, 1000 + 7 * n) for p in range(1, 4) for n, (_, _, kernel) in enumerate(NARROW)
    }
    last = ("PortXmitWait", "port_xmit_wait")
    for cut in range(len(WHOLE) - 700, len(WHOLE), 3):
        text = WHOLE[:cut]
        found = _values(read(tmp_path, text))
        if text.splitlines()[-1].startswith(last[0]):
            # The block's last field: a missing line end alone does not make it doubtful.
            found = {v for v in found if v[1] != last[1]}
        assert found <= allowed, text[-60:]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_bytes_never_raise(data: st.DataObject) -> None:
    raw = bytearray(WHOLE.encode())
    for _ in range(data.draw(st.integers(1, 30))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        result = read(Path(folder), bytes(raw))
    assert all(0 <= row["port"] < 255 for row in result.counters)


def test_memory_is_bounded_by_the_ports_not_by_the_file(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "input"
    rng = random.Random(5)
    with path.open("w") as file:
        for _ in range(4000):
            file.write(wide({"PortXmitPkts": rng.randrange(2**40)}, port=rng.randrange(1, 9)))
    from tests.collectors_ib.helpers import context
    from xtune.collectors import Rows, Source
    from xtune.collectors.perfquery import COLLECTOR

    rows = 0
    tracemalloc.start()
    for item in COLLECTOR.read(Source(path, "input"), context()):
        rows += item.batch.num_rows if isinstance(item, Rows) else 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 4000 and peak < 40e6


def test_it_is_recognised_by_its_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "input"
    for text in (block({"PortXmitPkts": 1}), "noise\n" + wide({"PortXmitPkts": 1})):
        path.write_text(text)
        assert max(claims(path).items(), key=lambda c: c[1])[0] == "perfquery"
    path.write_text("perfquery: iberror: failed: classportinfo query\n")
    assert max(claims(path).items(), key=lambda c: c[1])[0] == "perfquery"
    result = read(tmp_path, path.read_text())
    assert not result.tables and not result.rejects and result.notes
    path.write_text("PortXmitPkts:....................3\n")
    assert "perfquery" not in claims(path)

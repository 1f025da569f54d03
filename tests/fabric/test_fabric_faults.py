"""What a reading of the fabric says, and keeps, where something is wrong: the tools' words here
are written by hand, as infiniband-diags prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.collectors_ib.helpers import NOW, Result, context, gather
from xtune.collectors._fabric import DATA, DISCOVER, ERRORS, Fabric, Output

SWITCH, HOST, PORT = "0x00000000000000a1", "0x00000000000000c0", "0x00000000000000c1"
TOPOLOGY = """\
#
# Topology file: generated on Wed Aug  6 16:11:23 2025

vendid=0x2c9
devid=0xd2f2
switchguid=0xa1(a1)
Switch\t40 "S-00000000000000a1"\t\t# "leaf" enhanced port 0 lid 4 lmc 0
[1]\t"H-00000000000000c0"[1](c1) \t\t# "node mlx5_0" lid 9 4xNDR

vendid=0x2c9
devid=0x1021
caguid=0xc0
Ca\t1 "H-00000000000000c0"\t\t# "node mlx5_0"
[1](c1) \t"S-00000000000000a1"[1]\t\t# lid 9 lmc 0 "leaf" lid 4 4xNDR
"""
DATA_TEXT = """\
Data Counters for 0xa1 "leaf"
   GUID 0xa1 port 1: [PortXmitData == 4000 (15.625KB)] [PortUnicastXmitPkts == 8 (8.000)]
   GUID 0xa1 port 2: [PortXmitData == 0 (0.000B)] [PortUnicastXmitPkts == 0 (0.000)]
Data Counters for 0xc0 "node mlx5_0"
   GUID 0xc0 port 1: [PortXmitData == 5000 (19.531KB)] [PortUnicastXmitPkts == 9 (9.000)]

## Summary: 2 nodes checked, 0 bad nodes found
"""
ERRORS_TEXT = """\
Errors for "node mlx5_0"
   GUID 0xc1 port 1: [PortXmitWait == 6000000000 (5.588G)]

## Summary: 2 nodes checked, 1 bad nodes found
##          41 ports checked, 1 ports have errors beyond threshold
## Thresholds:
## Suppressed:
"""
ABLE = "# Port counters: Lid 4 port 1 (CapMask: 0x5300)\nPortSelect:......................1\n"
TICK = "# PortSamplesControl: Lid 4 port 1\nOpCode:..........................0x00\nTick:....0x07\n"

Answer = Callable[[Sequence[str]], Output]


def said(text: str, *errors: str, status: int | None = 0) -> Output:
    lines = text.splitlines()
    return Output(
        lines=[(NOW + n, line) for n, line in enumerate(lines)], errors=errors, status=status
    )


class Tools:
    """A fabric's tools; what differs from a healthy one is given by the command's first words."""

    def __init__(self, **answers: Output | list[Output]) -> None:
        self.asked: list[Sequence[str]] = []
        self.answers: dict[str, Output | list[Output]] = {
            "discover": said(TOPOLOGY),
            "data": said(DATA_TEXT),
            "errors": said(ERRORS_TEXT, status=1),
            "able": said(ABLE),
            "tick": said(TICK),
            **answers,
        }

    def __call__(self, commands: Sequence[Sequence[str]]) -> list[Output]:
        self.asked += commands
        return [self._answer(command) for command in commands]

    def _answer(self, command: Sequence[str]) -> Output:
        if command[0] == "perfquery":
            name = "tick" if "-c" in command else "able"
        elif command[0] == "ibnetdiscover":
            name = "discover"
        else:
            name = "data" if "--counters" in command else "errors"
        answer = self.answers[name]
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        self.now += 10**9
        return self.now


def fabric(tools: Tools) -> Fabric:
    return Fabric(tools, Clock(), context())


def read(tools: Tools) -> Result:
    return gather(fabric(tools).read())


def rows(result: Result) -> dict[str, dict[str, object]]:
    return {r["link"]: r for r in result.counters}


def test_silence_about_errors_is_zero_only_where_they_were_read() -> None:
    result = read(Tools())
    assert not result.rejects
    found = rows(result)
    assert set(found) == {f"{SWITCH}/1", f"{HOST}/1"}  # port 2 has no cable
    assert found[f"{SWITCH}/1"]["port_xmit_wait"] == 0
    assert found[f"{SWITCH}/1"]["symbol_error"] == 0
    assert found[f"{HOST}/1"]["port_xmit_wait"] == 6_000_000_000  # 64 bits: not stuck
    assert found[f"{HOST}/1"]["port_xmit_data"] == 5000
    assert found[f"{HOST}/1"]["xmit_wait_tick"] == 8.0
    assert found[f"{HOST}/1"]["rate_gbps"] == 400.0
    assert found[f"{SWITCH}/1"]["ts"] == NOW + 1  # when its line came


def test_a_node_whose_errors_were_not_read_has_null_not_zero() -> None:
    failed = "ibwarn: [12] print_errors: IB_GSI_PORT_COUNTERS query failed on leaf, Lid 4 port 255"
    result = read(Tools(errors=said(ERRORS_TEXT, failed, status=1)))
    found = rows(result)
    assert found[f"{SWITCH}/1"]["symbol_error"] is None
    assert found[f"{SWITCH}/1"]["port_xmit_data"] == 4000
    assert found[f"{HOST}/1"]["symbol_error"] == 0
    assert [r.offset for r in result.rejects] == [f"leaf ({SWITCH})"]


def test_errors_that_were_cut_short_leave_null_and_keep_what_came_before() -> None:
    cut = said("\n".join(ERRORS_TEXT.splitlines()[:2]), status=None)
    result = read(Tools(errors=cut))
    found = rows(result)
    assert found[f"{HOST}/1"]["port_xmit_wait"] == 6_000_000_000
    assert found[f"{HOST}/1"]["symbol_error"] is None
    assert found[f"{SWITCH}/1"]["port_xmit_wait"] is None
    assert "took too long" in result.rejects[0].reason


def test_data_counters_that_were_not_read_leave_the_errors() -> None:
    result = read(Tools(data=said("", status=None)))
    found = rows(result)
    assert set(found) == {f"{HOST}/1"}
    assert found[f"{HOST}/1"]["port_xmit_data"] is None
    assert found[f"{HOST}/1"]["port_xmit_wait"] == 6_000_000_000


def test_a_threshold_that_is_not_zero_makes_silence_unknown() -> None:
    text = ERRORS_TEXT.replace("Thresholds:", "Thresholds: [SymbolErrorCounter = 10]")
    found = rows(read(Tools(errors=said(text, status=1))))
    assert found[f"{SWITCH}/1"]["symbol_error"] is None
    assert found[f"{SWITCH}/1"]["link_downed"] == 0


def test_waiting_is_null_where_the_device_does_not_count_it() -> None:
    found = rows(read(Tools(able=said(ABLE.replace("0x5300", "0x0300")))))
    assert found[f"{SWITCH}/1"]["port_xmit_wait"] is None
    assert found[f"{SWITCH}/1"]["symbol_error"] == 0


def test_without_perfquery_the_tick_is_null() -> None:
    result = read(Tools(able=Output(missing=True), tick=Output(missing=True)))
    found = rows(result)
    assert found[f"{HOST}/1"]["xmit_wait_tick"] is None
    assert found[f"{HOST}/1"]["port_xmit_wait"] == 6_000_000_000
    assert [(r.offset, r.hint) for r in result.rejects] == [
        ("perfquery", "install infiniband-diags")
    ]


def test_no_tool_and_no_fabric_are_one_line_each() -> None:
    for output, words in (
        (Output(missing=True), "not installed"),
        (said("", "ibwarn: [7] mad_rpc_open_port: can't open UMAD port", status=1), "can't open"),
        (said("", status=None), "no answer in time"),
        (said(""), "found nothing"),
    ):
        one = fabric(Tools(discover=output))
        result = gather(one.read())
        assert len(result.rejects) == 1 and words in result.rejects[0].reason
        assert not result.tables and not one.found
        assert not gather(one.read()).rejects  # said once


def test_without_path_records_the_tools_are_run_without_service_levels() -> None:
    failed = said("", "Query SA failed: Connection timed out; sa call path_query failed")
    tools = Tools(data=[failed, said(DATA_TEXT)], errors=[failed, said(ERRORS_TEXT, status=1)])
    one = fabric(tools)
    result = gather(one.read())
    assert len(rows(result)) == 2
    assert any("--skip-sl" in text for text in result.notes)
    gather(one.read())
    assert all("--skip-sl" in c for c in tools.asked[-2:])


def test_topology_is_written_once_and_again_when_it_changed() -> None:
    moved = TOPOLOGY.replace('[1]\t"H-', '[3]\t"H-').replace('a1"[1]', 'a1"[3]')
    tools = Tools(discover=[said(TOPOLOGY), said(moved)])
    one = fabric(tools)
    assert len(gather(one.read()).rows("topology_links")) == 2
    assert not gather(one.read()).rows("topology_links")
    one.now_ns.now += 31 * 10**9  # type: ignore[attr-defined]
    changed = gather(one.read())
    assert {(s, p) for s, p in changed.links} == {(SWITCH, 3), (HOST, 1)}
    one.now_ns.now += 31 * 10**9  # type: ignore[attr-defined]
    assert not gather(one.read()).rows("topology_links")


def test_a_node_more_makes_the_next_reading_discover() -> None:
    more = ERRORS_TEXT.replace("2 nodes", "3 nodes")
    tools = Tools(errors=[said(ERRORS_TEXT), said(more), said(more)])
    one = fabric(tools)
    counts = []
    for _ in range(4):
        gather(one.read())
        counts.append(sum(c[0] == "ibnetdiscover" for c in tools.asked))
    assert counts == [1, 1, 2, 2]


def test_a_discovery_that_fails_later_keeps_what_is_known() -> None:
    tools = Tools(discover=[said(TOPOLOGY), said("", status=None)])
    one = fabric(tools)
    gather(one.read())
    one.now_ns.now += 31 * 10**9  # type: ignore[attr-defined]
    later = gather(one.read())
    assert len(later.rejects) == 1 and len(rows(later)) == 2


def test_lines_that_make_no_sense_are_left_out() -> None:
    noise = DATA_TEXT.replace("port 1: [PortXmitData == 4000 (15.625KB)]", "port 1: [PortXmitDat")
    found = rows(read(Tools(data=said(noise))))
    assert found[f"{SWITCH}/1"]["port_xmit_data"] is None
    assert found[f"{HOST}/1"]["port_xmit_data"] == 5000


def test_no_command_can_clear_a_counter() -> None:
    tools = Tools()
    one = fabric(tools)
    gather(one.read())
    gather(one.read())
    clearing = {"-r", "-R", "-k", "-K", "--Reset_only", "--reset_after_read"}
    for command in [*tools.asked, DISCOVER, DATA, ERRORS]:
        assert not clearing & set(command)
        assert not any("clear" in word.lower() or "reset" in word.lower() for word in command)
    assert len(tools.asked) == 1 + 4 + 2 * 2


def test_without_ibqueryerrors_the_topology_is_kept() -> None:
    result = read(Tools(data=Output(missing=True), errors=Output(missing=True)))
    assert len(result.rows("topology_links")) == 2 and not result.counters
    assert {r.reason for r in result.rejects} == {"not installed"}


def test_a_switch_whose_ports_have_another_guid_than_its_node() -> None:
    other = TOPOLOGY.replace("switchguid=0xa1(a1)", "switchguid=0xa1(a9)")
    errors = (
        ERRORS_TEXT + 'Errors for 0xa9 "leaf"\n   GUID 0xa9 port 1: [LinkDownedCounter == 2]\n'
    )
    found = rows(read(Tools(discover=said(other), errors=said(errors, status=1))))
    assert found[f"{SWITCH}/1"]["link_downed"] == 2 and len(found) == 2


def test_a_tool_that_crashes_is_run_once_more() -> None:
    tools = Tools(data=[said("", status=-11), said(DATA_TEXT)])
    result = read(tools)
    assert len(rows(result)) == 2 and not result.rejects
    assert [c[:2] for c in tools.asked if "--counters" in c] == [DATA[:2]] * 2
    result = read(Tools(errors=[said("", status=-11), said("", status=-11)]))
    assert [r.reason for r in result.rejects] == ["ended with status -11: without a word"]
    assert {r["port_xmit_wait"] for r in result.counters} == {None}

"""Both forms of a small fabric: two leaves, two spines, four hosts, one aggregation node."""

from __future__ import annotations

import random
import re
from pathlib import Path

from tests.collectors_ib.helpers import NOW, Result, claims, run_text

AUGUST = 1_754_496_683_000_000_000  # 2025-08-06 16:11:23 UTC

LEAF1, LEAF2, SPINE1, SPINE2 = (f"{n:016x}" for n in (0xA1, 0xA2, 0xB1, 0xB2))
HOSTS = [f"{n:016x}" for n in (0xC1, 0xC2, 0xC3, 0xC4)]
REDUCER = f"{0xD1:016x}"
HEAD = (
    "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n"
    "# Initiated from node 00000000000000c1 port 00000000000000c1\n\n"
)
#: One physical link a row: (node, port, node, port).
CABLES = [
    (LEAF1, 1, HOSTS[0], 1),
    (LEAF1, 2, HOSTS[1], 1),
    (LEAF2, 1, HOSTS[2], 1),
    (LEAF2, 2, HOSTS[3], 1),
    (LEAF1, 3, SPINE1, 1),
    (LEAF1, 4, SPINE2, 1),
    (LEAF2, 3, SPINE1, 2),
    (LEAF2, 4, SPINE2, 2),
    (SPINE1, 9, REDUCER, 1),
]


def _is_ca(node: str) -> bool:
    return node in (*HOSTS, REDUCER)


def _name(node: str) -> str:
    if node == REDUCER:
        return "Mellanox Technologies Aggregation Node"
    return f"h{node[-1]} mlx5_0" if _is_ca(node) else f" sw-{node[-2:]} "  # with blanks around


def _ends(node: str) -> list[tuple[int, str, int]]:
    found = [(p, b, q) for a, p, b, q in CABLES if a == node]
    return found + [(q, a, p) for a, p, b, q in CABLES if b == node]


def block(node: str) -> str:
    """A block as ibnetdiscover writes it."""
    tag = f'"{"H" if _is_ca(node) else "S"}-{node}"'
    kind = "ca" if _is_ca(node) else "switch"
    lines = [
        "vendid=0x2c9",
        f"devid={'0x1021' if _is_ca(node) else '0xd2f2'}",
        f"sysimgguid=0x{node.lstrip('0')}",
        f"{kind}guid=0x{node.lstrip('0')}" + ("" if _is_ca(node) else f"({node.lstrip('0')})"),
    ]
    if _is_ca(node):
        lines.append(f'Ca\t1 {tag}\t\t# "{_name(node)}"')
        for port, far, far_port in _ends(node):
            lines.append(
                f'[{port}]({node}) \t"S-{far}"[{far_port}]\t\t'
                f'# lid 9 lmc 0 "{_name(far)}" lid 4 4xNDR'
            )
    else:
        lines.append(f'Switch\t65 {tag}\t\t# "{_name(node)}" enhanced port 0 lid 4 lmc 0')
        for port, far, far_port in _ends(node):
            guid = f"({far}) " if _is_ca(far) else ""
            far_tag = f'"{"H" if _is_ca(far) else "S"}-{far}"'
            lines.append(f'[{port}]\t{far_tag}[{far_port}]{guid}\t\t# "{_name(far)}" lid 9 4xNDR')
    return "\n".join(lines) + "\n\n"


def topology() -> str:
    nodes = [LEAF1, LEAF2, SPINE1, SPINE2, *HOSTS, REDUCER]
    return HEAD + "".join(block(n) for n in nodes)


def ports_form() -> str:
    lines = []
    for a, p, b, q in [*CABLES, *((b, q, a, p) for a, p, b, q in CABLES)]:
        kinds = ["CA" if _is_ca(n) else "SW" for n in (a, b)]
        lines.append(
            f"{kinds[0]} {7:5d} {p:2d} 0x{a} 4x NDR - {kinds[1]} {8:5d} {q:2d} 0x{b} "
            f"( '{_name(a)}' - '{_name(b)}' )"
        )
    lines += [
        f"SW {7:5d} 33 0x{LEAF1} 4x SDR                                    ' sw-a1 '",
        f"SW {7:5d} 34 0x{LEAF1} 4x ???                                    sw a1 unquoted",
    ]
    return "\n".join(lines) + "\n"


def expected() -> dict[tuple[str, int], tuple[str, int, int | None]]:
    """Far end and tier by sending end, from the cables."""
    found: dict[tuple[str, int], tuple[str, int, int | None]] = {}
    for a, p, b, q in CABLES:
        tier = None if REDUCER in (a, b) else 0 if _is_ca(b) else 1
        found[f"0x{a}", p] = (f"0x{b}", q, tier)
        found[f"0x{b}", q] = (f"0x{a}", p, tier)
    return found


def seen(result: object) -> dict[tuple[str, int | None], tuple[str, int, int | None]]:
    links = result.links  # type: ignore[attr-defined]
    return {k: (r["dst_guid"], r["dst_port"], r["tier"]) for k, r in links.items()}


def test_blocks(tmp_path: Path) -> None:
    result = run_text("ibnetdiscover", tmp_path, topology(), tz="UTC")
    assert seen(result) == expected()
    assert result.rejects == []
    row = result.links["0x00000000000000a1", 3]
    assert (row["src_name"], row["dst_name"]) == ("sw-a1", "sw-b1")
    assert (row["width"], row["rate_gbps"], row["ts"]) == ("4X", 400.0, AUGUST)
    ports = {p["link"]: p for p in result.rows("ports")}
    assert ports["0x00000000000000c1/1"]["port_guid"] == "0x00000000000000c1"
    assert ports["0x00000000000000c1/1"]["device_family"] == "ConnectX-7"
    assert ports["0x00000000000000a1/3"]["device_family"] == "Quantum-2"


def test_ports_form_is_the_same_fabric(tmp_path: Path) -> None:
    result = run_text("ibnetdiscover", tmp_path, ports_form())
    assert seen(result) == expected()
    ports = {p["link"]: p for p in result.rows("ports")}
    # -p prints port GUIDs: of an adapter the node's is not known, and that is said.
    host, leaf = ports["0x00000000000000c1/1"], ports["0x00000000000000a1/1"]
    assert (host["node_guid"], host["port_guid"]) == (None, "0x00000000000000c1")
    assert leaf["node_guid"] == "0x00000000000000a1"
    assert result.links["0x00000000000000c1", 1]["extra"] == {"src_guid_is": "port"}
    assert result.notes["adapter port known by its port GUID only (-p)"] == 5
    # Nothing is plugged in there: known ports, but no link, and no rate of a link.
    for port in (33, 34):
        row = ports[f"0x00000000000000a1/{port}"]
        assert row["rate_gbps"] is None and row["node_description"] == "sw-a1"
    assert result.rejects == []


def test_an_aggregation_node_is_no_host(tmp_path: Path) -> None:
    result = run_text("ibnetdiscover", tmp_path, topology())
    row = result.links["0x00000000000000b1", 9]
    assert row["tier"] is None and row["extra"]["kind"] == "aggregation node"
    # Were it a host, its spine would be a leaf: the spine links stay at tier 1.
    assert result.links["0x00000000000000b1", 1]["tier"] == 1


def test_order_does_not_matter(tmp_path: Path) -> None:
    blocks = [block(n) for n in (LEAF1, LEAF2, SPINE1, SPINE2, *HOSTS, REDUCER)]
    for seed in range(5):
        random.Random(seed).shuffle(blocks)
        assert seen(run_text("ibnetdiscover", tmp_path, "".join(blocks))) == expected()


def test_one_end_is_enough_for_both_directions(tmp_path: Path) -> None:
    text = HEAD + "".join(block(n) for n in (LEAF1, LEAF2, SPINE1, SPINE2))
    assert seen(run_text("ibnetdiscover", tmp_path, text)) == expected()


def test_a_third_layer_is_tier_2(tmp_path: Path) -> None:
    core = f"{0xE1:016x}"
    lines = [
        f"SW     1  9 0x{SPINE2} 4x NDR - SW     2  1 0x{core} ( 'a' - 'b' )",
        f"SW     2  1 0x{core} 4x NDR - SW     1  9 0x{SPINE2} ( 'b' - 'a' )",
    ]
    result = run_text("ibnetdiscover", tmp_path, ports_form() + "\n".join(lines))
    assert result.links[f"0x{SPINE2}", 9]["tier"] == result.links[f"0x{core}", 1]["tier"] == 2


def test_without_hosts_there_is_no_tier(tmp_path: Path) -> None:
    text = f"SW     1  9 0x{SPINE2} 4x NDR - SW     2  1 0x{LEAF1} ( 'a' - 'b' )\n"
    links = run_text("ibnetdiscover", tmp_path, text).links
    assert len(links) == 2 and {r["tier"] for r in links.values()} == {None}


def test_a_cut_file_keeps_its_good_part_and_says_where(tmp_path: Path) -> None:
    whole = topology()
    cut = whole[: whole.index('"h2 mlx5_0"') + 2]  # in the middle of a name
    result = run_text("ibnetdiscover", tmp_path, cut)
    assert seen(result) == {
        k: (far, port, 0)
        for k, (far, port, _) in expected().items()
        if HOSTS[0] in (k[0][2:], far[2:])
    }
    (reject,) = result.rejects
    assert reject.offset == f"line {len(cut.splitlines())}" and "cut here" in reject.reason


def test_a_file_cut_anywhere_gives_no_other_link_and_no_unplugged_port(tmp_path: Path) -> None:
    """A cut line of the ports form looks like one of a port without a cable."""
    for text in (ports_form(), topology()):
        whole = run_text("ibnetdiscover", tmp_path, text)
        known = {**seen(whole)}
        unplugged = {(r["link"]) for r in whole.rows("ports") if r["rate_gbps"] is None}
        for cut in range(len(text) // 2, len(text), 5):
            result = run_text("ibnetdiscover", tmp_path, text[:cut])
            for end, (far, port, _) in seen(result).items():
                assert known[end][:2] == (far, port)
            bare = {r["link"] for r in result.rows("ports") if r["rate_gbps"] is None}
            assert bare <= unplugged, text[cut - 60 : cut]


def test_lines_of_old_versions_have_no_speed(tmp_path: Path) -> None:
    old = re.sub(r" 4xNDR$", "", topology(), flags=re.M)
    result = run_text("ibnetdiscover", tmp_path, old)
    assert seen(result) == expected() and not result.rejects
    assert {(r["rate_gbps"], r["width"]) for r in result.rows("topology_links")} == {(None, None)}
    with_speed = run_text("ibnetdiscover", tmp_path, topology())
    last = re.findall(r'"[SH]-([0-9a-f]{16})"\[\d+\]', old)[-1]

    def lids(found: Result) -> dict[str, str | None]:
        rows = found.rows("ports")
        return {r["link"]: r["extra"].get("lid") for r in rows if last not in r["link"]}

    assert lids(result) == lids(with_speed)


def test_one_line_without_a_speed_keeps_its_link(tmp_path: Path) -> None:
    text = topology().replace(" 4xNDR\n", "\n", 1)
    result = run_text("ibnetdiscover", tmp_path, text)
    assert seen(result) == expected() and not result.rejects
    ends_so = topology().rstrip().removesuffix(" 4xNDR")
    (reject,) = run_text("ibnetdiscover", tmp_path, ends_so).rejects
    assert "cut here" in reject.reason


def test_full_and_grouped_forms_are_the_same_fabric(tmp_path: Path) -> None:
    full = topology().replace("4xNDR\n", "4xNDR s=4 w=2 v=8\n")
    grouped = topology().replace("[9]\t", "[9][ext 4]\t")
    grouped = grouped.replace("vendid=", "# Spine Nodes\nvendid=", 1)
    grouped = "Chassis 1 (guid 0xa1)\n\n" + grouped + "\nNon-Chassis Nodes\n"
    for text in (full, grouped):
        result = run_text("ibnetdiscover", tmp_path, text)
        assert seen(result) == expected() and not result.rejects


def test_lids_are_kept(tmp_path: Path) -> None:
    for text in (topology(), ports_form()):
        ports = run_text("ibnetdiscover", tmp_path, text).rows("ports")
        found = {r["link"]: r["extra"].get("lid") for r in ports}
        assert all(found.values())
    text = block(HOSTS[0]) + block(LEAF1)
    rows = run_text("ibnetdiscover", tmp_path, text).rows("ports")
    by_node = {r["node_guid"]: r["extra"].get("lid") for r in rows}
    assert by_node[f"0x{HOSTS[0]}"] == "9" and by_node[f"0x{LEAF1}"] == "4"


def test_ports_behind_a_damaged_header_are_nobodys(tmp_path: Path) -> None:
    broken = block(LEAF2).replace(f'"S-{LEAF2}"', '"S-00')
    result = run_text("ibnetdiscover", tmp_path, block(LEAF1) + broken)
    assert not any(f"0x{LEAF2}" in end for end, _ in result.links)
    assert all(r["src_guid"] != f"0x{LEAF1}" or r["src_port"] <= 4 for r in result.links.values())
    assert len(result.rejects) == 1 + 4  # the header, and its four ports


def test_a_list_of_nodes_is_no_topology(tmp_path: Path) -> None:
    text = (
        f'Switch\t : 0x{LEAF1} ports 64 devid 0xd2f2 vendid 0x2c9 "leaf"\n'
        f'Ca\t : 0x{HOSTS[0]} ports 1 devid 0x1021 vendid 0x2c9 "h1 mlx5_0"\n'
    )
    result = run_text("ibnetdiscover", tmp_path, text)
    assert not result.tables and not result.rejects
    assert result.notes == {"a list of nodes (-l) has no ports and no links": 2}


def test_ends_that_disagree_are_kept_and_said(tmp_path: Path) -> None:
    text = (
        f"SW     1  9 0x{SPINE1} 4x NDR - SW     2  1 0x{LEAF1} ( 'a' - 'b' )\n"
        f"SW     2  1 0x{LEAF1} 4x NDR - SW     3  9 0x{SPINE2} ( 'b' - 'c' )\n"
        f"SW     1  9 0x{SPINE1} 4x NDR - SW     4  1 0x{LEAF2} ( 'a' - 'd' )\n"
    )
    result = run_text("ibnetdiscover", tmp_path, text)
    far = {k: r["dst_guid"] for k, r in result.links.items()}
    assert far[f"0x{SPINE1}", 9] == f"0x{LEAF1}" and far[f"0x{LEAF1}", 1] == f"0x{SPINE2}"
    assert result.notes["ends of a link name different neighbours: kept"] == 1
    assert [r.offset for r in result.rejects] == ["line 3"]


def test_times(tmp_path: Path) -> None:
    local = run_text("ibnetdiscover", tmp_path, topology())
    assert {r["ts"] for r in local.links.values()} == {None}
    assert any("--tz" in text for text in local.notes)
    zoned = run_text("ibnetdiscover", tmp_path, topology(), tz="America/New_York")
    assert zoned.links["0x00000000000000a1", 3]["ts"] == AUGUST + 4 * 3600 * 10**9
    # ibdiagnet writes the same blocks below a banner with a zone.
    text = "# Running timestamp : 2025-08-06 16:11:23 UTC +0000\n" + block(LEAF1)
    assert run_text("ibnetdiscover", tmp_path, text).links["0x00000000000000a1", 3]["ts"] == AUGUST
    now = run_text("ibnetdiscover", tmp_path, ports_form(), time_from="now")
    assert now.links["0x00000000000000a1", 3]["ts"] == NOW


def test_labels_of_ibdiagnet_between_port_and_guid(tmp_path: Path) -> None:
    text = (
        "vendid=0x2c9\ndevid=0x1021\nsysimgguid=0xc1\ncaguid=0xc1\n"
        'Ca  1 "H-00000000000000c1"      # "h1 mlx5_0"\n'
        '[1](B134D0F0/0/0/1)(00000000000000c9) "S-00000000000000a1"[9] '
        '# lid 92 lmc 0 "leaf" lid 13 4xNDR\n'
    )
    result = run_text("ibnetdiscover", tmp_path, text)
    ports = {p["link"]: p for p in result.rows("ports")}
    assert ports["0x00000000000000c1/1"]["port_guid"] == "0x00000000000000c9"
    assert set(result.links) == {("0x00000000000000c1", 1), ("0x00000000000000a1", 9)}


def test_claims(tmp_path: Path) -> None:
    path = tmp_path / "anything.txt"
    for text in (topology(), ports_form()):
        path.write_text(text)
        assert max(claims(path).items(), key=lambda c: c[1]) == ("ibnetdiscover", 0.95)
    path.write_text("SW engineers drink 4x coffee\n")
    assert "ibnetdiscover" not in claims(path)


def test_messages_of_the_tool_between_the_lines_change_nothing(tmp_path: Path) -> None:
    noise = "ibwarn: [24] mad_rpc: _do_madrpc failed; dport (DR path slid 0; dlid 0; 0,1,9)\n"
    noise += "src/query_smp.c:195; umad (DR path slid 0; dlid 0; 0,1 Attr 0x11:0) bad status 110\n"
    for text in (topology(), ports_form()):
        lines = text.splitlines(keepends=True)
        result = run_text("ibnetdiscover", tmp_path, noise + noise.join(lines))
        assert seen(result) == expected() and not result.rejects
        assert result.notes["message of the tool between the lines"] == 2 * len(lines)


def test_a_port_is_not_linked_to_itself_whatever_it_is_called(tmp_path: Path) -> None:
    end = "9  1 0x00000000000000c1"
    line = f"CA     {end} 4x NDR - SW     {end} ( 'h1' - 'l1' )\n"
    result = run_text("ibnetdiscover", tmp_path, line)
    assert result.rows("topology_links") == []
    assert [r.reason.partition(":")[0] for r in result.rejects] == [
        "this port is said to lead to itself"
    ]

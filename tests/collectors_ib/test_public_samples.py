"""The public sample files: read whole, and equal to what other tools and pages say of them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.collectors_ib.helpers import Result, claims, run
from tests.samples import samples
from xtune.collectors import all_collectors

pytestmark = pytest.mark.shared_samples
FOLDERS = (
    "influx_line_protocol",
    "ib_ibdiagnet",
    "ib_ibnetdiscover",
    "prom_query_range",
    "ib_prometheus_text",
)


def best(path: Path) -> str:
    found = claims(path)
    return max(found, key=lambda name: found[name])


def test_every_file_is_read_or_rejected_with_a_reason() -> None:
    kinds = {}
    for folder in FOLDERS:
        for path in sorted(samples(folder).iterdir()):
            kind = best(path)
            result = run(kind, path)
            assert result.tables or result.rejects or result.unknown, path
            kinds[path.name] = (kind, bool(result.tables), len(result.rejects))
    read = {name: kind for name, (kind, tables, _) in kinds.items() if tables}
    assert read == {
        "telegraf_infiniband.lp": "telegraf",
        "gmh_ibdiagnet2.db_csv.gz": "ibdiagnet",
        "gmh_ibdiagnet2.ibnetdiscover": "ibnetdiscover",
        "gmh_ibdiagnet2.lst": "ibdiagnet_dump",
        "gmh_ibdiagnet2.net_dump": "ibdiagnet_dump",
        "gmh_ibdiagnet2.net_dump_ext": "ibdiagnet_dump",
        "cyberang3l_k4n3.topo": "ibnetdiscover",
        "topograph_example.out": "ibnetdiscover",
        "treydock_test.out": "ibnetdiscover",
        "treydock_test2.out": "ibnetdiscover",
        "node_exporter_e2e_infiniband.prom": "prometheus_text",
    }
    # A log, an empty statistic, and series of ``up``: nothing of ours, which is said.
    assert {n: v for n, v in kinds.items() if n not in read} == {
        "gmh_ibdiagnet2.log": ("ibdiagnet_dump", False, 1),
        "gmh_ibdiagnet2.rnc2": ("ibdiagnet_dump", False, 1),
        "prom_docs_matrix_0.json": ("prometheus", False, 0),
    }
    assert {n for n, (_, _, rejects) in kinds.items() if rejects} == {
        "gmh_ibdiagnet2.log",
        "gmh_ibdiagnet2.rnc2",
    }


def test_no_other_sample_is_claimed_with_certainty() -> None:
    ours = {"ib_sysfs", "telegraf", "ibdiagnet", "ibdiagnet_dump", "ibnetdiscover", "prometheus"}
    root = samples("PROVENANCE.tsv").parent
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and p.name not in FOLDERS):
        if folder.name == "ib_sysfs":
            continue
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            sure = {n: c for n, c in claims(path).items() if n in ours and c > 0.5}
            assert not sure, (path, sure)


def test_gpu_node_tree() -> None:
    tree = samples("ib_sysfs", "gpud_h100_node")
    assert best(tree) == "ib_sysfs"
    result = run("ib_sysfs", tree)
    assert len(result.counters) == len(result.rows("ports")) == 9
    assert result.rejects == []
    for row in result.counters:
        # The mean packet stays below the MTU and headers; 4 octets a word, not 1.
        mean = 4 * row["port_xmit_data"] / row["port_xmit_packets"]
        assert 2900 < mean < 4300
        assert "excessive_buffer_overrun_errors" in row["saturated"]  # 15 of 4 bits
        assert row["np_cnp_sent"] is None and "lifespan" not in row["extra"]
    bond = next(p for p in result.rows("ports") if p["device"] == "mlx5_bond_0")
    assert (bond["rate_gbps"], bond["link_layer"], bond["device_family"]) == (
        200.0,
        "Ethernet",
        "BlueField-3",
    )


def test_exporter_trees() -> None:
    result = run("ib_sysfs", samples("ib_sysfs", "node_exporter_fixtures", "sys"))
    assert {p["device"] for p in result.rows("ports")} == {"i40iw0", "mlx4_0"}
    assert {r["device"] for r in result.counters} == {"mlx4_0"}
    assert len(result.rejects) == 17 and all("no PMA" in r.reason for r in result.rejects)
    first = result.counters[0]
    assert first["saturated"] == ["port_xmit_wait"] and first["port_xmit_data"] == 3733440
    procfs = run("ib_sysfs", samples("ib_sysfs", "procfs_fixtures", "fixtures", "sys"))
    links = {r["device"]: r["link"] for r in procfs.counters}
    assert links["mlx5_0"] == "0x0a7fbc1245efd23b/1" and procfs.rejects == []
    hfi = next(r for r in procfs.counters if r["device"] == "hfi1_0")
    assert hfi["port_xmit_data"] == 273558326543


def test_telegraf_mean_packet() -> None:
    (row,) = run("telegraf", samples("influx_line_protocol", "telegraf_infiniband.lp")).counters
    assert 4 * row["port_xmit_data"] / row["port_xmit_packets"] == pytest.approx(4164.7, abs=0.05)
    assert row["ts"] == 1737652060000000000 and row["extra"]["rx_write_requests"] == 19000


def db_csv() -> Result:
    return run("ibdiagnet", samples("ib_ibdiagnet", "gmh_ibdiagnet2.db_csv.gz"))


def test_ibdiagnet_fabric() -> None:
    result = db_csv()
    absolute = [r for r in result.counters if r["interval_s"] is None]
    deltas = [r for r in result.counters if r["interval_s"] is not None]
    assert len(absolute) == len(deltas) == len(result.rows("ports")) == 542
    reducers = {p["link"] for p in result.rows("ports") if p["device_family"] is None}
    assert len(reducers) == 7  # the aggregation nodes, for which no rule of ticks is known
    for row in result.counters:
        assert row["xmit_wait_tick"] == (None if row["link"] in reducers else 8.0)
    waits = [r["port_xmit_wait"] for r in absolute]
    assert max(waits) == 1_283_973_573_869 and sum(w > 0 for w in waits) == 517
    # The 32-bit field moved on 16 ports only; the 64-bit one, which counts here, on all.
    moved = [r["port_xmit_data"] for r in deltas]
    assert all(moved) and statistics.median_high(moved) == 281_341_883
    assert {r["interval_s"] for r in deltas} == {1.0}
    assert all(r["saturated"] == [] for r in result.counters)
    families = {p["device_family"] for p in result.rows("ports")}
    assert families == {"Quantum-2", "ConnectX-7", None}
    assert result.rejects == []


def test_four_files_of_one_run_tell_one_fabric() -> None:
    folder = samples("ib_ibdiagnet")
    wanted = {
        k: (r["dst_guid"], r["dst_port"], r["tier"], r["rate_gbps"], r["src_name"])
        for k, r in db_csv().links.items()
    }
    assert len(wanted) == 542
    for kind, name in (
        ("ibnetdiscover", "gmh_ibdiagnet2.ibnetdiscover"),
        ("ibdiagnet_dump", "gmh_ibdiagnet2.lst"),
    ):
        links = run(kind, folder / name).links
        found = {
            k: (r["dst_guid"], r["dst_port"], r["tier"], r["rate_gbps"], r["src_name"])
            for k, r in links.items()
        }
        assert found == wanted
    dump = run("ibdiagnet_dump", folder / "gmh_ibdiagnet2.net_dump")
    for row in dump.rows("topology_links"):
        far = wanted[row["src_guid"], row["src_port"]]
        assert (row["dst_guid"], row["dst_port"] or far[1], row["tier"]) == far[:3]
    # 256 adapters, 8 uplinks of one cable each, 7 aggregation nodes; two directions each.
    tiers = [far[2] for far in wanted.values()]
    assert (tiers.count(0), tiers.count(1), tiers.count(None)) == (512, 16, 14)


def test_the_extended_dump_links_every_port_back() -> None:
    result = run("ibdiagnet_dump", samples("ib_ibdiagnet", "gmh_ibdiagnet2.net_dump_ext"))
    links = result.links
    assert len(links) == 528
    for (guid, port), row in links.items():
        back = links[row["dst_guid"], row["dst_port"]]
        assert (back["dst_guid"], back["dst_port"]) == (guid, port)


@pytest.mark.parametrize(
    ("name", "hosts", "tiers"),
    [
        ("topograph_example.out", 542, {0: 1084, 1: 1064, None: 80}),
        ("cyberang3l_k4n3.topo", 128, {0: 256, 1: 256, 2: 256}),
    ],
)
def test_discovered_fabrics(name: str, hosts: int, tiers: dict[int | None, int]) -> None:
    path = samples("ib_ibnetdiscover", name)
    result = run("ibnetdiscover", path)
    links = result.links
    # Each end has a line of its own in the file, and each line is a direction.
    lines = [line for line in path.read_text().splitlines() if line.startswith("[")]
    assert len(links) == len(lines)
    counts = {tier: sum(r["tier"] == tier for r in links.values()) for tier in tiers}
    assert counts == tiers and sum(counts.values()) == len(links)
    assert counts[0] == 2 * hosts
    assert result.rejects == []


def test_ports_form_with_unconnected_ports() -> None:
    result = run("ibnetdiscover", samples("ib_ibnetdiscover", "treydock_test.out"))
    assert len(result.links) == 8 and result.rejects == []
    ports = {p["link"]: p for p in result.rows("ports")}
    idle = ports["0x506b4b03005c2740/37"]
    assert (idle["rate_gbps"], idle["node_description"]) == (None, "ib-i4l1s01")
    assert ports["0x08c0eb0300add20e/80"]["rate_gbps"] is None  # its 4x SDR is no link's
    second = run("ibnetdiscover", samples("ib_ibnetdiscover", "treydock_test2.out"))
    names = {p["node_description"] for p in second.rows("ports")}
    assert "5FB0406-spine-IB02" in names  # blanks around it are not part of it


def test_all_our_collectors_have_a_title_and_their_module_name() -> None:
    for name, collector in all_collectors().items():
        assert collector.name == name and collector.title

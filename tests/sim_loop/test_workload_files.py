"""Workload files: public ones of one job in two forms, and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import samples
from xtune.errors import InputError, UsageError
from xtune.policies.presets import preset
from xtune.sim import simulate
from xtune.sim.beside import Beside, traffic_beside
from xtune.sim.network import Network, scope_notes
from xtune.sim.scenarios import scenario
from xtune.sim.workload_files import Transfers, read_workload

HEADER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 4 pp: 2 vpp: 1 ga: 4"
# Two micro-seconds of compute, 1 MB to the node, 16 M elements to the other replicas.
ROWS = (
    "grad_param_comm\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER\t64000000\t100",
    *("attention_layer\t-1\t600\tALLREDUCE\t1000000\t700\tNONE\t0\t697\tNONE\t0\t100",) * 4,
    *("mlp_moelayer\t-1\t1\tALLTOALL_EP\t400000\t1\tALLTOALL_EP\t400000\t1\tNONE\t0\t100",) * 4,
)


def write(folder: Path, rows: tuple[str, ...] = ROWS, header: str | None = None) -> Path:
    path = folder / "job.txt"
    first = header or f"{HEADER} all_gpus: 64 checkpoints: 0 pp_comm 500000"
    path.write_text("\n".join([first, str(len(rows)), *rows]) + "\n")
    return path


@pytest.mark.shared_samples
def test_two_forms_of_one_public_job_agree() -> None:
    """GPT 13B on 128 cards, 8 to a layer: 13e9 / 8 elements, 162 all-reduces of activations."""
    folder = samples("sim_workloads")
    text = read_workload(folder / "aicb_gpt13b_simai_A100.txt")
    table = read_workload(folder / "aicb_gpt13b_tp8.csv")
    assert text.sizes == {"tp": 8} and table.sizes == {"tp": 8, "gpus": 128}
    assert text.blocks == table.blocks == 40
    assert text.gradient_elements() == pytest.approx(13e9 / 8, rel=0.01)
    assert text.gradient_elements() == pytest.approx(table.gradient_elements(), rel=0.012)
    # The first row of 4 * 40 + 2 is for the embedding; the text has the head's too.
    assert table.transfers["all_reduce", "tp"].total_bytes // 20_971_520 == 162
    assert text.transfers["all_reduce", "tp"].count == pytest.approx(162, abs=10)
    both = [w.transfers["all_reduce", "tp"].total_bytes for w in (text, table)]
    assert both[0] == pytest.approx(both[1], rel=0.1)
    assert text.compute_s is not None and 0.1 < text.compute_s < 1.0
    assert table.compute_s is None


@pytest.mark.shared_samples
def test_the_public_job_with_experts() -> None:
    work = read_workload(samples("sim_workloads") / "simai_workload_analytical.txt")
    assert work.sizes == {
        "tp": 2, "ep": 16, "pp": 12, "vpp": 8, "ga": 24, "gpus": 9216, "pp_bytes": 50_331_648
    }  # fmt: skip
    assert work.blocks == 8  # 96 blocks on 12 stages
    # Two to the experts and two back in each of 8 blocks and 24 micro-batches.
    assert work.transfers["all_to_all", "ep"] == Transfers(
        count=768, total_bytes=768 * 100_663_296
    )


def test_a_text_by_hand(tmp_path: Path) -> None:
    work = read_workload(write(tmp_path))
    assert work.compute_s == pytest.approx(4 * 1997e-9 + 4 * 3e-9 + 3e-9)
    assert work.gradient_elements() == 16_000_000
    assert work.transfers == {
        ("reduce_scatter", "dp"): Transfers(count=1, total_bytes=64_000_000),
        ("all_reduce", "tp"): Transfers(count=4, total_bytes=4_000_000),
        ("all_to_all", "ep"): Transfers(count=8, total_bytes=3_200_000),
    }
    assert work.blocks == 1  # four micro-batches pass it


def test_a_file_makes_a_scenario(tmp_path: Path) -> None:
    made = scenario(str(write(tmp_path)))
    c = made.calibration
    assert (c["ranks"], c["job_hosts"], c["job_rings"]) == (16.0, 64.0, 2.0)
    assert [layer.elements for layer in c.layers] == [16_000_000]
    # A bubble of (2 - 1) / 4; 4 MB, once there and back between two, at 150 GB/s.
    assert c["compute_s"] == pytest.approx(8.003e-6 * 1.25 + 4e6 / 150e9)
    assert traffic_beside(c) == (
        Beside(kind="pipeline", bytes_per_host=500_000, per_step=2.0),
        Beside(kind="expert", bytes_per_host=300_000, per_step=8.0),
    )
    assert made.claims == () and made.needed_share is None
    run = simulate(preset("static_dense"), c, iterations=5)
    # At least the bytes of 16 ranks' ring, of hops and of experts at 100 Gb/s.
    sent = 2 * 15 / 16 * 32e6 + 2 * 5e5 + 8 * 3e5
    assert run.metrics["mean_step_s"] > sent * 8 / 100e9


def test_more_cards_than_are_simulated_are_a_slice_that_is_told(tmp_path: Path) -> None:
    c = scenario(str(write(tmp_path, header=f"{HEADER} all_gpus: 4096"))).calibration
    network = Network.of(c)
    assert network.slice_of == 4096 and len(network.job) == 1024


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((ROWS[0].rpartition("\t")[0],), ":3: 11 columns, not 12"),
        ((ROWS[0].replace("64000000", "-5"),), ":3: '-5' is not a whole number"),
        ((ROWS[0], ROWS[1].replace("600", "x")), ":4: 'x' is not a whole number"),
        ((ROWS[1].replace("600", "9" * 400),), ":3: 99999999... has 400 digits"),
        ((ROWS[1].replace("600", "9" * 5000),), ":3: 99999999... has 5000 digits"),
        ((ROWS[0].replace("64000000", "9" * 18),), ":3: a transfer of 9+ bytes"),
        ((ROWS[1].replace("600", "9" * 18),), ":3: computes 9+ ns"),
        ((ROWS[1].replace("600", "٣"),), ":3: '٣' is not a whole number"),
        ((ROWS[1].replace("ALLREDUCE", "FOO"),), ":3: unknown collective 'FOO'"),
        ((ROWS[5].replace("ALLTOALL_EP", "X_EP"),), ":3: unknown collective 'X_EP'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, rows: tuple[str, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        read_workload(write(tmp_path, rows))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "neither SimAI's text nor AICB's CSV"),
        (b"\xff\xfe", "not UTF-8"),
        (b"MICRO\n1\n", "a test of one collective"),
        (f"{HEADER}\n".encode(), ":2: '' is not a whole number"),
        (f"{HEADER}\n3\n{ROWS[0]}\n".encode(), "1 layers, its line 2 says 3"),
        (b"comm_type,comm_group,msg_size\nCommType.all_reduce,x,1\n", ":2: unknown group 'x'"),
        (
            b"comm_type,comm_group,msg_size\nbarrier,dp,1\nbarrier,dp\n",
            ":3: '' is not a whole number",
        ),
        (b"comm_type,comm_group,msg_size\nfoo,dp,1\n", ":2: unknown collective 'foo'"),
        (b"[rank0 ~ rank" + b"9" * 5000 + b"]\ncomm_type,msg_size\n", ":1: 9+... has 5000 digits"),
    ],
)
def test_what_is_no_workload(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "job"
    path.write_bytes(content)
    with pytest.raises(InputError, match=text):
        read_workload(path)
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "absent")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("ga: 4", "ga: 0", ":1: ga is 0"),
        ("all_gpus: 64", "all_gpus: 0", ":1: all_gpus is 0"),
        ("ep: 4", "ep: -4", ":1: '-4' is not a whole number"),
        ("pp: 2", "pp: x", ":1: 'x' is not a whole number"),
        ("ep: 4", "ep: " + "1" * 5000, ":1: 11111111... has 5000 digits"),
        ("all_gpus: 64", "all_gpus: 64 pp_comm: 2000000000000", ":1: a transfer of 20+ bytes"),
        ("ep: 4", "ep: 7", "experts over 7 of 16 data-parallel ranks"),
        ("ep: 4", "ep: 100000", "experts over 100000 of 16 data-parallel ranks"),
        ("all_gpus: 64", "all_gpus: 999999984", "999999984 cards"),
        ("all_gpus: 64", "all_gpus: 65540", "65540 cards"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, old: str, new: str, text: str) -> None:
    header = f"{HEADER} all_gpus: 64".replace(old, new)
    with pytest.raises((InputError, UsageError), match=text):
        scenario(str(write(tmp_path, header=header)))


def test_sizes_that_are_not_given_are_told(tmp_path: Path) -> None:
    old = scenario(str(write(tmp_path, header=HEADER.partition(" ep")[0]))).calibration
    assert old["job_hosts"] == 1024.0
    assert old.notes[-1] == (
        "job.txt does not say, so taken are: ep 1, pp 1, vpp 1, ga 1, gpus 1024"
    )
    assert len(scenario(str(write(tmp_path))).calibration.notes) == 1


def test_a_header_as_floating_point_and_behind_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, header=f"{HEADER} all_gpus: 64 pp_comm: 500000.0")
    plain = read_workload(path)
    assert plain.sizes["pp_bytes"] == 500_000
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_workload(path) == plain


def test_experts_with_a_single_copy_are_reduced_with_no_one(tmp_path: Path) -> None:
    rows = (*ROWS, ROWS[0].replace("REDUCESCATTER\t64000000", "REDUCESCATTER_DP_EP\t8000000"))
    for spread, ranks in ((4, [None, 4]), (8, [None, 2]), (16, [None])):
        header = f"{HEADER} all_gpus: 64".replace("ep: 4", f"ep: {spread}")
        layers = scenario(str(write(tmp_path, rows, header))).calibration.layers
        assert [layer.ranks or None for layer in layers] == ranks


@pytest.mark.parametrize("cards", [4, 12, 48, 60, 244, 1016, 1024, 1028, 9216, 24_000, 65_536])
def test_the_hosts_that_are_written_are_the_simulated_ones(tmp_path: Path, cards: int) -> None:
    """Card counts that are no squares, and some that divide badly (4 times a prime)."""
    header = HEADER.replace("ep: 4", "ep: 1").replace("pp: 2", "pp: 1") + f" all_gpus: {cards}"
    c = scenario(str(write(tmp_path, header=header))).calibration
    network = Network.of(c)
    assert c["leaves"] * c["spines"] == c["hosts"] == c["job_hosts"] >= cards
    assert c["job_hosts"] - cards < c["spines"]  # less than a leaf is added
    assert len(network.job) == c["slice_hosts"] <= 1024
    assert network.spines == network.job_per_leaf == c["spines"]
    assert (network.slice_of is None) == (cards <= 1024) == (scope_notes(c) == ())


def test_jobs_that_no_scenario_can_be_made_of(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="6 cards in 4 parts share no gradients"):
        scenario(str(write(tmp_path, header=f"{HEADER} all_gpus: 6")))
    with pytest.raises(UsageError, match="share no gradients"):
        scenario(str(write(tmp_path, rows=ROWS[1:])))
    table = tmp_path / "job.csv"
    table.write_text("comm_type,comm_group,comm_group_size,msg_size\nall_reduce,dp,4,8\n")
    with pytest.raises(UsageError, match="holds no compute times"):
        scenario(str(table))

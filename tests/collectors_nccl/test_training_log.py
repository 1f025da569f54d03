"""One stdout with NCCL's messages and loss lines: nothing is lost, whoever claims it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.collectors_nccl.helpers import context, read_bytes, some
from tests.collectors_nccl.test_loss_text import megatron
from tests.collectors_nccl.test_nccl_debug import coll, info
from xtune.collectors import loss_megatron, loss_text, nccl_debug
from xtune.collectors._base import HEAD_BYTES, Collector, Rows, Source
from xtune.collectors._registry import claim_best

READERS = (nccl_debug.COLLECTOR, loss_megatron.COLLECTOR, loss_text.COLLECTOR)


@pytest.mark.parametrize("collector", READERS, ids=lambda c: c.name)
def test_mixed_log_gives_the_same_rows_to_each(tmp_path: Path, collector: Collector) -> None:
    path = tmp_path / "slurm.out"
    path.write_text(
        "\n".join([info("h", 1, coll()), megatron(1), "12 3.5", info("h", 1, coll()),
                   "iter 5: loss 3.5000, time 250.00ms", megatron(2), ""])
    )  # fmt: skip
    tables: dict[str, int] = {}
    for item in collector.read(Source(path, path.name), context()):
        if isinstance(item, Rows):
            tables[item.table] = tables.get(item.table, 0) + item.batch.num_rows
    # Two numbers alone in a line are no loss where losses have names.
    assert tables == {"collectives": 2, "steps": 3}


def test_deepspeed_beside_megatron_is_one_row_a_step(tmp_path: Path) -> None:
    said = "[2026-01-02 03:04:05,5] [INFO] [Rank 0] step={}, skipped=0, lr=[0.5], mom=[[0.9, 0.9]]"
    text = "\n".join([said.format(7), megatron(7), megatron(8), ""])
    for collector in (loss_megatron.COLLECTOR, loss_text.COLLECTOR):
        read = read_bytes(collector, text.encode(), tmp_path, ctx=context(tz="UTC"))
        assert [some(r, "step", "loss", "learning_rate") for r in read.rows] == [
            (7, 2.5, 1.5e-4), (8, 2.5, 1.5e-4),
        ]  # fmt: skip
        assert [row["ts"] for row in read.rows] == [1767323045_500_000_000, None]


def test_missing_kind_is_said_of_the_one_claimed_only(tmp_path: Path) -> None:
    read = read_bytes(nccl_debug.COLLECTOR, (megatron(1) + "\n").encode(), tmp_path)
    assert [some(r, "step", "loss") for r in read.rows] == [(1, 2.5)]
    assert [note.text for note in read.notes if "nothing of use" in note.text]
    assert len(read.notes) == 1


@pytest.mark.parametrize(
    ("noise", "line", "name"),
    [
        ("        x = norm(x) # loss 3.5 at step 12", "s:12 trl:3.5", "loss_text"),
        (info("h", 1, "Channel 00/24 : 0 1"), megatron(3), "loss_megatron"),
    ],
)
def test_log_that_begins_with_other_text_is_claimed_by_its_tail(
    tmp_path: Path, noise: str, line: str, name: str
) -> None:
    text = (noise + "\n") * (HEAD_BYTES // len(noise) + 50) + (line + "\n") * 5
    path = tmp_path / "log"
    path.write_text(text)
    found = claim_best(path, Source(path, "log").head())
    assert found is not None and found[0].name == name
    rows = read_bytes(found[0], text.encode(), tmp_path).rows
    # The same loss line again is another rank's, of the same step.
    assert len(rows) == (1 if name == "loss_text" else 5)
    # The tail of a gzip file is not looked at: that would mean to undo all of it.
    path.write_bytes(gzip.compress(text.encode()))
    assert loss_text.COLLECTOR.claim(path, Source(path, "log").head()) == 0.0

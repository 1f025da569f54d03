"""Loss curves in binary logs: TensorBoard event files and Weights & Biases transaction logs."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.hostile.seeds_training import part
from tests.samples import samples
from xtune.collectors import loss_tensorboard, loss_wandb
from xtune.collectors._base import Reject
from xtune.collectors._protowire import fields, float32, float64, signed
from xtune.collectors._tfrecord import Record, masked_crc, records

TB = loss_tensorboard.COLLECTOR
WANDB = loss_wandb.COLLECTOR

Field = descriptor_pb2.FieldDescriptorProto


def _event_class() -> Any:
    """The Event message of TensorBoard, built from a descriptor by Google's library."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")

    def message(name: str, *parts: tuple[str, int, int, bool, str]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, repeated, type_name in parts:
            added = made.field.add(name=field, number=number, type=kind)
            added.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            if type_name:
                added.type_name = f".t.{type_name}"

    message(
        "Tensor",
        ("dtype", 1, Field.TYPE_INT32, False, ""),
        ("tensor_content", 4, Field.TYPE_BYTES, False, ""),
        ("float_val", 5, Field.TYPE_FLOAT, True, ""),
        ("double_val", 6, Field.TYPE_DOUBLE, True, ""),
    )
    message(
        "Value",
        ("tag", 1, Field.TYPE_STRING, False, ""),
        ("simple_value", 2, Field.TYPE_FLOAT, False, ""),
        ("tensor", 8, Field.TYPE_MESSAGE, False, "Tensor"),
    )
    value = file.message_type[-1]
    value.oneof_decl.add(name="value")
    for field in value.field:
        if field.name != "tag":
            field.oneof_index = 0  # so that a zero is written too
    message("Summary", ("value", 1, Field.TYPE_MESSAGE, True, "Value"))
    message(
        "Event",
        ("wall_time", 1, Field.TYPE_DOUBLE, False, ""),
        ("step", 2, Field.TYPE_INT64, False, ""),
        ("file_version", 3, Field.TYPE_STRING, False, ""),
        ("summary", 5, Field.TYPE_MESSAGE, False, "Summary"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


EVENT = _event_class()


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return (
        length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    )


def event(step: int, wall_time: float = 1_700_000_000.25, **tags: float) -> bytes:
    made = EVENT(wall_time=wall_time, step=step)
    for tag, value in tags.items():
        made.summary.value.add(tag=tag.replace("__", "/"), simple_value=value)
    return framed(made.SerializeToString())


VERSION = framed(EVENT(wall_time=1.0, file_version="brain.Event:2").SerializeToString())


def test_checksum_of_the_documented_example() -> None:
    # CRC32C of "123456789" is 0xe3069283 (RFC 3720); mask by hand: rotate right 15, add.
    crc = 0xE3069283
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


def test_values_of_one_step_are_one_row(tmp_path: Path) -> None:
    data = VERSION + event(0, train__loss=2.5) + event(0, 1_700_000_001.0, train__grad_norm=0.5)
    data += event(1, train__loss=2.25, val_loss=3.5, learning_rate=0.25, epoch_loss=9.0)
    assert TB.claim(tmp_path, data) > 0.9
    read = read_bytes(TB, data, tmp_path, ctx=context(job="j", run="r"))
    assert not read.rejects
    names = ("ts", "step", "split", "loss", "grad_norm", "learning_rate")
    at = 1_700_000_000_250_000_000
    assert [some(r, *names) for r in read.rows] == [
        (at, 0, "train", 2.5, 0.5, None),
        (at, 1, "train", 2.25, None, 0.25),
        (at, 1, "validation", 3.5, None, None),
    ]
    assert some(read.rows[0], "job", "run") == ("j", "r")
    assert read.unknown == {"epoch_loss": 1} and read.note("no measure")


def test_tensors_hold_scalars_too(tmp_path: Path) -> None:
    data = VERSION
    for step, tensor in enumerate(
        (
            {"dtype": 1, "float_val": [2.5]},
            {"dtype": 2, "double_val": [2.5]},
            {"dtype": 1, "tensor_content": struct.pack("<f", 2.5)},
            {"dtype": 3, "tensor_content": struct.pack("<i", 2)},
            {"dtype": 1, "float_val": [1.0, 2.0]},
        )
    ):
        made = EVENT(wall_time=5.0, step=step)
        value = made.summary.value.add(tag="loss")
        value.tensor.CopyFrom(type(value.tensor)(**tensor))
        data += framed(made.SerializeToString())
    assert [some(r, "step", "loss") for r in read_bytes(TB, data, tmp_path).rows] == [
        (0, 2.5), (1, 2.5), (2, 2.5),
    ]  # fmt: skip


def test_map_names_the_tag(tmp_path: Path) -> None:
    data = VERSION + event(1, epoch_loss=3.0, loss=2.0)
    read = read_bytes(TB, data, tmp_path, ctx=context(column_map={"loss": "epoch_loss"}))
    assert [some(r, "step", "loss") for r in read.rows] == [(1, 3.0)]


def test_nan_stays(tmp_path: Path) -> None:
    rows = read_bytes(
        TB, VERSION + event(1, loss=math.nan) + event(2, loss=math.inf), tmp_path
    ).rows
    assert math.isnan(rows[0]["loss"]) and rows[1]["loss"] == math.inf


def test_resume_keeps_the_newer_values(tmp_path: Path) -> None:
    # 1 2 3 4, back to 3 4 5, back to 4 5 6: what counts is 1 2 3' 4'' 5'' 6''.
    passes = [(0, (1, 2, 3, 4)), (10, (3, 4, 5)), (20, (4, 5, 6))]
    data = VERSION + b"".join(
        event(step, loss=step + offset) for offset, steps in passes for step in steps
    )
    read = read_bytes(TB, data, tmp_path)
    kept = {r["step"]: r["loss"] for r in read.rows}
    assert kept == {1: 1, 2: 2, 3: 13, 4: 24, 5: 25, 6: 26}
    assert len(read.rows) == 6 and read.note("newer kept").count == 4


@given(steps=st.lists(st.integers(0, 8), max_size=30))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_resume_rule_against_a_plain_model(tmp_path: Path, steps: list[int]) -> None:
    model: dict[int, float] = {}
    for index, step in enumerate(steps):
        model = {s: v for s, v in model.items() if s < step}  # what comes later was not trained
        model[step] = float(index)
    data = VERSION + b"".join(event(step, loss=index) for index, step in enumerate(steps))
    rows = read_bytes(TB, data, tmp_path).rows
    assert {r["step"]: r["loss"] for r in rows} == model and len(rows) == len(model)


def test_cut_last_record_is_a_note(tmp_path: Path) -> None:
    whole = VERSION + event(1, loss=2.0)
    for cut in (3, 14, 30):
        read = read_bytes(TB, whole + event(2, loss=1.0)[:cut], tmp_path)
        assert [r["step"] for r in read.rows] == [1] and not read.rejects
        # Each of the two passes reads to the cut; it is said once.
        assert read.note("cut last record").count == 1


def test_damage_costs_its_record_alone(tmp_path: Path) -> None:
    parts = [event(n, loss=n) for n in range(5)]
    wrong_data = bytearray(parts[1])
    wrong_data[20] ^= 1
    wrong_length = bytearray(parts[3])
    wrong_length[0] ^= 1
    content = VERSION + parts[0] + bytes(wrong_data) + parts[2] + bytes(wrong_length) + parts[4]
    read = read_bytes(TB, content, tmp_path)
    assert [r["step"] for r in read.rows] == [0, 2, 4]
    places = [len(VERSION + parts[0]), len(VERSION + parts[0] + parts[1] + parts[2])]
    assert [reject.offset for reject in read.rejects] == [f"byte {place}" for place in places]
    assert f"{len(parts[3])} bytes left out" in read.rejects[1].reason


def test_long_damage_is_passed_over(tmp_path: Path) -> None:
    junk = bytes(range(251)) * 800  # longer than the search window
    read = read_bytes(TB, VERSION + junk + event(7, loss=1.0), tmp_path)
    assert [r["step"] for r in read.rows] == [7]
    assert f"{len(junk)} bytes left out" in read.rejects[0].reason


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    good = VERSION + event(1, loss=1.0)
    odd = bytearray(event(2, loss=2.0) + event(3, loss=3.0))
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(0, len(odd) - 1))] = data.draw(st.integers(0, 255))
    content = good + bytes(odd) + event(9, loss=9.0)
    TB.claim(tmp_path, content)
    steps = [r["step"] for r in read_bytes(TB, content, tmp_path).rows]
    assert steps[0] == 1 and steps[-1] == 9
    read_bytes(TB, data.draw(st.binary(max_size=80)), tmp_path)
    read_bytes(TB, good + framed(data.draw(st.binary(max_size=80))), tmp_path)


@given(
    wall=st.floats(allow_nan=False), step=st.integers(-(2**63), 2**63 - 1), tag=st.text(max_size=9)
)
def test_wire_reader_agrees_with_protobuf(wall: float, step: int, tag: str) -> None:
    made = EVENT(wall_time=wall, step=step)
    made.summary.value.add(tag=tag, simple_value=1.5)
    found: dict[int, Any] = {n: v for n, _, v in fields(made.SerializeToString())}
    assert float64(found.get(1, bytes(8))) == wall
    assert signed(found.get(2, 0)) == step
    (value,) = [v for _, _, v in fields(found[5])]
    assert isinstance(value, bytes)
    inner: dict[int, Any] = {n: v for n, _, v in fields(value)}
    assert inner.get(1, b"").decode() == tag and float32(inner[2]) == 1.5


@given(st.binary(max_size=60))
def test_wire_reader_raises_value_errors_only(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(fields(data))


def test_records_of_a_gzip_stream() -> None:
    content = VERSION + event(1, loss=1.0) + b"x" * 40 + event(2, loss=1.0)
    with gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(content))) as stream:
        assert sum(isinstance(item, Record) for item in records(stream)) == 3


# --- Weights & Biases ---------------------------------------------------------------------------


def history(step: int, **values: Any) -> bytes:
    items = b"".join(
        part(1, part(1, key.replace("__", "/").encode()) + part(16, json.dumps(value).encode()))
        for key, value in values.items()
    )
    return part(1, step + 1) + part(2, items + part(2, part(1, step)))


def wandb_log(*contents: bytes, pad: int = 0) -> bytes:
    """A log as wandb/sdk/internal/datastore.py writes it: records cut at 32 KiB blocks."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for content in contents:
        first = True
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            piece, content = content[: room - 7], content[room - 7 :]
            kind = (1 if first else 4) if not content else (2 if first else 3)
            crc = zlib.crc32(piece, zlib.crc32(bytes([kind])))
            out += struct.pack("<IHB", crc, len(piece), kind) + piece
            first = False
            if not content:
                break
    return bytes(out) + bytes(pad)


RUN = part(1, 1) + part(17, part(1, b"run7"))


def test_history_of_a_run(tmp_path: Path) -> None:
    data = wandb_log(
        RUN,
        history(0, loss=2.5, _timestamp=1_700_000_000.5, _runtime=3.0),
        history(1, loss=math.nan, val_loss=3.5),
        history(2, other=1),
        part(1, 9) + part(16, b"\x08\x01"),
    )
    assert WANDB.claim(tmp_path, data) > 0.9
    read = read_bytes(WANDB, data, tmp_path, ctx=context(job="j"))
    assert not read.rejects and not read.notes
    names = ("ts", "job", "run", "step", "split", "loss")
    assert some(read.rows[0], *names) == (1_700_000_000_500_000_000, "j", "run7", 0, "train", 2.5)
    assert read.rows[1]["step"] == 1 and math.isnan(read.rows[1]["loss"])
    assert some(read.rows[2], "split", "loss") == ("validation", 3.5)


def test_step_that_the_run_logs_is_better_than_the_count_of_calls(tmp_path: Path) -> None:
    data = wandb_log(history(4, train__loss=2.5, train__global_step=100))
    assert read_bytes(WANDB, data, tmp_path).rows[0]["step"] == 100


def test_records_across_blocks(tmp_path: Path) -> None:
    long = history(1, loss=2.0, text="x" * 100_000)
    # One record ends so that fewer than seven bytes are left in the first block.
    short = history(
        0, loss=1.0, text="y" * (32768 - 7 - 7 - 3 - len(history(0, loss=1.0, text="")))
    )
    for contents in ([long, history(2, loss=3.0)], [short, history(2, loss=3.0)]):
        read = read_bytes(WANDB, wandb_log(*contents), tmp_path)
        assert [r["loss"] for r in read.rows][-1] == 3.0 and len(read.rows) == 2
        assert not read.rejects


def test_damaged_block_costs_itself(tmp_path: Path) -> None:
    records_ = [history(n, loss=float(n), text="z" * 20_000) for n in range(6)]
    data = bytearray(wandb_log(*records_))
    data[40_000] ^= 1
    read = read_bytes(WANDB, bytes(data), tmp_path)
    steps = [r["step"] for r in read.rows]
    assert steps[0] == 0 and steps[-1] == 5 and len(steps) < 6 and read.rejects
    cut = read_bytes(WANDB, wandb_log(*records_)[:70_000], tmp_path)
    assert cut.rows and len(cut.rejects) + len(cut.notes) == 1


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_of_a_log_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    odd = bytearray(wandb_log(RUN, history(0, loss=1.0), history(1, loss=2.0)))
    for _ in range(data.draw(st.integers(1, 5))):
        odd[data.draw(st.integers(7, len(odd) - 1))] = data.draw(st.integers(0, 255))
    read_bytes(WANDB, bytes(odd), tmp_path)
    read_bytes(WANDB, bytes(odd[: data.draw(st.integers(0, len(odd)))]), tmp_path)
    read_bytes(WANDB, wandb_log(data.draw(st.binary(max_size=60))), tmp_path)


@pytest.mark.shared_samples
def test_public_event_file() -> None:
    path = samples("loss_curve_tb", "events.out.tfevents.1585769947.cvp")
    assert TB.claim(path, path.read_bytes()[:65536]) > 0.9
    read = read_path(TB, path)
    assert len(read.rows) == 17 and not read.rejects
    assert [r["step"] for r in read.rows] == list(range(17))
    read = read_path(TB, path, context(column_map={"loss": "epoch_loss"}))
    assert len(read.rows) == 17 and read.unknown["batch_loss"] == 17


@pytest.mark.shared_samples
def test_public_transaction_log_has_no_history() -> None:
    path = samples("loss_curve_wandb", "run-g9dvvkua.wandb")
    assert WANDB.claim(path, path.read_bytes()) > 0.9
    read = read_path(WANDB, path)
    assert not read.rows and not read.rejects and read.note("in 0 history records")


@pytest.mark.parametrize("filler", [b"x", b"\0", b"\0\1"])
def test_megabytes_of_damage_are_passed_over(filler: bytes) -> None:
    """Each place that may be a header is looked at, and few others: this took minutes."""
    good = [framed(b"first"), framed(b"second")]
    hole = (filler * 3_000_000)[:3_000_000]
    found = list(records(io.BytesIO(good[0] + hole + good[1])))
    assert [r.data for r in found if isinstance(r, Record)] == [b"first", b"second"]
    assert [r.reason for r in found if isinstance(r, Reject)] == [
        "not a record: 3000000 bytes left out"
    ]


@pytest.mark.parametrize("held", [0, 3, 100])
def test_more_values_than_are_held_are_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(loss_tensorboard, "_HELD", held)
    data = VERSION + b"".join(event(step, loss=step) for step in (1, 2, 3, 4, 3, 4, 5))
    read = read_bytes(TB, data + b"cut", tmp_path)
    assert [some(r, "step", "loss") for r in read.rows] == [(n, n) for n in (1, 2, 3, 4, 5)]
    assert read.note("newer kept").count == 2 and read.note("cut last record").count == 1


@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(1, 400))
def test_records_do_not_depend_on_how_the_stream_gives_them(
    contents: list[bytes], size: int
) -> None:
    class Trickle(io.BytesIO):
        def read(self, _: int | None = -1, /) -> bytes:
            return super().read(size)

    data = b"".join(map(framed, contents))
    found = list(records(Trickle(data)))
    assert [r.data for r in found if isinstance(r, Record)] == contents
    assert len(found) == len(contents)


def test_each_row_of_a_long_history(tmp_path: Path) -> None:
    """No sample of it: all rows, and NaN, which the library writes as text, stays NaN."""
    rows = [history(n, loss="NaN" if n % 100 == 7 else n / 8) for n in range(1500)]
    read = read_bytes(WANDB, wandb_log(RUN, *rows), tmp_path)
    assert [r["step"] for r in read.rows] == list(range(1500))
    assert sum(math.isnan(r["loss"]) for r in read.rows) == 15

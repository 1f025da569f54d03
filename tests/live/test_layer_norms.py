"""Norms that a training job logs: equal to those worked out by hand, and never its loss."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.collectors_nccl.helpers import context, read_bytes, read_path, some
from tests.compress.ranks import run
from tests.live.norms_two_ranks import log
from xtune.collectors.layer_gradients import COLLECTOR
from xtune.export import export_policy
from xtune.policies.layer_norms import LayerNorms, depths, measure
from xtune.policies.presets import preset


def with_gradients(model: nn.Module, *gradients: torch.Tensor | None) -> nn.Module:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    return model


def test_norms_worked_out_by_hand(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    with_gradients(
        model,
        torch.tensor([[3.0, 0.0], [0.0, 4.0]]),  # norm 5, half of it not zero
        torch.tensor([0.0, 0.0]),
        torch.tensor([[1.0, 2.0]]),  # norm sqrt(5)
    )
    path = tmp_path / "norms.jsonl"
    norms = LayerNorms(model, path, job="j", run="r", clock=lambda: 1_700_000_000_000_000_001)
    norms.step(40)
    norms.close()
    assert (norms.written, norms.dropped, norms.error) == (1, 0, None)
    assert COLLECTOR.claim(path, path.read_bytes()) > 0.9
    read = read_path(COLLECTOR, path)
    assert not read.rejects and not read.notes
    assert [some(r, "layer", "depth", "elements", "density") for r in read.rows] == [
        ("0.weight", 0.0, 4, 0.5),
        ("0.bias", 0.0, 2, 0.0),
        ("1.weight", 1.0, 2, 1.0),
    ]
    assert [row["norm"] for row in read.rows] == pytest.approx([5.0, 0.0, math.sqrt(5)], rel=1e-6)
    assert {some(r, "ts", "job", "run", "step") for r in read.rows} == {
        (1_700_000_000_000_000_001, "j", "r", 40)
    }
    assert read.rows[0]["extra"] == {"scope": "full"}


def test_a_real_backward_pass(tmp_path: Path) -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 16), layer, nn.Linear(16, 50))
    norms = LayerNorms(model, tmp_path / "n", every=2)
    wanted = []
    for step in range(4):
        model.zero_grad()
        model(torch.randint(0, 50, (2, 7))).square().mean().backward()
        norms.step()
        if step % 2 == 0:
            for _, parameter in model.named_parameters():
                assert parameter.grad is not None
                wanted.append(math.sqrt(sum(x * x for x in parameter.grad.flatten().tolist())))
    norms.close()
    rows = read_path(COLLECTOR, tmp_path / "n").rows
    assert sorted({row["step"] for row in rows}) == [0, 2]
    assert [row["norm"] for row in rows] == pytest.approx(wanted, rel=1e-5)
    assert rows[0]["density"] < 1 and rows[0]["depth"] == 0.0 and rows[-1]["depth"] == 1.0


def test_depth_rises_by_module() -> None:
    names = ["emb.weight", "h.0.w", "h.0.b", "h.1.w", "h.1.b", "head.weight"]
    assert list(depths(names).values()) == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])
    assert depths(["weight", "bias"]) == {"weight": 0.0, "bias": 0.0}


def test_kinds_of_gradients() -> None:
    half = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    with_gradients(half, torch.full((1, 2), 300.0, dtype=torch.bfloat16))
    assert measure(half)[0]["norm"] == pytest.approx(300 * math.sqrt(2), rel=1e-5)
    small = nn.Linear(2, 1, bias=False).half()
    with_gradients(small, torch.full((1, 2), 60000.0, dtype=torch.float16))
    assert measure(small)[0]["norm"] == pytest.approx(60000 * math.sqrt(2), rel=1e-3)
    sparse = nn.Embedding(10, 3, sparse=True)
    sparse(torch.tensor([1, 1, 4])).sum().backward()
    (found,) = measure(sparse)
    assert found["elements"] == 30 and found["density"] == pytest.approx(6 / 30)
    assert found["norm"] == pytest.approx(math.sqrt(3 * 4 + 3 * 1))  # row 1 was used twice
    assert measure(with_gradients(nn.Linear(2, 1), None, torch.ones(1)))[0]["layer"] == "bias"
    assert measure(with_gradients(nn.Linear(2, 1), None, None)) == []


def test_what_is_not_finite_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(1, 2)
    with_gradients(model, torch.tensor([[math.nan], [1.0]]), torch.tensor([math.inf, 0.0]))
    norms = LayerNorms(model, tmp_path / "n")
    norms.step()
    norms.close()
    json.loads((tmp_path / "n").read_bytes(), parse_constant=lambda word: pytest.fail(word))
    first, second = read_path(COLLECTOR, tmp_path / "n").rows
    assert math.isnan(first["norm"]) and second["norm"] == math.inf


def test_the_device_is_asked_once_in_every_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)))
    with_gradients(model, *(torch.ones_like(p) for p in model.parameters()))
    asked: list[int] = []
    real = torch.Tensor.tolist

    def tolist(tensor: torch.Tensor) -> Any:
        asked.append(tensor.numel())
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    for name in ("item", "cpu", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("a hidden wait"))
    norms = LayerNorms(model, tmp_path / "n", every=5)
    for _ in range(10):
        norms.step()
    norms.close()
    assert asked == [80, 80]


def test_it_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = with_gradients(nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1))
    (tmp_path / "file").write_text("")
    norms = LayerNorms(model, tmp_path / "file" / "below", every=1)
    norms.step()
    assert norms.dropped == 1 and norms.error
    full = LayerNorms(model, "/dev/full")
    full.step()
    full.step()
    assert full.dropped == 2 and "No space left" in (full.error or "")
    odd: Any = nn.Linear(1, 1)
    odd.named_parameters = None
    LayerNorms(odd, tmp_path / "odd").step()
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.complex128, torch.bfloat16, torch.float8_e4m3fn, torch.complex64],
)
def test_every_number_a_gradient_is_made_of(dtype: torch.dtype) -> None:
    """Beside one of another kind."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))])
    odd = nn.Module()
    odd.weight = nn.Parameter(torch.zeros(4).to(dtype), requires_grad=False)
    odd.weight.grad = torch.tensor([2.0, 0.0, 2.0, 1.0]).to(dtype)
    model[1].grad = torch.tensor([3.0, 4.0])
    found = measure(nn.ModuleList([odd, model]))
    assert [(one["norm"], one["density"]) for one in found] == [(3.0, 0.75), (5.0, 1.0)]


@pytest.mark.parametrize("step", [np.int64(4), torch.tensor(4), 4.0, np.float32(4)])
def test_a_step_may_be_any_whole_number(tmp_path: Path, step: Any) -> None:
    model = with_gradients(nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1))
    norms = LayerNorms(model, tmp_path / "n", every=2)
    norms.step(step)
    norms.close()
    assert {row["step"] for row in read_path(COLLECTOR, tmp_path / "n").rows} == {4}


@pytest.mark.parametrize(("step", "every"), [("four", 1), ([4], 2), (math.nan, 1), (4, "two")])
def test_arguments_that_make_no_sense_do_not_raise(tmp_path: Path, step: Any, every: Any) -> None:
    model = with_gradients(nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1))
    norms = LayerNorms(model, tmp_path / "n", every=every)
    norms.step(step)
    assert norms.dropped == 1 and norms.error


def test_the_size_cap_counts_what_it_drops(tmp_path: Path) -> None:
    model = with_gradients(nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1))
    path = tmp_path / "n"
    norms = LayerNorms(model, path, size_cap_bytes=700)
    for _ in range(10):
        norms.step()
    norms.close()
    assert 0 < norms.written < 10 and norms.written + norms.dropped == 10
    assert path.stat().st_size <= 700
    again = LayerNorms(model, path, size_cap_bytes=700)
    again.step()
    assert again.dropped == 1  # what was there before counts
    again.close()


@pytest.mark.parametrize("kind", ["ddp", "compiled", "stages", "fsdp", "fsdp1"])
def test_two_ranks(kind: str, tmp_path: Path) -> None:
    said = run(2, log, kind, str(tmp_path))
    assert [one["error"] for one in said] == [None, None]
    squares: dict[str, float] = {}
    scopes = set()
    files = sorted(tmp_path.glob("norms.jsonl.rank*"))
    for path in files:
        for row in read_path(COLLECTOR, path).rows:
            squares[row["layer"]] = squares.get(row["layer"], 0.0) + row["norm"] ** 2
            scopes.add(row["extra"]["scope"])
    whole = said[0]["whole"]
    if kind in ("stages", "fsdp1"):  # each rank knows its own
        whole = {
            name: math.hypot(*(one["whole"].get(name, 0.0) for one in said))
            for name in {*said[0]["whole"], *said[1]["whole"]}
        }
    assert {name: math.sqrt(x) for name, x in squares.items()} == pytest.approx(whole, rel=1e-5)
    assert len(files) == (1 if kind in ("ddp", "compiled") else 2)
    assert scopes == {"shard" if kind.startswith("fsdp") else "full"}


def test_bad_lines_cost_themselves(tmp_path: Path) -> None:
    good = (
        b'{"xtune_layer_gradients":1,"ts_ns":5,"step":3,"rank":2,"layer":["a"],"depth":[0.5],'
        b'"elements":[4],"norm":[2.5],"density":[0.25]}\n'
    )
    bad = (
        b'nonsense\n[1]\n{"xtune_layer_gradients":1,"layer":["a"],"depth":[],"elements":[1],'
        b'"norm":[1],"density":[1]}\n'
    )
    later = good.replace(b"1,", b"2,", 1).replace(b'"rank"', b'"why":1,"rank"')
    read = read_bytes(COLLECTOR, good + bad + later + good[:-20], tmp_path, ctx=context(job="j"))
    assert [some(r, "ts", "job", "layer", "norm") for r in read.rows] == [(5, "j", "a", 2.5)] * 2
    assert read.rows[0]["extra"] == {"rank": "2"}
    assert [reject.offset.split(" (")[0] for reject in read.rejects] == [
        "line 2", "line 3", "line 4", "line 6",
    ]  # fmt: skip
    assert read.rejects[-1].reason == "cut last line"


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_values_are_narrowed_or_rejected(data: st.DataObject, tmp_path: Path) -> None:
    value: st.SearchStrategy[Any] = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    )
    value |= st.lists(value, max_size=3)
    record = {
        name: data.draw(value | st.lists(value, min_size=1, max_size=1))
        for name in ("ts_ns", "job", "run", "rank", "step", "layer", "depth", "elements", "norm")
    }
    record = {"xtune_layer_gradients": data.draw(value), **record, "density": data.draw(value)}
    read_bytes(COLLECTOR, json.dumps(record).encode(), tmp_path)


def test_an_exported_policy_has_the_logger(tmp_path: Path) -> None:
    export_policy(preset("joint"), tmp_path, "joint")
    code = (
        "import torch, xtune_policy_joint as policy; model = torch.nn.Linear(1, 1);"
        "model(torch.ones(1, 1)).sum().backward();"
        "norms = policy.LayerNorms(model, 'norms-%r.jsonl', every=1); norms.step(); norms.close();"
        "assert norms.written == 1 and 'xtune.policies' not in __import__('sys').modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    (path,) = tmp_path.glob("norms-*.jsonl")
    rows = read_path(COLLECTOR, path).rows
    assert [(row["layer"], row["norm"]) for row in rows] == [("weight", 1.0), ("bias", 1.0)]

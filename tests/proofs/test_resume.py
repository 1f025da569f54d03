"""A run that was killed goes on to the same result, to the last digit."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.proofs.small import corpus, settings
from xtune.proofs.methods import methods
from xtune.proofs.training import branch, load_state, save_state, warm_start

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "tests.compress.preload"])
KILLED_AT = 20


def _branch(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    checkpoint = folder / f"{name}.pt"
    return branch(
        settings(), corpus(), 1, methods()[name],
        warm=folder / "warm.pt", checkpoint=checkpoint, **more,
    )  # fmt: skip


def _kill_at(line: str) -> None:
    if line.startswith(f"{KILLED_AT}/"):
        os.kill(os.getpid(), signal.SIGKILL)


def _die(folder: Path, names: list[str], place: int) -> None:
    torch.set_num_threads(1)
    _branch(folder, names[place], say=_kill_at)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("branches")
    warm_start(settings(), corpus(), 1, made / "warm.pt")
    return made


_SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("norms_g0.5", "q4_second8_g0.5", "shared_10", "drop_equal_residual", "powersgd_4")
]


@pytest.mark.parametrize("name", ["q4_g1", "regulated", *_SLOW])
def test_a_killed_run_goes_on_to_the_same_result(folder: Path, name: str) -> None:
    whole = _branch(folder, name)
    (folder / f"{name}.pt").unlink()
    process = _CONTEXT.Process(target=_die, args=(folder, [name], 0))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    # It died before it could keep what it said at 20, so it goes on from 10.
    assert load_state(folder / f"{name}.pt")["done"] == 10
    said: list[str] = []
    resumed = _branch(folder, name, say=said.append)
    assert [line.split("/")[0] for line in said] == ["20", "30", "40"]
    assert resumed == whole
    assert len(whole["held_out"]) == 5 and len(whole["train"]) == 40
    assert whole["held_out"][-1] < whole["held_out"][0] - 0.3  # it learns


def test_a_checkpoint_of_another_engine_is_left(folder: Path) -> None:
    said: list[str] = []
    whole = _branch(folder, "fp32")
    state = load_state(folder / "fp32.pt")
    state["engine"], state["model"] = "another", {}
    save_state(folder / "fp32.pt", state)
    assert _branch(folder, "fp32", say=said.append) == whole
    assert said[0] == "starts anew, since its checkpoint is of another engine"
    (folder / "fp32.pt").unlink()


def test_methods_start_from_the_same_state_on_the_same_data(folder: Path) -> None:
    runs = {name: _branch(folder, name) for name in ("fp32", "bf16")}
    for name in runs:
        (folder / f"{name}.pt").unlink()
    plain, narrow = runs["fp32"], runs["bf16"]
    assert plain["held_out"][0] == narrow["held_out"][0]
    assert plain["train"][0] == narrow["train"][0]  # before the first reduced gradient acts
    assert plain["train"] != narrow["train"]
    assert plain["error_power"] == [0.0] * 4  # the exact mean, by the same sums
    # bf16 keeps 8 significant bits: an error of at most 2^-9 of each value, twice.
    assert all(0 < power < 4 * 2.0**-18 for power in narrow["error_power"])


def test_the_regulator_followed_the_script(folder: Path) -> None:
    long = partial(settings, steps=100, every=50)
    result = branch(
        long(), corpus(), 1, methods()["regulated"],
        warm=folder / "warm.pt", checkpoint=folder / "long.pt",
    )  # fmt: skip
    rungs = result["about"]["iterations_by_rung"]
    # Clear at first (8 bits), congested from 10 % on: seen at the regulations of every 25.
    assert sum(rungs.values()) == 100
    assert result["about"]["changes"] >= 1
    assert set(rungs) > {"1"}
    sent = sum(result["bytes"]) / (100 * result["dense_bytes_bf16"])
    assert 0.2 < sent < 0.6

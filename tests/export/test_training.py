"""The wheel in a fresh environment with torch and numpy alone, in a real two-rank training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from xtune.export import export_policy
from xtune.policies.presets import preset
from xtune.policies.spec import replace_fields

SCRIPT = Path(__file__).parent / "train_two_ranks.py"
STEPS = 300


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with torch, numpy and the exported wheel; returns its python."""
    root = tmp_path_factory.mktemp("fresh")
    # Compressed from the start: nothing uncompressed is measured that could prove it useless, so
    # that the rung never falls below 8 bits, however fast or busy the machine is.
    policy = replace_fields(
        preset("joint"),
        {
            "compression.warmup_iterations": 0,
            "compression.curvature_gain": 0.0,
            "period.iterations": 20,
        },
    )
    wheel = export_policy(policy, root, "joint").wheel
    subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True)
    python = root / "venv" / "bin" / "python"
    torch = version("torch").partition("+")[0]
    subprocess.run(
        [str(python), "-m", "pip", "install", "-qq", f"torch=={torch}",
         f"numpy=={version('numpy')}", str(wheel)],
        check=True,
    )  # fmt: skip
    return python


def isolated(*words: str) -> list[str]:
    """The command in a network of its own, so that nobody else's bytes are on its loopback."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip for a loopback interface of its own")
    return ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]


@pytest.mark.slow
def test_exported_policy_trains_and_its_bytes_are_on_the_wire(fresh: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        isolated(str(fresh), str(SCRIPT), "xtune_policy_joint", str(STEPS)),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    metrics = result["metrics"]
    print(json.dumps(result))
    assert metrics["mode"] == "on", metrics["off_reason"]
    assert not result["xtune_loaded"]
    assert str(fresh.parents[1]) in result["file"]
    assert result["ranks_agree"]
    assert result["losses"][1] < 0.8 * result["losses"][0]
    assert metrics["steps"] == STEPS
    assert metrics["ratio_vs_bf16"] > 0.45  # 49.6 % by formula, less headers and two steps of bf16
    sent = 2 * metrics["wire_bytes"]
    assert sent <= result["loopback_bytes"] <= 1.05 * sent

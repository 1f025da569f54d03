"""The agent and its reflector as they ship in an exported policy's module."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.probe.helpers import KEY, LIMIT_S, serve, until
from xtune.export._module import module_files
from xtune.policies import preset
from xtune.policies.probe.readings import ReadingsReader

MODULE = "xtune_policy_probing"


def test_both_run_from_an_exported_module(tmp_path: Path) -> None:
    content, _ = module_files(preset("joint"), "probing")
    for name, data in content.items():
        file = tmp_path / MODULE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        assert KEY.hex().encode() not in data and KEY not in data
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "readings": str(tmp_path / "table"), "timeout_s": 30, "listen": [{"local": address}],
        "paths": [{"name": "a", "local": "127.0.0.1", "remote": address}],
    }  # fmt: skip
    probe = f"{MODULE}.engine.probe"
    with (
        serve("reflect", config, tmp_path, module=probe),
        serve("agent", config, tmp_path, module=probe) as agent,
    ):
        reader = ReadingsReader(tmp_path / "table")
        until(lambda: (found := reader.read(0)) is not None and found.finished > 5, "answers")
        reader.close()
        assert agent.end()["forged"] == 0


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import json, sys\n"
        "from xtune.policies.probe import agent, feed, reflector, queue, __main__\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=LIMIT_S, check=True, env=dict(os.environ),
    )  # fmt: skip
    assert {"numpy", "torch", "numba"}.isdisjoint(json.loads(done.stdout))

"""OpenSM's configuration: legal values, and a real opensm that reads the text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fabric._fat_tree import FatTree
from tests.fabric._simulator import Simulator, installed
from xtune.policies.actuators.opensm import OpenSmSettings


def test_text_by_hand() -> None:
    settings = OpenSmSettings(engines=["ftree", "updn"], lmc=2)
    assert settings.text() == "routing_engine ftree,updn\nlmc 2\n" and settings.paths == 4
    adaptive = OpenSmSettings(engines=["ar_updn"], adaptive_sls=[1, 4])
    assert adaptive.text() == (
        "routing_engine ar_updn\nlmc 0\nenable_ar_by_device_cap TRUE\nar_sl_mask 0x0012\n"
    )


@pytest.mark.parametrize("words", [
    {"engines": []}, {"engines": ["fat"]}, {"engines": ["updn", "updn"]},
    {"engines": ["updn"], "lmc": 8}, {"engines": ["updn"], "lmc": -1},
    {"engines": ["ar_updn"], "adaptive_sls": [16]}, {"engines": ["ar_updn"]},
    {"engines": ["updn"], "adaptive_sls": [0]},
])  # fmt: skip
def test_what_cannot_be(words: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"engine|lmc|levels"):
        OpenSmSettings(**words)  # type: ignore[arg-type]


class Configured(Simulator):
    """A fabric whose subnet manager reads our text."""

    text = OpenSmSettings(engines=["updn", "ftree"], lmc=2).text()

    def _start(
        self, command: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        if Path(command[0]).name == "opensm":
            (self.folder / "opensm.conf").write_text(self.text)
            command = [*command, "-F", str(self.folder / "opensm.conf")]
        return super()._start(command, environment, log)


def test_a_real_opensm_lays_the_paths_that_the_text_asks_for(tmp_path: Path) -> None:
    installed()
    tree = FatTree(spines=2, leaves=2, hosts=2)
    fabric = Configured(tmp_path, tree)
    try:
        port = fabric.tool("smpquery", "-D", "portinfo", "0", "1")
        assert next(line for line in port.splitlines() if line.startswith("LMC:")).endswith(".2")
    finally:
        fabric.stop()
    log = (tmp_path / "opensm.log").read_text() + (tmp_path / "opensm.out").read_text()
    assert "updn tables configured on all switches" in log
    assert "Loading Cached Option:lmc = 2" in log and "nrecognized" not in log


def test_opensm_says_where_it_does_not_know_an_option(tmp_path: Path) -> None:
    """So that silence in the test above means that it took each of ours."""
    opensm = shutil.which("opensm", path="/usr/sbin:/usr/bin")
    if opensm is None:
        pytest.skip("opensm: not here")
    said = {}
    for engine, sls in [("updn", []), ("ar_updn", [0])]:
        config = tmp_path / engine
        config.write_text(OpenSmSettings(engines=[engine], adaptive_sls=sls).text())
        command = [opensm, "-F", str(config), "-c", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        said[engine] = done.stdout + done.stderr
    assert "nrecognized" not in said["updn"] and "nrecognized" in said["ar_updn"]

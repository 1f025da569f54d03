"""``xtune place`` on the lake of data_samples, as the README's chain leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from xtune.lake import Lake

pytestmark = pytest.mark.xdist_group("chain")


def place(lake: Lake, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "xtune", "place", "--json", "--lake", str(lake.root), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_planted_fabric_has_the_planted_sick_links(
    samples_lake: Lake, truth: dict[str, Any]
) -> None:
    """Four leaves of six hosts; a leaf's sick uplinks are those that the generator made sick.

    What was reserved is returned, since other tests share the lake.
    """
    roots = {e["root"] for e in truth["episodes"] if e["cause"] == "sick_link"}
    found = place(samples_lake, "--ranks", "16", "--reserve", "new-job", "--for", "8h")
    rows = samples_lake.read("topology_links").to_pylist()
    for leaf in found["leaves"]:
        own = {
            f"{row['src_guid']}/{row['src_port']}"
            for row in rows
            if row["src_name"] == leaf["leaf"] and row["tier"] == 1
        }
        assert (leaf["hosts"], leaf["unknown_hosts"], leaf["uplinks"]) == (6, 0, 2)
        assert leaf["usable_uplinks"] == 2 - len(own & roots)
    assert len({host["leaf"] for host in found["hosts"]}) == 1
    assert sum(host["ranks"] for host in found["hosts"]) == 16
    assert place(samples_lake, "--release", "new-job")["released"]["ranks"] == 16

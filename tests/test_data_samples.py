"""data_samples: made by its script, small, and what it plants follows from its own rules."""

from __future__ import annotations

import filecmp
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent.parent / "data_samples"
RECORDED = {"training", "README.md", "generate.py", "model.py", "writers.py", "record_training.py"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    subprocess.run([sys.executable, str(SAMPLES / "generate.py"), "--out", str(out)], check=True)
    return out


def files(root: Path) -> set[Path]:
    found = (p.relative_to(root) for p in root.rglob("*") if p.is_file())
    return {p for p in found if p.parts[0] not in RECORDED | {"__pycache__"}}


def test_committed_files_are_what_the_script_makes(made: Path) -> None:
    assert files(made) == files(SAMPLES)
    different = [p for p in files(made) if not filecmp.cmp(made / p, SAMPLES / p, shallow=False)]
    # gzip's compressed bytes may differ among zlib builds; the content may not.
    assert [
        p
        for p in different
        if p.suffix != ".gz"
        or gzip.decompress((made / p).read_bytes()) != gzip.decompress((SAMPLES / p).read_bytes())
    ] == []


def test_under_five_megabytes() -> None:
    assert sum(p.stat().st_size for p in SAMPLES.rglob("*") if p.is_file()) < 5_000_000


def test_planted_rate_and_length_are_the_asked_ones() -> None:
    truth = json.loads((SAMPLES / "truth.json").read_text())
    scenario, episodes = truth["scenario"], truth["episodes"]
    hours = scenario["length_s"] * len(scenario["days"]) / 3600
    lengths = [(e["end_ns"] - e["start_ns"]) / 1e9 for e in episodes]
    assert len(episodes) == scenario["episodes_per_hour"] * hours
    assert sum(lengths) / len(lengths) == pytest.approx(scenario["episode_mean_s"], rel=1e-6)


def test_no_port_sends_more_than_its_line_rate() -> None:
    document = json.loads(
        gzip.decompress((SAMPLES / "cluster/prometheus/2026-03-02.json.gz").read_bytes())
    )
    truth = json.loads((SAMPLES / "truth.json").read_text())["scenario"]
    line = truth["rate_gbps"] * 1e9 / 8
    sent: dict[str, float] = {}
    for series in document["data"]["result"]:
        if "transmit_data" in series["metric"]["__name__"]:
            first, last = series["values"][0][1], series["values"][-1][1]
            key = f"{series['metric']['guid']}/{series['metric']['port']}"
            sent[key] = int(last) - int(first)
    assert max(sent.values()) <= line * truth["length_s"]
    assert min(sent.values()) >= 0

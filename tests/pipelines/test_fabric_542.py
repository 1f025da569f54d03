"""A real fabric of 542 ports, read once by ibdiagnet: its hot ports against a hand calculation.

The hand calculation is a plain parser of the file in this module: gzip, csv, and the tick from the
section of sample controls.
"""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import xtune
from tests.samples import samples
from xtune.lake import Lake
from xtune.pipelines import query

pytestmark = pytest.mark.shared_samples

#: Bit of an active NDR link in LinkSpeedActv, code of four lanes in LinkWidthActv, and what both
#: carry, bytes/s.
NDR, FOUR_LANES, NDR_BYTES_S = 2048, "2", 400e9 / 8


def section(text: str, name: str) -> list[dict[str, str]]:
    """Rows of one section, keyed by its header."""
    lines = text.split(f"START_{name}\n")[1].split(f"END_{name}\n")[0].splitlines()
    return list(csv.DictReader(lines, skipinitialspace=True))


def port(row: dict[str, str]) -> str:
    return f"{row['NodeGUID'].lower()}/{row['PortNumber']}"


@pytest.fixture(scope="module")
def text() -> str:
    path = samples("ib_ibdiagnet", "gmh_ibdiagnet2.db_csv.gz")
    return gzip.decompress(path.read_bytes()).decode()


@pytest.fixture(scope="module")
def ticks(text: str) -> dict[str, int]:
    """Byte times of a wait tick by port: the encoded value t means t + 1."""
    return {
        port(row): int(row["Tick"], 16) + 1 for row in section(text, "PM_PORT_SAMPLES_CONTROL")
    }


@pytest.fixture(scope="module")
def by_hand(text: str, ticks: dict[str, int]) -> dict[str, tuple[int, int, int]]:
    """Lost, sent and received bytes of each port, of the 64-bit counters."""
    found = {}
    for row in section(text, "PM_INFO"):
        assert int(row["PortXmitWaitExt"]) < 2**63
        found[port(row)] = (
            int(row["PortXmitWaitExt"]) * ticks[port(row)],
            int(row["PortXmitDataExtended"]) * 4,
            int(row["PortRcvDataExtended"]) * 4,
        )
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the lake that the two commands leave."""
    folder = tmp_path_factory.mktemp("fabric")
    for words in (("collect", str(samples("ib_ibdiagnet"))), ("rebuild",)):
        done = xtune(*words, cwd=folder)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return folder


@pytest.fixture(scope="module")
def totals(here: Path) -> dict[str, dict[str, Any]]:
    rows = query(Lake.open(here / "lake"), "FROM link_totals").to_pylist()
    return {row["link"]: row for row in rows}


def test_every_port_once_to_the_byte(
    totals: dict[str, dict[str, Any]], by_hand: dict[str, tuple[int, int, int]]
) -> None:
    assert len(by_hand) == 542
    assert {
        link: (row["lost_bytes"], row["sent_bytes"], row["received_bytes"])
        for link, row in totals.items()
    } == by_hand


def test_the_ranking_of_lost_to_sent(
    totals: dict[str, dict[str, Any]], by_hand: dict[str, tuple[int, int, int]]
) -> None:
    ratios = {link: lost / sent for link, (lost, sent, _) in by_hand.items() if sent}
    ranked = sorted(ratios, key=lambda link: -ratios[link])
    assert [round(ratios[link], 3) for link in ranked[:3]] == [0.835, 0.503, 0.088]
    found = sorted(totals, key=lambda link: -(totals[link]["lost_to_sent"] or 0))
    assert found[:20] == ranked[:20]
    for link, ratio in ratios.items():
        assert totals[link]["lost_to_sent"] == pytest.approx(ratio, rel=1e-12)


def test_without_a_lifetime_there_is_no_share_of_time(here: Path) -> None:
    """PM_INFO alone gives no rate; the only intervals are PM_DELTA's second."""
    sql = "SELECT count(*) AS n, min(interval_s) AS low, max(interval_s) AS high FROM link_rates"
    [row] = query(Lake.open(here / "lake"), sql).to_pylist()
    assert row == {"n": 542, "low": 1.0, "high": 1.0}


def test_wait_fractions_of_the_second_between_the_samples(
    here: Path, text: str, ticks: dict[str, int]
) -> None:
    links = [row for row in section(text, "PORTS") if row["PortNum"] not in ("0", "")]
    ndr = {
        f"{row['NodeGuid'].lower()}/{row['PortNum']}"
        for row in links
        if int(row["LinkSpeedActv"]) & NDR and row["LinkWidthActv"] == FOUR_LANES
    }
    found = query(Lake.open(here / "lake"), "SELECT link, wait_fraction, level FROM link_rates")
    fractions = {row["link"]: row["wait_fraction"] for row in found.to_pylist()}
    assert set(found["level"].to_pylist()) == {0}
    assert max(fractions.values()) < 1e-6
    deltas = {port(row): int(row["PortXmitWaitExt"]) for row in section(text, "PM_DELTA")}
    assert len(deltas) == len(fractions) == 542
    assert sum(delta > 0 for delta in deltas.values()) > 0
    for link, delta in deltas.items():
        assert link in ndr
        assert fractions[link] == pytest.approx(delta * ticks[link] / NDR_BYTES_S, rel=1e-9)


def test_no_episode_opens(here: Path) -> None:
    done = xtune("episodes", "--json", cwd=here)
    assert json.loads(done.stdout) == {"schema": 1, "episodes": [], "link_episodes": []}
    assert "0 episodes" in xtune("episodes", cwd=here).stdout

"""The signals themselves: wait counters that stick, marks that lead, the margin of a link."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.fabrics import out, topology_rows, up
from tests.pipelines.lakes import A, B, counters, derived, new_lake, port_rows, put
from xtune.pipelines import rebuild


def test_a_stuck_wait_counter_is_said(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    waits = [0, *[2**32 - 1] * 4]
    put(lake, "link_counters", counters(range(5), port_xmit_wait=waits, port_xmit_data=[0] * 5))
    summary = rebuild(lake, threads=1)
    [note] = [note for note in summary.notes if "port_xmit_wait" in note]
    assert "on 1 links, 4 s in all" in note
    assert {row["wait_fraction"] for row in derived(lake, "link_rates")} == {None}


def test_marks_before_waiting_are_measured_and_name_the_signal(tmp_path: Path) -> None:
    """2 % of 12.2 million packets marked from 1 s on, waiting from 4 s on: 3 s of lead."""
    lake = new_lake(tmp_path / "lake")
    marked = [0, 0, *[244_141 * i for i in range(1, 9)], 244_141 * 8, 244_141 * 8]
    rows = port_rows(A, [0, 0, 0, 0, 0.3, 0.3, 0.3, 0.3, 0, 0, 0])
    for row, marks in zip(rows, marked, strict=True):
        row["np_ecn_marked_roce_packets"] = marks
    put(lake, "link_counters", rows)
    summary = rebuild(lake, threads=1)
    [note] = [note for note in summary.notes if "marks" in note]
    assert note.startswith("ECN marks came 3.0 s before waiting (median of 1 stretches")
    [episode] = derived(lake, "link_episodes")
    assert (episode["start_ts"], episode["end_ts"]) == (1.0, 9.0)


def test_one_glitch_of_a_counter_opens_no_episode(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = port_rows(A, [0.05] * 30)
    for index in (10, 12, 14, 16):
        rows[index]["port_xmit_wait"] = 0
    put(lake, "link_counters", rows)
    rebuild(lake, threads=1)
    assert derived(lake, "link_episodes") == []
    assert max(row["wait_fraction"] or 0 for row in derived(lake, "link_rates")) < 0.06


def test_spikes_of_one_sample_are_no_episode_however_close(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    put(lake, "link_counters", port_rows(A, [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]))
    put(lake, "link_counters", port_rows(B, [0, 1, 1, 0, 0, 1, 0, 0, 0, 0]))
    rebuild(lake, threads=1)
    assert [(row["link"], row["start_ts"]) for row in derived(lake, "link_episodes")] == [(B, 1.0)]


def test_the_margin_of_a_link_goes_by_its_one_name(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    port = {"host": "h", "device": "mlx5_0", "port": 1, "node_guid": A[:18], "link": "h/mlx5_0/1"}
    put(lake, "ports", [port], source="f" * 12)
    put(lake, "link_counters", port_rows(A, [0, 0]))
    reading = {"ts": port_rows(A, [0])[0]["ts"], "link": "h/mlx5_0/1", "raw_ber": 2.4e-8}
    put(lake, "link_signal", [reading])
    rebuild(lake, threads=1)
    [row] = derived(lake, "signal_margin")
    assert row["link"] == A
    assert row["margin_decades"] == pytest.approx(4.0)


def test_data_off_by_four_is_not_used(tmp_path: Path) -> None:
    """A source that multiplied words of 4096-byte packets already; what waits is still known."""
    lake = new_lake(tmp_path / "lake")
    rows = counters(
        range(3),
        port_xmit_data=[n * 4096 for n in (0, 10**6, 2 * 10**6)],
        port_xmit_packets=[0, 10**6, 2 * 10**6],
        port_rcv_data=[0, 10**6, 2 * 10**6],
        port_xmit_wait=[0, 0, 0],
        data_unit_bytes=[4] * 3,
    )
    put(lake, "link_counters", rows)
    [note] = rebuild(lake, threads=1).notes
    assert "so its data is left unknown" in note
    for row in derived(lake, "link_rates"):
        assert (row["tx_gbps"], row["utilization"]) == (None, None)
        assert (row["rx_gbps"], row["wait_fraction"]) == (0.032, 0.0)


@pytest.mark.parametrize(
    ("times", "cause", "per_s"),
    [
        ((0, 10, 60), "sick_link", 4.0),
        ((0, 35, 60), "unknown", 4.0),
        ((0, 52, 60), "unknown", None),
    ],
)
def test_a_signal_gone_bad_tells_what_no_counter_does(
    tmp_path: Path, times: tuple[float, ...], cause: str, per_s: float | None
) -> None:
    """1e-11 of 400e9 bits is 4 errors a second, after the reading before: for all of the 40 s
    waited from 12 to 52 s, for 17 of them, or for none. The wait is known first."""
    lake = new_lake(tmp_path / "lake")
    put(lake, "topology_links", topology_rows())
    put(lake, "link_counters", port_rows(up(0, 0), [0] * 12 + [0.3] * 40 + [0]))
    rebuild(lake, threads=1)
    [episode] = derived(lake, "episodes")
    assert (episode["cause"], episode["root_link"]) == ("unknown", None)
    readings = [
        {"ts": row["ts"], "link": out(0, 0), "effective_ber": ber}
        for row, ber in zip(counters(times), (0.0, 0.0, 1e-11), strict=True)
    ]
    put(lake, "link_signal", readings)
    rebuild(lake, threads=1)
    [episode] = derived(lake, "episodes")
    assert (episode["cause"], episode["root_link"]) == (
        cause,
        up(0, 0) if cause == "sick_link" else None,
    )
    assert json.loads(episode["evidence"]).get("signal_errors_per_s") == per_s

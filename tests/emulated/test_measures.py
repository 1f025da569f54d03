"""Figures by hand, and against numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xtune.proofs.emulated.measures import (
    median_interval,
    packets,
    probes,
    quantile,
    reasons,
)
from xtune.proofs.emulated.receiver import Burst


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
       st.sampled_from([0.01, 0.1, 0.5, 0.9, 0.99, 1.0]))  # fmt: skip
def test_quantiles_are_those_of_the_inverted_distribution(values: list[float], q: float) -> None:
    assert quantile(values, q) == np.quantile(values, q, method="inverted_cdf")
    assert quantile([], q) is None


def test_an_interval_holds_the_median_and_shrinks() -> None:
    assert median_interval([1.0], 0) is None
    assert median_interval([2.0, 2.0, 2.0], 0) == [2.0, 2.0]
    rng = np.random.default_rng(1)
    wide, narrow = (median_interval(list(rng.normal(10, 1, size)), 0) or [] for size in (10, 1000))
    assert wide[0] < 10.2 and wide[1] > 9.8
    assert 0 < narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3
    assert median_interval([1.0, 5.0, 2.0], 7) == median_interval([1.0, 5.0, 2.0], 7)


def test_a_flow_by_hand() -> None:
    burst = Burst()
    for number, sent_ns, arrived_ns in [(0, 0, 5), (2, 20, 26), (1, 10, 30), (4, 40, 90)]:
        burst.take(number, sent_ns, arrived_ns, 1_000_000)
    sent = {"sent": 5, "unsent": 1, "burst": 1, "seconds": 2.0}
    found = packets(sent, json.loads(json.dumps(burst.told())))
    assert (found["sent"], found["received"], found["unsent"]) == (5, 4, 1)
    assert found["loss"] == pytest.approx(0.2)
    assert found["received_mbps"] == pytest.approx(4 * 8 / 2)
    assert found["reordered"] == 1
    assert found["longest_gap_ms"] == pytest.approx(60e-6)
    assert found["delay_ms"]["1"] == pytest.approx(50e-6)
    assert found["delay_ms"]["jitter"] == pytest.approx(50e-6 - 6e-6)  # of 5, 6, 20, 50 ns
    nothing = packets(sent, None)
    assert (nothing["received"], nothing["loss"], nothing["longest_gap_ms"]) == (0, 1.0, None)
    assert packets({"sent": 0, "unsent": 0, "seconds": 1.0}, None)["loss"] is None


def test_logs_are_read_within_the_window_and_up_to_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "probes"
    lines = [
        {"path": path, "ts_ns": at, "rtt_ns": rtt, "lost": rtt is None}
        for path, at, rtt in [(0, 5, 10**6), (0, 10, 2 * 10**6), (1, 11, 7), (0, 12, None),
                              (0, 13, 4 * 10**6), (0, 21, 9)]
    ]  # fmt: skip
    log.write_text("\n".join(map(json.dumps, lines)) + '\n{"path": 0, "ts_')
    found = probes(log, 0, 10, 20)
    assert (found["probes"], found["lost"]) == (3, 1)
    assert (found["rtt_ms"]["0.5"], found["rtt_ms"]["0.99"]) == (2.0, 4.0)
    decisions = [
        {"kind": kind, "ts_ns": at, "reason": reason}
        for kind, at, reason in [("path", 1, "a to b flow 0: primary warned"),
                                 ("path", 11, "a to b flow 0: primary warned"),
                                 ("blacklist", 12, "x: 3 probes"),
                                 ("path", 13, "f: primary warned"),
                                 ("path", 14, "f: back on the primary")]
    ]  # fmt: skip
    log.write_text("\n".join(map(json.dumps, decisions)) + "\n")
    assert reasons(log, 10, 20) == {"primary warned": 2, "back on the primary": 1}
    assert reasons(tmp_path / "none", 0, 99) == {}

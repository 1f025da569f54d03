"""Intervals hold what they were made of; what is assumed says what would fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from tests.sim_loop.lakes import Rows, Truth, fill, make_lake, ns, rows_of
from xtune.sim import Calibration, calibrate
from xtune.sim._stats import share_interval
from xtune.sim.fit_loss import curve_intervals, fit_curve


def fitted(root: Path, rows: Rows) -> Calibration:
    return calibrate(fill(root, rows))


@pytest.mark.slow
def test_a_curve_is_within_its_interval_as_often_as_it_says() -> None:
    steps, rounds, truth = np.arange(600.0), 60, {"loss_floor": 1.8, "loss_exponent": 0.35}
    held = dict.fromkeys(truth, 0)
    for seed in range(rounds):
        noise = np.random.default_rng(seed).normal(0.0, 0.05, len(steps))
        loss = 1.8 + 9.0 * (steps + 1.0) ** -0.35 + noise
        ends = curve_intervals(fit_curve("power", steps, loss), steps, loss)
        for name, value in truth.items():
            held[name] += ends[name][0] <= value <= ends[name][1]
    for name, count in held.items():  # 95 %, less what 60 rounds may differ from it
        assert binomtest(count, rounds, 0.95).pvalue > 0.001, (name, count)


def test_more_points_make_a_narrower_interval() -> None:
    widths = []
    for count in (500, 8000):
        steps = np.arange(float(count)) * (8000 / count)
        noise = np.random.default_rng(1).normal(0.0, 0.05, count)
        loss = 1.8 + 9.0 * (steps + 1.0) ** -0.35 + noise
        low, high = curve_intervals(fit_curve("power", steps, loss), steps, loss)["loss_floor"]
        widths.append(high - low)
    assert 2.0 < widths[0] / widths[1] < 8.0  # the root of 16, about


@pytest.mark.parametrize(("hits", "count"), [(0, 15), (15, 15), (3, 20), (50, 100)])
def test_a_share_is_within_its_interval(hits: int, count: int) -> None:
    low, high = share_interval(hits, count)
    exact = binomtest(hits, count).proportion_ci()
    assert 0.0 <= low <= hits / count <= high <= 1.0
    assert low == pytest.approx(exact.low, abs=0.07) and high == pytest.approx(
        exact.high, abs=0.07
    )


def test_every_fitted_parameter_that_varies_has_an_interval(tmp_path: Path) -> None:
    c = calibrate(make_lake(tmp_path, Truth(hours=0.6, rate_per_h=30.0, length_s=25.0)))
    exact = {"element_bytes", "ranks", "job_hosts", "first_bucket_share"}
    for p in c.parameters.values():
        if p.assumed:
            assert p.needs, p.name
        elif p.name not in exact:
            assert p.low is not None and p.high is not None, p.name
            assert p.low <= p.value * (1 + 1e-12) and p.value <= p.high * (1 + 1e-12), p.name
            assert not p.needs


def with_changes(truth: Truth, stands_s: float, every: int, run: int = 1) -> Rows:
    """A policy changed what is sent every so many iterations, ``run`` times one after another."""
    rows = rows_of(truth)
    for row in rows["steps"]:
        if row["step"] >= every and row["step"] % every < run:
            row["step_time_s"] += stands_s
            for kind in ("level", "ratio", "bits"):
                for rank in (0, 1):
                    rows["decisions"].append(
                        {"ts": row["ts"], "job": "train", "rank": rank, "step": row["step"],
                         "kind": kind, "before": "0", "after": "1", "reason": "level"}
                    )  # fmt: skip
    return rows


def test_what_a_change_takes_is_fitted_where_a_policy_ran(tmp_path: Path) -> None:
    truth = Truth(hours=0.5, rate_per_h=6.0)
    c = fitted(tmp_path, with_changes(truth, 0.42, 25))
    change = c.parameters["change_s"]
    assert not change.assumed and change.tables == ("decisions", "steps")
    assert change.low is not None and change.high is not None
    assert change.low <= 0.42 <= change.high
    assert change.value == pytest.approx(0.42, rel=0.05)
    assert change.n > 50
    assert any("a policy changed what is sent" in note for note in c.notes)


def test_a_change_is_not_set_beside_another(tmp_path: Path) -> None:
    rows = with_changes(Truth(hours=0.4, rate_per_h=6.0), 0.42, 30, run=4)
    change = fitted(tmp_path, rows).parameters["change_s"]
    assert change.low is not None and change.low > 0.35
    assert change.n <= len(rows["steps"]) / 30  # the last one of each run


def test_few_changes_or_levels_alone_leave_it_assumed(tmp_path: Path) -> None:
    truth = Truth(hours=0.2, rate_per_h=6.0)
    few = with_changes(truth, 0.42, 100)
    assert fitted(tmp_path / "few", few).parameters["change_s"].assumed
    other = with_changes(truth, 0.42, 25)
    for row in other["decisions"]:
        if row["kind"] != "level":  # which alone changes nothing that is sent
            row["job"] = "other"
    assert fitted(tmp_path / "other", other).parameters["change_s"].assumed


def again(rows: Rows, *, run: str, later_s: float, slower_s: float, first: int = 0) -> Rows:
    """The steps from ``first`` on made once more, without a policy, on a slower machine."""
    more = [
        {**row, "run": run, "ts": row["ts"] + round(later_s * 1e9), "step_time_s": 1.2 + slower_s}
        for row in rows["steps"]
        if row["step"] >= first
    ]
    return {**rows, "steps": [*rows["steps"], *more]}


@pytest.mark.parametrize(
    ("run", "first"), [("another", 0), ("an earlier name", 3), ("r", 0), ("r", 400)]
)
def test_a_change_is_set_beside_iterations_of_its_own_run(
    tmp_path: Path, run: str, first: int
) -> None:
    rows = with_changes(Truth(hours=0.3, rate_per_h=6.0), 0.42, 25)
    rows = again(rows, run=run, later_s=7200.0, slower_s=3.0, first=first)
    for row in rows["steps"]:
        if row["run"] == run and row["step"] % 25 == 0:
            row["step_time_s"] += 5.0 * (row["step_time_s"] > 4.0)  # it saves: no change
    change = fitted(tmp_path, rows).parameters["change_s"]
    assert not change.assumed and change.value == pytest.approx(0.42, rel=0.05)


def test_a_change_while_two_runs_were_at_it_is_of_neither(tmp_path: Path) -> None:
    rows = with_changes(Truth(hours=0.3, rate_per_h=6.0), 0.42, 25)
    c = fitted(tmp_path, again(rows, run="beside", later_s=0.5, slower_s=3.0))
    assert c.parameters["change_s"].assumed
    assert any("a policy changed what is sent" in note for note in c.notes)


def test_a_skipped_iteration_is_no_measure_of_a_change(tmp_path: Path) -> None:
    rows = with_changes(Truth(hours=0.3, rate_per_h=6.0), 0.42, 25)
    for row in rows["steps"]:
        if row["step"] % 50 == 0:
            row |= {"skipped": 1, "step_time_s": 0.1}
    change = fitted(tmp_path, rows).parameters["change_s"]
    assert not change.assumed and change.value == pytest.approx(0.42, rel=0.05)
    assert change.n <= len(rows["steps"]) / 50 + 1


def with_probes(hop_ns: float, host_ns: float) -> Rows:
    """Probes of all pairs of eight hosts, two a leaf; waiting adds to all but one of each pair."""
    rows = rows_of(Truth(hours=0.2))
    random = np.random.default_rng(1)
    for a in range(8):
        for b in range(8):
            hops = 2 * (2 if a // 2 == b // 2 else 4)
            for i in range(20 if a != b else 0):
                rtt = hops * hop_ns + host_ns + random.exponential(3000.0) * (i > 0)
                rows["link_probes"].append(
                    {"ts": ns(1.0 + i), "src": f"node{a}", "dst": f"node{b}", "path": 0,
                     "rtt_ns": round(rtt), "lost": False}
                )  # fmt: skip
    return rows


def test_latency_of_a_link_is_fitted_from_probes(tmp_path: Path) -> None:
    p = fitted(tmp_path, with_probes(620.0, 9000.0)).parameters["link_latency_ns"]
    assert not p.assumed and p.n == 56
    assert p.value == pytest.approx(620.0, abs=1.0)


def test_probes_below_one_leaf_alone_leave_latency_assumed(tmp_path: Path) -> None:
    rows = with_probes(620.0, 9000.0)
    rows["link_probes"] = [
        row for row in rows["link_probes"]
        if int(row["src"][4:]) // 2 == int(row["dst"][4:]) // 2
    ]  # fmt: skip
    p = fitted(tmp_path, rows).parameters["link_latency_ns"]
    assert p.assumed and "link_probes" in p.needs


def with_pods(hop_ns: float) -> Rows:
    """Two pods of two leaves and a spine each, joined by a core: three tiers."""
    rows = with_probes(hop_ns, 9000.0)
    pod = {f"leaf{leaf}": leaf // 2 for leaf in range(4)}

    def kept(row: dict[str, Any]) -> bool:
        ends = sorted((row["src_name"], row["dst_name"]))
        return row["tier"] == 0 or int(ends[1][-1]) == pod[ends[0]]

    links = [row for row in rows["topology_links"] if kept(row)]
    for spine in range(2):
        ends = ("0xcore", "core", f"0xspine{spine}", f"spine{spine}")
        for a, a_name, b, b_name in (ends, ends[2:] + ends[:2]):
            links.append(
                {"src_guid": a, "src_name": a_name, "src_port": spine, "dst_guid": b,
                 "dst_name": b_name, "dst_port": spine, "rate_gbps": 400.0, "tier": 2}
            )  # fmt: skip
    for row in rows["link_probes"]:
        if int(row["src"][4:]) // 4 != int(row["dst"][4:]) // 4:
            row["rtt_ns"] += round(4 * hop_ns)
    return {**rows, "topology_links": links}


def test_round_trips_over_a_core_are_no_measure_of_a_link(tmp_path: Path) -> None:
    p = fitted(tmp_path, with_pods(620.0)).parameters["link_latency_ns"]
    assert not p.assumed and p.n == 8 + 16  # pairs below one leaf, and of one pod
    assert p.value == pytest.approx(620.0, abs=1.0)


def test_a_host_on_two_leaves_tells_no_latency(tmp_path: Path) -> None:
    rows = with_probes(620.0, 9000.0)
    rails = [
        {**row, "src_name": row["src_name"].replace("_0", "_1"),
         "dst_guid": "0xrail", "dst_name": "rail"}
        for row in rows["topology_links"]
        if row["tier"] == 0 and row["src_name"].startswith("node")
    ]  # fmt: skip
    rows["topology_links"] += rails
    assert fitted(tmp_path, rows).parameters["link_latency_ns"].assumed

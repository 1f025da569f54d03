"""``calibrate``: from the tables of a lake to a calibration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xtune.sim._inputs import Inputs
from xtune.sim.calibration import Calibration, Parameter
from xtune.sim.fit_episodes import (
    busy_intervals,
    covered_intervals,
    fit_background,
    fit_episodes,
    read_episodes,
)
from xtune.sim.fit_loss import fit_loss
from xtune.sim.fit_steps import read_steps
from xtune.sim.fit_topology import fit_layers, fit_topology, links_of_hosts, read_links
from xtune.sim.fit_traffic import fit_traffic
from xtune.sim.response import assumed_response

if TYPE_CHECKING:
    from xtune.lake import Lake

# Seconds of one regulation that a training job pays in the controller, an upper bound of what
# ``python -m xtune.sim.regulation_cost`` prints (64 layers, one core). A constant, since a time
# measured anew would give each machine another fingerprint.
CONTROLLER_S = 2e-5
# Seconds for which training stands still when the plan changes (new workspaces, residuals
# re-sliced): measured with a prototype of the loop.
CHANGE_S = 0.3
# Bytes of memory traffic per element to quantise, sum and dequantise, over the bandwidth of an
# H100's memory (data sheet: 3.35e12 byte/s, of which 90 % are reachable).
CODEC_S_PER_ELEMENT = 22.0 / 3.0e12


def calibrate(lake: Lake, *, job: str | None = None) -> Calibration:
    """Fit the simulator to a lake.

    Args:
        lake: With training steps, collectives and link rates; ``xtune rebuild`` has run.
        job: The job to fit; by default the one with most steps.

    Returns:
        Every parameter with its interval and source; what could not be fitted is marked assumed.

    Raises:
        CalibrationError: The lake does not hold enough, with what is missing and how to get it.
    """
    inputs = Inputs(lake)
    episodes = read_episodes(inputs)
    busy = busy_intervals(episodes)
    rates = inputs.read("derived/link_rates", ["ts", "interval_s", "link", "tx_gbps"])
    covered = covered_intervals(rates)
    steps = read_steps(inputs, job, busy, covered)
    traffic = fit_traffic(inputs, steps, busy)
    links = read_links(inputs)
    parameters = {p.name: p for p in traffic.parameters}
    ranks = int(parameters["ranks"].value)
    for p in fit_topology(inputs, links, traffic.hosts, ranks):
        parameters[p.name] = p
    for p in fit_episodes(episodes, covered, links_of_hosts(links, traffic.host_names)):
        parameters[p.name] = p
    rate_gbps = parameters["rate_gbps"].value
    step_bytes = sum(traffic.buckets)
    own = 2 * (ranks - 1) / ranks * step_bytes * 8e-9 / parameters["step_s"].value
    loss_kind, loss = fit_loss(inputs, steps.job, covered)
    element_bytes = int(parameters["element_bytes"].value)
    layers, note = fit_layers(inputs, steps.job, traffic.buckets, element_bytes)
    latency_s = parameters["link_latency_ns"].value * 1e-9
    for p in (
        fit_background(rates, busy, own, rate_gbps),
        *loss,
        Parameter(
            name="regulation_s", unit="s", assumed=True,
            # A small all-reduce: a tree up and down, four hops between hosts under two leaves.
            value=CONTROLLER_S + 2 * math.ceil(math.log2(max(2, ranks))) * 4 * latency_s,
            why="timed on the controller, plus one small tree all-reduce at the link latency",
        ),
        Parameter(
            name="change_s", value=CHANGE_S, unit="s", assumed=True,
            why="training stands still while a plan changes: measured with a prototype",
        ),
        Parameter(
            name="codec_s_per_element", value=CODEC_S_PER_ELEMENT, unit="s", assumed=True,
            why="22 bytes of memory traffic an element at 3e12 byte/s (H100 data sheet)",
        ),
        *assumed_response(),
    ):  # fmt: skip
        parameters[p.name] = p
    notes = [*traffic.notes]
    if note:
        notes.append(note)
    if steps.others and job is None:
        notes.append(f"{steps.others + 1} jobs have steps: fitted on the one with most of them")
    notes.append("telemetry is taken to be of dense gradients on static paths")
    return Calibration(
        job=steps.job,
        parameters=parameters,
        buckets=traffic.buckets,
        layers=layers,
        loss_kind=loss_kind,
        inputs=inputs.digests,
        notes=tuple(notes),
        span_ns=(int(covered[0, 0]), int(covered[-1, 1])),
    )
